"""One member of a consumer group, over the storage of any embedded engine.

Made by ``SqliteQueue.join`` and ``MemoryQueue.join``. Holds positions, pauses and the
heartbeat thread; whatever several processes must agree on lies behind ``GroupLog``.
Never commits by itself. ``poll``, ``pause`` and ``resume`` belong to one thread;
``commit``, ``assignment`` and ``close`` may be called from any.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from verlops.errors import ConfigError, FencedError, ThrottledError, VerlopsError
from verlops.ports import Fetched
from verlops.queues.groups import Member, View, plan, replaced
from verlops.queues.partition import check_offsets

BEATS_A_SESSION = 3
FIRST_WAIT, LAST_WAIT = 0.002, 0.05
"""Seconds between two looks at an idle log while ``poll`` waits."""

Revoke = Callable[[frozenset[int]], None]


class GroupLog(Protocol):
    """One topic as one group sees it. Every method is one transaction."""

    def view(self) -> View: ...

    def enter(self, member: Member) -> None:
        """Add a member; an older one of the same name is removed."""
        ...

    def leave(self, session: str) -> None: ...

    def beat(self, session: str, now: float) -> None: ...

    def settle(self, session: str, now: float) -> dict[int, int]:
        """Do the member's ``plan`` except giving; partition taken → where it starts."""
        ...

    def release(self, session: str, partitions: Iterable[int]) -> None: ...

    def commit(self, session: str, offsets: Mapping[int, int]) -> None:
        """Raises FencedError unless the session owns every partition."""
        ...

    def fetch(self, partition: int, start: int, limit: int) -> list[Fetched]: ...

    def wait(self, seconds: float) -> None:
        """Return after so long, or sooner when something was published."""
        ...


class GroupConsumer:
    """The Consumer port.

    A member that lost its session (no heartbeat, or no ``poll`` for
    ``max_poll_interval``) joins again inside its next ``poll``, as a new member: the
    partitions are gone from ``assignment`` without ``on_revoke``, since nothing could
    be committed any more, and come back, if at all, from the committed offset. One
    replaced by a younger member of the same name gets FencedError from ``poll``.
    ``poll(0)`` fetches nothing and only keeps the membership alive.
    """

    def __init__(
        self,
        log: GroupLog,
        member: str,
        *,
        session_timeout: float,
        max_poll_interval: float,
        on_revoke: Revoke | None,
        now: Callable[[], float],
    ) -> None:
        if session_timeout <= 0:
            raise ConfigError(f"a session timeout of {session_timeout} s is not positive")
        self._log = log
        self._name = member
        self._timeout = session_timeout
        self._max_poll_interval = max_poll_interval
        self._on_revoke = on_revoke
        self._now = now
        self._positions: dict[int, int] = {}
        self._paused: frozenset[int] = frozenset()
        self._turn = 0
        self._left = ""
        self._fault: VerlopsError | None = None
        self._stopped = threading.Event()
        self._enter()
        self._heart = threading.Thread(
            target=self._beat_on, name=f"heartbeat {member}", daemon=True
        )
        self._heart.start()

    def poll(self, limit: int, timeout: float = 0.0) -> list[Fetched]:
        """New records of owned, unpaused partitions; waits up to ``timeout`` for one."""
        deadline = time.monotonic() + timeout
        pause = FIRST_WAIT
        while True:
            records = self._fetch(self._keep_place(), limit)
            left = deadline - time.monotonic()
            if records or left <= 0:
                return records
            self._log.wait(min(pause, left))
            pause = min(2 * pause, LAST_WAIT)

    def assignment(self) -> frozenset[int]:
        """The partitions owned as of the last ``poll``."""
        return frozenset(self._positions)

    def pause(self, partitions: Sequence[int]) -> None:
        """Fetch nothing from these until ``resume``; ends when a partition is lost."""
        self._paused |= self.assignment().intersection(partitions)

    def resume(self, partitions: Sequence[int]) -> None:
        """Undo ``pause``."""
        self._paused -= frozenset(partitions)

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Partition → next offset to read. Raises FencedError; nothing is committed then."""
        self._check_open()
        check_offsets(offsets)
        if offsets:
            self._log.commit(self._session, offsets)

    def close(self) -> None:
        """Leave the group at once; commits nothing. A second call does nothing."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if threading.current_thread() is not self._heart:
            self._heart.join()
        self._positions = {}
        self._log.leave(self._session)

    def _keep_place(self) -> View:
        """Keep or regain the membership, hand over and take over; the group as it was."""
        self._check_open()
        now = self._polled_at = self._now()
        view = self._log.view()
        step = plan(view, self._session, now)
        if step.lost:
            self._rejoin(view)
            view = self._log.view()
            step = plan(view, self._session, now)
        if step.give:
            self._give(step.give)
        if step.writes() or self._beat_due(now):
            self._positions |= self._log.settle(self._session, now)
            self._beat_at = now
        return view

    def _fetch(self, view: View, limit: int) -> list[Fetched]:
        """Up to ``limit`` records, beginning with another partition each time."""
        found: list[Fetched] = []
        for partition in self._waiting(view):
            want = limit - len(found)
            if want <= 0:
                break
            start, end = self._positions[partition], view.ranges[partition][1]
            batch = self._log.fetch(partition, start, want)
            found += batch
            after = batch[-1].offset + 1 if batch else start
            # Fewer than wanted: what is missing below the end that we saw was compacted
            # or trimmed away, and looking for it again would cost every later poll.
            self._positions[partition] = after if len(batch) == want else max(after, end)
        self._turn += bool(found)
        return found

    def _waiting(self, view: View) -> list[int]:
        owned = sorted(self._positions.keys() - self._paused)
        turn = self._turn % len(owned) if owned else 0
        turned = owned[turn:] + owned[:turn]
        return [p for p in turned if self._positions[p] < view.ranges.get(p, (0, 0))[1]]

    def _give(self, partitions: frozenset[int]) -> None:
        if self._on_revoke is not None:
            self._on_revoke(partitions)
        self._log.release(self._session, partitions)
        self._forget(partitions)

    def _rejoin(self, view: View) -> None:
        self._forget(self.assignment())
        if replaced(view.members, self._name):
            raise FencedError(
                f"member '{self._name}' was replaced by a newer one of the same name",
                hint="give every consumer of a group a name of its own",
            )
        self._enter()

    def _enter(self) -> None:
        self._session = uuid.uuid4().hex
        self._polled_at = self._beat_at = self._now()
        self._log.enter(Member(self._session, self._name, self._timeout, self._beat_at))

    def _forget(self, partitions: frozenset[int]) -> None:
        self._positions = {p: o for p, o in self._positions.items() if p not in partitions}
        self._paused -= partitions

    def _check_open(self) -> None:
        if self._stopped.is_set():
            raise VerlopsError(f"consumer '{self._name}' is closed")
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _beat_due(self, now: float) -> bool:
        # The thread beats by real time; this keeps the session alive by the log's clock.
        return not 0 <= now - self._beat_at < self._timeout / BEATS_A_SESSION

    def _beat_on(self) -> None:
        while not self._stopped.wait(self._timeout / BEATS_A_SESSION):
            try:
                self._beat()
            except ThrottledError:
                continue  # a busy log: the session allows for two missed beats
            except VerlopsError as error:
                self._fault = error  # raised by the next poll or commit

    def _beat(self) -> None:
        session, now = self._session, self._now()
        if now - self._polled_at <= self._max_poll_interval:
            self._log.beat(session, now)
            self._beat_at = now
        elif self._left != session:
            self._log.leave(session)
            self._left = session
