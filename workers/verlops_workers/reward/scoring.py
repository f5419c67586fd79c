"""From items to verdicts: the cache, the scorer, and whose fault an error is.

Called by the app. An error of the scorer that is about the input counts against that one
item, which is looked for by halving the batch; after three it is ``failed``. Whatever is
about the scorer (time, network, memory, its own bugs) leaves items ``unscored``: the
worker keeps them and asks again. Nothing is ever scored 0 for an error, or cached.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from verlops.errors import VerlopsError
from verlops.messages import RewardState
from verlops.ports import ScoreItem
from verlops_workers.reward.cache import Cache, cache_key
from verlops_workers.reward.plug import Scorer
from verlops_workers.reward.pool import Pool
from verlops_workers.reward.watch import Watch

TRIES = 3
"""Times that the scorer must refuse an item before the item is given up (rule 13)."""

CACHE_SECONDS = 1.0
"""A cache slower than this is as good as none."""

REASON_LENGTH = 200


class Verdict(NamedTuple):
    """What is said about one item; ``reward`` is a finite number or None."""

    reward: float | None
    state: RewardState
    error: str = ""


class OutageError(Exception):
    """The scorer, not the input, is at fault."""


class RejectedError(Exception):
    """The scorer refuses an item of the batch; which one is not known."""


class Engine:
    """Scores batches of items with one scorer.

    ``budget`` is the time in seconds for one batch, waiting for the scorer included: what
    is not scored by then is ``unscored``. Without a cache equal items are scored each.
    """

    def __init__(
        self, scorer: Scorer, pool: Pool, cache: Cache | None, watch: Watch, budget: float
    ) -> None:
        self.scorer = scorer
        self._pool = pool
        self._cache = cache
        self._watch = watch
        self._budget = budget

    async def score(self, items: Sequence[ScoreItem]) -> list[Verdict]:
        """One verdict an item, in the same order."""
        deadline = time.monotonic() + self._budget
        keys = self._keys(items)
        wanted = dict(zip(keys, items, strict=True))
        verdicts = await self._known(list(wanted))
        missing = [key for key in wanted if key not in verdicts]
        if missing:
            fresh = await self._judge([wanted[key] for key in missing], deadline)
            verdicts |= dict(zip(missing, fresh, strict=True))
            await self._keep({key: verdicts[key] for key in missing})
        given = [verdicts[key] for key in keys]
        scores = [v.reward for v in given if v.reward is not None]
        self._watch.gave([v.state for v in given], scores)
        return given

    def _keys(self, items: Sequence[ScoreItem]) -> list[bytes]:
        if self._cache is None:
            return [str(index).encode() for index in range(len(items))]
        return [cache_key(self.scorer, item) for item in items]

    async def _known(self, keys: list[bytes]) -> dict[bytes, Verdict]:
        if self._cache is None or not keys:
            return {}
        try:
            async with asyncio.timeout(CACHE_SECONDS):
                found = await self._cache.get_many(keys)
            known = {
                k: Verdict(s, "scored") for k, s in zip(keys, found, strict=True) if s is not None
            }
        except Exception as error:  # noqa: BLE001 - whatever a cache raises, we can do without
            self._watch.cache_failed(error)
            return {}
        self._watch.hits.inc(len(known))
        self._watch.misses.inc(len(keys) - len(known))
        return known

    async def _keep(self, verdicts: dict[bytes, Verdict]) -> None:
        scores = {key: v.reward for key, v in verdicts.items() if v.reward is not None}
        if self._cache is None or not scores:
            return
        try:
            async with asyncio.timeout(CACHE_SECONDS):
                await self._cache.put_many(scores)
        except Exception as error:  # noqa: BLE001 - whatever a cache raises, we can do without
            self._watch.cache_failed(error)

    async def _judge(self, items: Sequence[ScoreItem], deadline: float) -> list[Verdict]:
        try:
            scores = await self._call(items, deadline)
        except OutageError as error:
            return [Verdict(None, "unscored", str(error))] * len(items)
        except RejectedError as error:
            if len(items) == 1:
                return [await self._again(items[0], str(error), deadline)]
            middle = len(items) // 2
            first = await self._judge(items[:middle], deadline)
            return first + await self._judge(items[middle:], deadline)
        return [
            await self._again(item, score, deadline)
            if isinstance(score, str)
            else Verdict(score, "scored")
            for item, score in zip(items, scores, strict=True)
        ]

    async def _again(self, item: ScoreItem, reason: str, deadline: float) -> Verdict:
        """The verdict on an item that the scorer refused once, with this reason."""
        for _ in range(TRIES - 1):
            try:
                score = (await self._call([item], deadline))[0]
            except OutageError as error:
                return Verdict(None, "unscored", str(error))
            except RejectedError as error:
                reason = str(error)
                continue
            if not isinstance(score, str):
                return Verdict(score, "scored")
            reason = score
        return Verdict(None, "failed", reason)

    async def _call(self, items: Sequence[ScoreItem], deadline: float) -> list[float | str]:
        """A score, or the reason why there is none, for each item.

        Raises OutageError, or RejectedError when the items are to be tried one by one.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._outage("no time was left")
        try:
            with self._watch.scorer_latency.time():
                result = await self._pool.run(self.scorer.function, items, left)
            return self._checked(result, len(items))
        except Exception as error:
            if isinstance(error, TimeoutError) and time.monotonic() >= deadline:
                raise self._outage(f"no scores within {self._budget:g} s") from None
            if is_outage(error):
                raise self._outage(reason_of(error)) from error
            self._watch.failed("rejected", reason_of(error))
            raise RejectedError(reason_of(error)) from error
        finally:
            self._watch.stuck.set(self._pool.stuck)

    def _checked(self, result: Any, count: int) -> list[float | str]:
        scores = [_number(value) for value in result]
        if len(scores) != count:
            raise VerlopsError(f"the scorer returned {len(scores)} scores for {count} items")
        for reason in {score for score in scores if isinstance(score, str)}:
            self._watch.failed("rejected", reason)
        return scores

    def _outage(self, reason: str) -> OutageError:
        self._watch.failed("outage", reason)
        return OutageError(reason)


def is_outage(error: Exception) -> bool:
    """Whether an error says something about the scorer rather than about its input.

    A scorer that must be asked again later may raise any VerlopsError.
    """
    if isinstance(error, VerlopsError | OSError | MemoryError | ImportError | NameError):
        return True
    httpx = sys.modules.get("httpx")  # not imported: then the error is none of its
    return httpx is not None and isinstance(error, httpx.HTTPError)


def reason_of(error: Exception) -> str:
    """One short printable line; the text of an error may quote what a model wrote."""
    text = f"{type(error).__name__}: {error}".splitlines()[0][:REASON_LENGTH]
    return "".join(c if c.isprintable() else "?" for c in text)


def _number(value: Any) -> float | str:
    if value is None:
        return "the scorer gave no score"
    try:
        score = float(value)
    except (TypeError, ValueError):
        return f"the score is a {type(value).__name__}, not a number"
    return score if math.isfinite(score) else "the score is not finite"
