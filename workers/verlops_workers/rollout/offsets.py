"""Which prompt offsets may be committed. Pure.

A partition is committed up to the contiguous finished prefix: the offset after the last
prompt before the first unfinished one (Kafka's *next* offset, so that an idle group has
no backlog).
"""

from __future__ import annotations

from collections.abc import Iterable


class Offsets:
    """What one worker has taken of its partitions, and what of it is finished."""

    def __init__(self) -> None:
        self._open: dict[int, set[int]] = {}
        self._next: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        """Where each partition stands; at first the offset it was taken from."""

    def take(self, partition: int, offset: int) -> None:
        """A record was delivered."""
        self._open.setdefault(partition, set()).add(offset)
        self._next[partition] = max(self._next.get(partition, 0), offset + 1)
        self._committed.setdefault(partition, offset)

    def finish(self, partition: int, offset: int) -> None:
        """Its proof is durable. A partition that was dropped meanwhile is ignored."""
        self._open.get(partition, set()).discard(offset)

    def due(self) -> dict[int, int]:
        """Partition → next offset, where it has grown since the last commit."""
        found = {p: min(self._open[p], default=self._next[p]) for p in self._open}
        return {p: n for p, n in found.items() if n > self._committed[p]}

    def committed(self, offsets: dict[int, int]) -> None:
        """These were committed."""
        self._committed |= offsets

    def keep(self, partitions: Iterable[int]) -> None:
        """Forget every partition that is not among these: it is another's now."""
        owned = set(partitions)
        for table in (self._open, self._next, self._committed):
            for partition in [p for p in table if p not in owned]:
                del table[partition]
