"""The two engines give the same answers to the same calls, whatever these are."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verlops.errors import VerlopsError
from verlops.ports import TopicSpec
from verlops.queues.memory import MemoryQueue
from verlops.queues.sqlite import SqliteQueue

NAMES = st.sampled_from("abc")
TOPICS = st.sampled_from(["plain", "compact", "kept"])
RECORDS = st.lists(
    st.tuples(st.sampled_from(["k1", "k2", "k3", ""]), st.none() | st.binary(max_size=6)),
    max_size=6,
)
OFFSETS = st.dictionaries(st.integers(0, 3), st.integers(0, 12), max_size=3)
CALLS = st.one_of(
    st.tuples(st.just("publish"), TOPICS, RECORDS),
    st.tuples(st.just("publish"), TOPICS, RECORDS),
    st.tuples(st.just("trim"), TOPICS, OFFSETS),
    st.tuples(st.just("read"), TOPICS, st.integers(0, 4), st.integers(0, 9), st.integers(0, 5)),
    st.tuples(st.just("ensure"), TOPICS, st.integers(1, 4), st.booleans()),
    st.tuples(st.just("join"), TOPICS, NAMES),
    st.tuples(st.just("poll"), TOPICS, NAMES, st.integers(0, 5)),
    st.tuples(st.just("poll"), TOPICS, NAMES, st.integers(0, 5)),
    st.tuples(st.just("commit"), TOPICS, NAMES, OFFSETS),
    st.tuples(st.just("leave"), TOPICS, NAMES),
    st.tuples(st.just("pause"), TOPICS, NAMES, st.lists(st.integers(0, 3), max_size=2)),
    st.tuples(st.just("pass"), st.sampled_from([1.0, 20.0, 31.0, 4000.0, 90_000.0, -50.0])),
)


class Driver:
    """Calls on one engine, with the answers as plain data."""

    def __init__(self, make):
        self.now = 1_700_000_000.0
        self.queue = make(lambda: self.now)
        self.queue.ensure(
            [
                TopicSpec("plain", 2),
                TopicSpec("compact", 1, compact=True),
                TopicSpec("kept", 2, retention_s=3600.0, max_bytes=5),
            ]
        )
        self.members = {}

    def call(self, name, *arguments):
        try:
            answer = getattr(self, name)(*arguments)
        except VerlopsError as error:
            answer = type(error).__name__
        return answer, [self.state(topic) for topic in ("plain", "compact", "kept")]

    def state(self, topic):
        queue = self.queue
        begins = queue.begin_offsets(topic)
        records = [queue.read(topic, p, 0) for p in begins]
        members = {k: sorted(m.assignment()) for k, m in self.members.items() if k[0] == topic}
        numbers = (begins, queue.end_offsets(topic), queue.committed(topic, "g"))
        return numbers, queue.stats(topic, "g"), queue.describe()[topic], records, members

    def publish(self, topic, records):
        return self.queue.publish(topic, records)

    def trim(self, topic, before):
        self.queue.trim(topic, before)

    def read(self, topic, partition, start, limit):
        return self.queue.read(topic, partition, start, limit)

    def ensure(self, topic, partitions, compact):
        spec = self.queue.describe()[topic]._replace(partitions=partitions, compact=compact)
        self.queue.ensure([spec])

    def join(self, topic, name):
        self.members[topic, name] = self.queue.join(topic, "g", member=name, session_timeout=30.0)

    def poll(self, topic, name, limit):
        member = self.members.get((topic, name))
        return member and member.poll(limit)

    def commit(self, topic, name, offsets):
        if (topic, name) in self.members:
            self.members[topic, name].commit(offsets)

    def pause(self, topic, name, partitions):
        if (topic, name) in self.members:
            self.members[topic, name].pause(partitions)

    def leave(self, topic, name):
        if (topic, name) in self.members:
            self.members.pop((topic, name)).close()

    def __getattr__(self, name):
        if name == "pass":
            return self.let_pass
        raise AttributeError(name)

    def let_pass(self, seconds):
        self.now += seconds


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(CALLS, min_size=1, max_size=40))
def test_engines_agree(calls):
    with tempfile.TemporaryDirectory() as folder:
        memory = Driver(MemoryQueue)
        sqlite = Driver(lambda clock: SqliteQueue(Path(folder), clock))
        try:
            for call in calls:
                assert memory.call(*call) == sqlite.call(*call), call
        finally:
            memory.queue.close()
            sqlite.queue.close()


def test_the_comparison_sees_a_difference():
    memory, other = Driver(MemoryQueue), Driver(MemoryQueue)
    other.queue.publish("plain", [("k", b"v")])
    with pytest.raises(AssertionError):
        assert memory.call("pass", 1.0) == other.call("pass", 1.0)
