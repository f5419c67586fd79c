"""The log in memory: the semantics of the embedded log for tests and simulations.

Named ``memory`` in the registry. All threads of one process may use one object; nothing
is kept, and no other process sees it. Sessions are timed as in ``SqliteQueue``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

from verlops.config import Config
from verlops.errors import NotFoundError, VerlopsError
from verlops.model import QueueStats
from verlops.ports import Fetched, Position, TopicSpec
from verlops.queues.consumer import GroupConsumer, Revoke
from verlops.queues.groups import Member, View, check_owner, plan
from verlops.queues.memory_topic import MemoryTopic
from verlops.queues.partition import check_spec, start_offset


class MemoryQueue:
    """The Queue port over dictionaries and lists."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        lease_clock: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._lease_clock = lease_clock or (time.monotonic if clock is time.time else clock)
        self._changed = threading.Condition(threading.RLock())
        self._topics: dict[str, MemoryTopic] = {}
        self._consumers: list[GroupConsumer] = []
        self._closed = False

    @classmethod
    def open(cls, config: Config) -> Self:  # noqa: ARG003 - nothing to configure
        """An empty log of its own for every call."""
        return cls()

    def ensure(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing, grow partitions, take over settings."""
        for spec in specs:
            check_spec(spec)
        with self._changed:
            for spec in specs:
                if spec.name not in self._topics:
                    self._topics[spec.name] = MemoryTopic(spec, self._clock())
                self._topics[spec.name].change(spec)

    def describe(self) -> dict[str, TopicSpec]:
        """Every topic."""
        with self._changed:
            return {name: topic.spec for name, topic in sorted(self._topics.items())}

    def trim(self, topic: str, before: Mapping[int, int]) -> None:
        """Forget records below these offsets."""
        with self._changed:
            logs = {p: self._topic(topic).partition(p) for p in before}
            for partition, offset in before.items():
                logs[partition].begin_at(offset)

    def begin_offsets(self, topic: str) -> dict[int, int]:
        """Partition → first offset kept."""
        with self._changed:
            return {p: begin for p, (begin, _) in self._topic(topic).ranges().items()}

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Partition → the offset that the next record will get."""
        with self._changed:
            return {p: end for p, (_, end) in self._topic(topic).ranges().items()}

    def read(self, topic: str, partition: int, start: int, limit: int = 500) -> list[Fetched]:
        """Records from ``start`` on; below the first one kept: from that one."""
        with self._changed:
            return self._topic(topic).partition(partition).read(start, limit)

    def publish(self, topic: str, records: Sequence[tuple[str, bytes | None]]) -> list[Position]:
        """Append all or nothing. What is past its retention goes."""
        if not records:
            return []
        with self._changed:
            places = self._topic(topic).append(records, self._clock())
            self._changed.notify_all()
            return places

    def join(
        self,
        topic: str,
        group: str,
        *,
        member: str,
        session_timeout: float = 30.0,
        max_poll_interval: float = 300.0,
        on_revoke: Revoke | None = None,
    ) -> GroupConsumer:
        """Become a member; partitions come with the first ``poll``."""
        consumer = GroupConsumer(
            MemoryGroup(self._changed, self._topic(topic), group, self._clock),
            member,
            session_timeout=session_timeout,
            max_poll_interval=max_poll_interval,
            on_revoke=on_revoke,
            now=self._lease_clock,
        )
        self._consumers.append(consumer)
        return consumer

    def committed(self, topic: str, group: str) -> dict[int, int | None]:
        """Partition → committed offset, None before any."""
        with self._changed:
            found = self._topic(topic)
            return {p: found.groups[group].commits.get(p) for p in found.ranges()}

    def stats(self, topic: str, group: str) -> QueueStats:
        """The backlog; ``ok`` False when there is no such topic."""
        try:
            with self._changed:
                return self._topic(topic).stats(group, self._clock())
        except VerlopsError:
            return QueueStats(ok=False)

    def close(self) -> None:
        """Close consumers. May be called again."""
        for consumer in self._consumers:
            consumer.close()
        self._closed = True

    def _topic(self, name: str) -> MemoryTopic:
        if self._closed:
            raise VerlopsError("the log is closed")
        if name not in self._topics:
            raise NotFoundError(f"no topic '{name}'", hint="`verlops up` makes the topics")
        return self._topics[name]


class MemoryGroup:
    """One group of one topic: the GroupLog behind a consumer."""

    def __init__(
        self,
        changed: threading.Condition,
        topic: MemoryTopic,
        group: str,
        clock: Callable[[], float],
    ) -> None:
        self._changed = changed
        self._topic = topic
        self._name = group
        self._group = topic.groups[group]
        self._clock = clock

    def view(self) -> View:
        with self._changed:
            members = tuple(self._group.members.values())
            return View(members, dict(self._group.owners), self._topic.ranges())

    def enter(self, member: Member) -> None:
        with self._changed:
            older = [s for s, m in self._group.members.items() if m.name == member.name]
            for session in older:
                self._group.remove(session)
            self._group.members[member.session] = member

    def leave(self, session: str) -> None:
        with self._changed:
            self._group.remove(session)

    def beat(self, session: str, now: float) -> None:
        with self._changed:
            self._group.beat(session, now)

    def settle(self, session: str, now: float) -> dict[int, int]:
        with self._changed:
            view = self.view()
            step = plan(view, session, now)
            if step.lost:
                return {}
            for expired in step.expired:
                self._group.remove(expired)
            for beating in {session, *step.ahead}:
                self._group.beat(beating, now)
            self._group.owners |= dict.fromkeys(step.take, session)
            commits = self._group.commits
            return {p: start_offset(commits.get(p), *view.ranges[p]) for p in step.take}

    def release(self, session: str, partitions: Iterable[int]) -> None:
        with self._changed:
            for partition in partitions:
                if self._group.owners.get(partition) == session:
                    del self._group.owners[partition]

    def commit(self, session: str, offsets: Mapping[int, int]) -> None:
        with self._changed:
            check_owner(self._topic.spec.name, self._name, offsets, self._group.owners, session)
            commits, known = self._group.commits, self._topic.ranges()
            starts = {p: start_offset(commits.get(p), *known[p]) for p in offsets}
            advance = sum(max(0, offset - starts[p]) for p, offset in offsets.items())
            self._group.traffic.add(self._clock(), advance)
            commits |= offsets

    def fetch(self, partition: int, start: int, limit: int) -> list[Fetched]:
        with self._changed:
            return self._topic.partition(partition).read(start, limit)

    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)
