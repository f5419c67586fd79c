"""Heartbeats, replacement and faults of a member, on the engines by a virtual clock."""

import pytest

from verlops.errors import ConfigError, FencedError, ThrottledError, VerlopsError
from verlops.ports import TopicSpec
from verlops.queues.memory import MemoryQueue
from verlops.queues.sqlite import SqliteQueue

SESSION = 30.0


@pytest.fixture(params=["memory", "sqlite"])
def queue(request, tmp_path, clock):
    made = MemoryQueue(clock) if request.param == "memory" else SqliteQueue(tmp_path, clock)
    made.ensure([TopicSpec("t", 2)])
    yield made
    made.close()


def join(queue, member, **more):
    return queue.join("t", "g", **{"member": member, "session_timeout": SESSION, **more})


def test_heartbeats_keep_a_member_that_does_not_poll(queue, clock):
    busy, other = join(queue, "busy"), join(queue, "other")
    busy.poll(0)
    busy.poll(0)
    held = busy.assignment()
    assert held
    for _ in range(12):  # four minutes, within max_poll_interval
        clock.now += 20
        busy._beat()
        other.poll(0)
    assert other.assignment() == {0, 1} - held
    busy.commit(dict.fromkeys(held, 0))


def test_a_member_that_does_not_poll_for_too_long_leaves_by_itself(queue, clock):
    stuck, other = join(queue, "stuck", max_poll_interval=300.0), join(queue, "other")
    stuck.poll(0)
    for _ in range(16):
        clock.now += 19
        stuck._beat()
        other.poll(0)
    assert other.assignment() == {0, 1}
    with pytest.raises(FencedError):
        stuck.commit({0: 0})
    stuck._beat()
    for _ in range(3):
        stuck.poll(0)
        other.poll(0)
    assert len(stuck.assignment()) == len(other.assignment()) == 1


def test_the_heartbeat_thread_beats(queue, clock, until):
    member = queue.join("t", "g", member="m", session_timeout=0.03)
    view = member._log.view
    clock.now += 0.01
    until(lambda: view().members[0].beat_at == clock.now)
    clock.now += 0.01
    until(lambda: view().members[0].beat_at == clock.now)


def test_a_clock_that_jumps_back_does_not_keep_the_dead_alive(queue, clock):
    dead, heir = join(queue, "dead"), join(queue, "heir")
    dead.poll(0)
    heir.poll(0)
    clock.now -= 100_000
    heir.poll(0)
    clock.now += SESSION - 1
    heir.poll(0)
    assert len(heir.assignment()) == 1
    clock.now += 2
    heir.poll(0)
    assert heir.assignment() == {0, 1}


def test_a_clock_that_jumps_back_does_not_kill_the_living(queue, clock):
    members = [join(queue, "a"), join(queue, "b")]
    for _ in range(2):
        for member in members:
            member.poll(0)
    before = [member.assignment() for member in members]
    clock.now -= 100_000
    for _ in range(10):
        clock.now += 15
        for member in members:
            member.poll(0)
    assert [member.assignment() for member in members] == before


def test_a_younger_member_of_the_same_name_replaces_the_older(queue):
    older = join(queue, "same")
    older.poll(0)
    younger = join(queue, "same")
    younger.poll(0)
    assert younger.assignment() == {0, 1}
    with pytest.raises(FencedError):
        older.commit({0: 0})
    for _ in range(2):
        with pytest.raises(FencedError, match="'same' was replaced"):
            older.poll(0)
    assert older.assignment() == frozenset()
    younger.commit({0: 0})
    older.close()
    younger.commit({1: 0})


def test_an_on_revoke_that_fails_moves_nothing(queue):
    def on_revoke(partitions):
        raise RuntimeError("cannot finish")

    first = join(queue, "a", on_revoke=on_revoke)
    first.poll(0)
    second = join(queue, "b")
    with pytest.raises(RuntimeError, match="cannot finish"):
        first.poll(0)
    second.poll(0)
    assert second.assignment() == frozenset()
    assert first.assignment() == {0, 1}


def test_a_fault_of_the_heartbeat_comes_out_of_the_next_poll(queue, until, monkeypatch):
    member = join(queue, "m", session_timeout=0.03)

    def beat(session, now):
        raise VerlopsError("no space left")

    monkeypatch.setattr(member._log, "beat", beat)
    until(lambda: member._fault is not None)
    with pytest.raises(VerlopsError, match="no space left"):
        member.poll(0)
    until(lambda: member._fault is not None)
    with pytest.raises(VerlopsError, match="no space left"):
        member.commit({0: 1})


def test_a_busy_log_costs_one_heartbeat_only(queue, until, monkeypatch):
    member = join(queue, "m", session_timeout=0.03)
    beats = []

    def beat(session, now):
        beats.append(now)
        raise ThrottledError("busy")

    monkeypatch.setattr(member._log, "beat", beat)
    until(lambda: len(beats) >= 3)
    member.poll(0)
    member.close()


def test_closing_the_queue_makes_its_members_leave(clock, tmp_path):
    queue = SqliteQueue(tmp_path, clock)
    queue.ensure([TopicSpec("t", 2)])
    member = join(queue, "a")
    member.poll(0)
    queue.close()
    assert not member._heart.is_alive()
    again = SqliteQueue(tmp_path, clock)
    other = join(again, "b")
    other.poll(0)
    assert other.assignment() == {0, 1}
    again.close()


def test_a_session_timeout_must_be_positive(queue):
    with pytest.raises(ConfigError, match="session timeout"):
        join(queue, "a", session_timeout=0)


def test_rates_and_age_by_the_clock(queue, clock):
    clock.now = 1_700_000_000.0
    queue.publish("t", [(str(n), b"") for n in range(60)])
    member = join(queue, "a")
    records = member.poll(60)
    clock.now += 30
    ends = {r.partition: r.offset + 1 for r in records}
    member.commit({0: ends[0]})
    stats = queue.stats("t", "g")
    assert stats.in_per_s == pytest.approx(2.0)
    assert stats.out_per_s == pytest.approx(ends[0] / 30)
    assert stats.oldest_age_s == 30.0
    clock.now += 300
    stats = queue.stats("t", "g")
    assert (stats.in_per_s, stats.out_per_s, stats.oldest_age_s) == (0.0, 0.0, 330.0)
    clock.now -= 100_000
    assert queue.stats("t", "g").oldest_age_s == 0.0


def test_a_trimmed_end_is_looked_for_only_once(queue, monkeypatch):
    member = join(queue, "a")
    member.poll(0)
    queue.publish("t", [(str(n), b"") for n in range(20)])
    queue.trim("t", queue.end_offsets("t"))
    assert member.poll(10) == []
    monkeypatch.setattr(member._log, "fetch", None)
    assert member.poll(10) == []


def test_retention_forgets_old_records_when_something_is_published(queue, clock):
    queue.ensure([TopicSpec("r", 2, retention_s=100.0)])
    queue.publish("r", [(str(n), b"old") for n in range(20)])
    ends = queue.end_offsets("r")
    clock.now += 60
    queue.publish("r", [("x", b"new")])
    assert queue.begin_offsets("r") == {0: 0, 1: 0}
    clock.now += 60
    ((partition, _),) = queue.publish("r", [("x", b"newest")])
    begins = queue.begin_offsets("r")
    assert begins == ends
    assert [r.value for r in queue.read("r", partition, 0)] == [b"new", b"newest"]
    assert queue.stats("r", "g").lag == 2


def test_counters_are_kept_only_as_long_as_a_rate_needs_them(queue, clock):
    for _ in range(200):
        clock.now += 5
        queue.publish("t", [("k", b"")])
    assert queue.stats("t", "g").in_per_s == pytest.approx(0.2, rel=0.1)
    if isinstance(queue, MemoryQueue):
        assert len(queue._topic("t")._traffic.counts) <= 25
    else:
        with queue._topic("t").file.read() as db:
            assert db.execute("SELECT count(*) FROM traffic").fetchone()[0] <= 25


def test_compaction_removes_what_is_superseded_and_old_deletions(queue, clock):
    queue.ensure([TopicSpec("c", 1, compact=True)])
    queue.publish("c", [("a", b"1"), ("b", b"1"), ("a", b"2"), ("a", b"3")])
    assert [(r.offset, r.key, r.value) for r in queue.read("c", 0, 0)] == [
        (1, "b", b"1"),
        (3, "a", b"3"),
    ]
    queue.publish("c", [("b", None)])
    assert [(r.key, r.value) for r in queue.read("c", 0, 0)] == [("a", b"3"), ("b", None)]
    clock.now += 86_401
    queue.publish("c", [("a", b"4")])
    assert [(r.offset, r.key, r.value) for r in queue.read("c", 0, 0)] == [(5, "a", b"4")]
    assert queue.end_offsets("c") == {0: 6}


def test_compaction_can_be_turned_on_later(queue):
    queue.publish("t", [("a", b"1"), ("a", b"2"), ("b", b"1"), ("a", b"3")])
    queue.ensure([TopicSpec("t", 2, compact=True)])
    left = [r for p in (0, 1) for r in queue.read("t", p, 0)]
    assert {r.key: r.value for r in left} == {"a": b"3", "b": b"1"}
    assert len(left) == 2
