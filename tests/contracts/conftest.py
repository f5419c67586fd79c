"""The implementations that the contract suites of queue and artifact store run over.

A new engine is one entry of ENGINES or STORES. A queue engine brings a ``Lab``: a way to
open the log again as another process would, and a way to let time pass.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from verlops.artifacts.local import LocalStore
from verlops.ports import ArtifactStore, Consumer, Fetched, Queue, TopicSpec
from verlops.queues.memory import MemoryQueue
from verlops.queues.sqlite import SqliteQueue

SESSION = 30.0
"""Session timeout of the members in these tests, in the engine's seconds."""

PATIENCE = 30.0
"""Real seconds after which a condition that should come true has failed."""


@dataclass
class VirtualTime:
    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Lab:
    """One engine under test.

    ``again`` opens the same log as another process would. ``pass_time`` lets seconds go
    by in which nobody polls and no heartbeat is sent, which is how a killed member looks.
    """

    queue: Queue
    again: Callable[[], Queue]
    pass_time: Callable[[float], None]
    session: float = SESSION
    topic: str = field(default_factory=lambda: f"t-{uuid.uuid4().hex[:8]}")

    def make(self, partitions: int = 1, **more) -> str:
        """The test's topic."""
        self.queue.ensure([TopicSpec(self.topic, partitions, **more)])
        return self.topic

    def join(self, member: str, *, queue: Queue | None = None, **more) -> Consumer:
        return (queue or self.queue).join(
            self.topic, "workers", member=member, session_timeout=SESSION, **more
        )

    def fill(self, count: int, start: int = 0) -> None:
        """Records ``k0`` to ``k<count − 1>`` with the number as value, over all partitions."""
        numbers = range(start, start + count)
        self.queue.publish(self.topic, [(f"k{n}", str(n).encode()) for n in numbers])

    def records(self) -> list[Fetched]:
        """All that is on the topic."""
        begins = self.queue.begin_offsets(self.topic)
        return [r for p, b in begins.items() for r in self.queue.read(self.topic, p, b, 10**6)]

    def poll_until(
        self,
        consumers: Sequence[Consumer],
        done: Callable[[list[Fetched]], bool],
        limit: int = 500,
    ) -> list[Fetched]:
        """Poll the consumers in turn until ``done`` of all records got; those records."""
        got: list[Fetched] = []
        deadline = time.monotonic() + PATIENCE
        while not done(got):
            assert time.monotonic() < deadline, f"not reached; got {len(got)} records"
            for consumer in consumers:
                got += consumer.poll(limit, 0.0)
        return got

    def balanced(self, consumers: Sequence[Consumer], *sizes: int) -> list[Fetched]:
        """Poll until the members own so many partitions each (in any order)."""
        return self.poll_until(
            consumers, lambda _: sorted(len(c.assignment()) for c in consumers) == sorted(sizes)
        )


def memory_lab(_: Path) -> Lab:
    clock = VirtualTime()
    queue = MemoryQueue(clock)
    return Lab(queue, lambda: queue, lambda s: _advance(clock, s))


def sqlite_lab(folder: Path) -> Lab:
    clock = VirtualTime()
    return Lab(
        SqliteQueue(folder, clock),
        lambda: SqliteQueue(folder, clock),
        lambda s: _advance(clock, s),
    )


def _advance(clock: VirtualTime, seconds: float) -> None:
    clock.now += seconds


ENGINES: dict[str, Callable[[Path], Lab]] = {"memory": memory_lab, "sqlite": sqlite_lab}
STORES: dict[str, Callable[[Path], ArtifactStore]] = {"local": LocalStore}


@pytest.fixture(params=sorted(ENGINES))
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    made = ENGINES[request.param](tmp_path / "log")
    opened: list[Queue] = [made.queue]
    inner = made.again

    def again() -> Queue:
        opened.append(inner())
        return opened[-1]

    made.again = again
    yield made
    for queue in opened:
        queue.close()


@pytest.fixture(params=sorted(STORES))
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    return STORES[request.param](tmp_path / "store")
