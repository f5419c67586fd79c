"""The embedded log: Kafka's semantics in a folder of SQLite files, one a topic.

The default message engine, named ``sqlite`` in the registry; used by the controller, the
workers and the trainer of one machine at once. Needs no server, survives kill -9 of any
of them and power loss; never leaves this machine (SQLite must not be shared over a
network file system).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from verlops.config import Config
from verlops.errors import ConfigError, NotFoundError, VerlopsError
from verlops.model import QueueStats
from verlops.ports import Fetched, Position, TopicSpec
from verlops.queues.consumer import GroupConsumer, Revoke
from verlops.queues.partition import check_spec, is_name
from verlops.queues.sqlite_file import translated
from verlops.queues.sqlite_groups import SqliteGroup
from verlops.queues.sqlite_tables import create
from verlops.queues.sqlite_topic import Topic


class SqliteQueue:
    """The Queue port over ``folder``. One object serves all threads of a process.

    ``clock`` stamps records, in seconds since the epoch. Sessions are timed by
    ``lease_clock``: without one, a given ``clock`` does it (tests), else the machine's
    monotonic clock, which all processes share and which no correction of the time moves.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.time,
        lease_clock: Callable[[], float] | None = None,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._lease_clock = lease_clock or (time.monotonic if clock is time.time else clock)
        self._topics: dict[str, Topic] = {}
        self._consumers: weakref.WeakSet[GroupConsumer] = weakref.WeakSet()
        self._closed = False

    @classmethod
    def open(cls, config: Config) -> Self:
        """The log at ``queue.path``. Raises ConfigError without one."""
        if config.queue.path is None:
            raise ConfigError("queue.path: the sqlite queue needs a folder")
        return cls(Path(config.queue.path))

    def ensure(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing, grow partitions, take over settings."""
        for spec in specs:
            check_spec(spec)
        for spec in specs:
            topic = self._topic(spec.name)
            if not topic.file.path.exists():
                create(topic.file, spec, self._clock())
            topic.change(spec)

    def describe(self) -> dict[str, TopicSpec]:
        """Every topic in the folder."""
        with translated(self._folder):
            names = [path.stem for path in self._folder.glob("*.db")]
        return {name: self._topic(name).spec() for name in sorted(names)}

    def trim(self, topic: str, before: Mapping[int, int]) -> None:
        """Forget records below these offsets."""
        self._topic(topic).trim(before)

    def begin_offsets(self, topic: str) -> dict[int, int]:
        """Partition → first offset kept."""
        return {p: begin for p, (begin, _) in self._topic(topic).ranges().items()}

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Partition → the offset that the next record will get."""
        return {p: end for p, (_, end) in self._topic(topic).ranges().items()}

    def read(self, topic: str, partition: int, start: int, limit: int = 500) -> list[Fetched]:
        """Records from ``start`` on; below the first one kept: from that one."""
        return self._topic(topic).read(partition, start, limit)

    def publish(self, topic: str, records: Sequence[tuple[str, bytes | None]]) -> list[Position]:
        """Append all or nothing; durable on return. What is past its retention goes."""
        return self._topic(topic).publish(records, self._clock()) if records else []

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
            self._group(topic, group),
            member,
            session_timeout=session_timeout,
            max_poll_interval=max_poll_interval,
            on_revoke=on_revoke,
            now=self._lease_clock,
        )
        self._consumers.add(consumer)
        return consumer

    def committed(self, topic: str, group: str) -> dict[int, int | None]:
        """Partition → committed offset, None before any."""
        return self._group(topic, group).committed()

    def stats(self, topic: str, group: str) -> QueueStats:
        """The backlog; ``ok`` False when the topic is missing or can't be read."""
        try:
            return self._group(topic, group).stats()
        except VerlopsError:
            return QueueStats(ok=False)

    def close(self) -> None:
        """Close consumers (they leave their groups) and files. May be called again."""
        with ExitStack() as stack:  # one that fails keeps none of the others open
            for topic in self._topics.values():
                stack.callback(topic.file.close)
            stack.callback(setattr, self, "_closed", True)
            for consumer in list(self._consumers):
                stack.callback(consumer.close)

    def _topic(self, name: str) -> Topic:
        if self._closed:
            raise VerlopsError(f"the log at {self._folder} is closed")
        # setdefault: two threads must not end up with two write locks for one topic.
        return self._topics.get(name) or self._topics.setdefault(name, self._new(name))

    def _new(self, name: str) -> Topic:
        if not is_name(name):
            raise NotFoundError(f"'{name}' can be no topic")
        return Topic(self._folder / f"{name}.db")

    def _group(self, topic: str, group: str) -> SqliteGroup:
        return SqliteGroup(self._topic(topic), group, self._clock)
