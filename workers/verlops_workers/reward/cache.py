"""Scores that are known already: the seam, its key, and the cache in memory.

Called by the scoring engine. A cache that fails costs time, never a score: whatever it
raises, the engine computes without it. Errors and missing scores are never put in.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

from verlops.ports import ScoreItem
from verlops_workers.reward.plug import Scorer


class Cache(Protocol):
    """Scores by key. Shared ones live on a network, so both calls are awaited."""

    async def get_many(self, keys: Sequence[bytes]) -> list[float | None]:
        """The score of each key, None where it is unknown."""
        ...

    async def put_many(self, scores: Mapping[bytes, float]) -> None: ...


class MemoryCache:
    """The last used ``entries`` scores, in this process."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._scores: OrderedDict[bytes, float] = OrderedDict()

    async def get_many(self, keys: Sequence[bytes]) -> list[float | None]:
        for key in keys:
            if key in self._scores:
                self._scores.move_to_end(key)
        return [self._scores.get(key) for key in keys]

    async def put_many(self, scores: Mapping[bytes, float]) -> None:
        for key, score in scores.items():
            self._scores[key] = score
            self._scores.move_to_end(key)
        while len(self._scores) > self._entries:
            self._scores.popitem(last=False)


def cache_key(scorer: Scorer, item: ScoreItem) -> bytes:
    """32 bytes over everything that may change a score.

    Each part is preceded by its length, so that ("ab", "c") and ("a", "bc") differ.
    """
    parts = (scorer.name, scorer.version, scorer.options, item.task)
    digest = hashlib.sha256()
    for part in (*parts, item.prompt, item.reference, item.response):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
