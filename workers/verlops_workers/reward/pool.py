"""Where a scorer runs: off the event loop, for at most so long.

Called by the scoring engine through ``Pool``, which processes with limits of memory and
CPU can implement too. A thread cannot be killed: one whose call ran out of time is left
behind, and when too many are, no new call starts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from verlops.errors import ThrottledError
from verlops.ports import Reward, ScoreItem

MAX_STUCK = 8
"""Calls left behind: each holds a thread and its items for ever."""


class Pool(Protocol):
    """Runs one call of a scorer."""

    stuck: int
    """Calls that ran out of time and have not ended yet."""

    async def run(self, function: Reward, items: Sequence[ScoreItem], timeout: float) -> Any:
        """What the function returns or raises; TimeoutError after ``timeout`` seconds,
        ThrottledError when nothing can be run at all.
        """
        ...


class ThreadPool:
    """One daemon thread a call, ``concurrency`` calls at a time.

    Daemon threads, not ``concurrent.futures``: at exit that waits for a hung call.
    """

    def __init__(self, concurrency: int = 1) -> None:
        self.stuck = 0
        self._turns = asyncio.Semaphore(concurrency)

    async def run(self, function: Reward, items: Sequence[ScoreItem], timeout: float) -> Any:
        async with asyncio.timeout(timeout):
            async with self._turns:
                if self.stuck >= MAX_STUCK:
                    raise ThrottledError(f"{self.stuck} calls of the scorer never ended")
                return await self._call(function, items)

    async def _call(self, function: Reward, items: Sequence[ScoreItem]) -> Any:
        call = _Call(function, items, asyncio.get_running_loop())
        call.start()
        try:
            return await asyncio.shield(call.answer)
        except asyncio.CancelledError:
            self.stuck += 1
            call.answer.add_done_callback(self._ended)
            raise

    def _ended(self, answer: asyncio.Future[Any]) -> None:
        self.stuck -= 1
        if not answer.cancelled():
            answer.exception()  # looked at: too late to matter


class _Call(threading.Thread):
    def __init__(
        self, function: Reward, items: Sequence[ScoreItem], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(name="scorer", daemon=True)
        self.answer: asyncio.Future[Any] = loop.create_future()
        self._loop = loop
        self._function = function
        self._items = items

    def run(self) -> None:
        try:
            result = self._function(self._items)
        except BaseException as error:  # noqa: BLE001 - handed over to whoever waits
            self._tell(self.answer.set_exception, _harmless(error))
        else:
            self._tell(self.answer.set_result, result)

    def _tell(self, setter: Any, value: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set, setter, value)
        except RuntimeError:  # the loop has closed: nobody waits any more
            return

    def _set(self, setter: Any, value: Any) -> None:
        if not self.answer.done():
            setter(value)


def _harmless(error: BaseException) -> BaseException:
    """A scorer that says sys.exit() must not stop the loop that waits for it."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"the scorer raised {type(error).__name__}")
