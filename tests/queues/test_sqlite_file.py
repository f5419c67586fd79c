"""Damage, full disks, stolen locks and vanished files: clear errors, nothing lost."""

import fcntl
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from verlops.config import Config
from verlops.config.schema import Queue
from verlops.errors import ConfigError, CorruptError, NotFoundError, ThrottledError, VerlopsError
from verlops.ports import TopicSpec
from verlops.queues import sqlite_file, sqlite_topic
from verlops.queues.sqlite import SqliteQueue
from verlops.queues.sqlite_file import TopicFile
from verlops.queues.sqlite_tables import create


@pytest.fixture
def path(log: SqliteQueue, tmp_path: Path) -> Path:
    """The closed file of topic "t" with 300 records."""
    log.ensure([TopicSpec("t", 2)])
    log.publish("t", [(f"k{n}", b"value-%d" % n * 20) for n in range(300)])
    log.close()
    return tmp_path / "log" / "t.db"


def assert_damaged(path: Path) -> None:
    queue = SqliteQueue(path.parent)

    def read_all():
        for partition, end in queue.end_offsets("t").items():
            assert len(queue.read("t", partition, 0, 1000)) == end

    try:
        for call in (read_all, queue.describe):
            with pytest.raises(CorruptError, match=r"t\.db is damaged.*verlops up --new-run"):
                call()
        with pytest.raises(CorruptError, match=r"t\.db is damaged"):
            queue.publish("t", [("k", b"v")])
        assert queue.stats("t", "g").ok is False
    finally:
        queue.close()


@pytest.mark.parametrize("keep", [0, 1, 99, 100, 1000, 4096])
def test_a_truncated_file_is_named_and_what_to_do(path, keep):
    os.truncate(path, keep)
    assert_damaged(path)


def test_a_file_cut_in_the_middle_is_damaged(path):
    os.truncate(path, path.stat().st_size // 2)
    assert_damaged(path)


def test_a_file_of_something_else_is_damaged(path):
    path.write_bytes(b"hello, this is not a log\n" * 1000)
    assert_damaged(path)


def test_a_database_of_somebody_else_is_damaged(path):
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE records (id INTEGER)")
    db.close()
    assert_damaged(path)


def test_a_newer_layout_is_not_touched(path):
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    queue = SqliteQueue(path.parent)
    with pytest.raises(VerlopsError, match="layout 99") as caught:
        queue.end_offsets("t")
    assert not isinstance(caught.value, CorruptError)
    queue.close()


def test_a_changed_byte_of_a_value_is_found_and_the_record_named(path):
    data = bytearray(path.read_bytes())
    at = data.index(b"value-123value-123")
    data[at] ^= 1
    path.write_bytes(data)
    queue = SqliteQueue(path.parent)
    with pytest.raises(CorruptError, match=r"record \d+ of partition \d in .*t\.db"):
        [queue.read("t", partition, 0, 1000) for partition in (0, 1)]
    queue.close()


def test_a_full_disk_is_said_and_nothing_is_half_written(path, monkeypatch):
    set_up = sqlite_file._set_up

    def small(db, where):
        set_up(db, where)
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages + 2}")

    monkeypatch.setattr(sqlite_file, "_set_up", small)
    queue = SqliteQueue(path.parent)
    before = queue.end_offsets("t")
    with pytest.raises(VerlopsError, match="no space left for the log file"):
        queue.publish("t", [(f"new{n}", b"x" * 3000) for n in range(20)])
    assert queue.end_offsets("t") == before
    queue.publish("t", [("small", b"fits")])
    assert sum(queue.end_offsets("t").values()) == 301
    queue.close()


def test_a_file_that_may_not_grow_keeps_all_that_was_acknowledged(path, program):
    process = program("full", path.parent, "t")
    failed, last = process.stdout.read().splitlines()
    acknowledged = int(failed.split()[0])
    assert "VerlopsError cannot use the log file" in failed or "no space left" in failed
    assert acknowledged > 0
    queue = SqliteQueue(path.parent)
    records = [r for p in (0, 1) for r in queue.read("t", p, 0, 10_000)]
    assert len(records) == 300 + 1 + acknowledged + 1
    assert {str(n) for n in range(acknowledged)} <= {r.key for r in records}
    assert int(last) in {r.offset for r in records if r.key == "last"}
    queue.close()


def test_a_write_lock_that_somebody_keeps_is_throttled_not_waited_for_for_ever(path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY", 0.05)
    queue = SqliteQueue(path.parent)
    with path.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ThrottledError, match="held by another process"):
            queue.publish("t", [("k", b"v")])
        assert sum(queue.end_offsets("t").values()) == 300  # readers never wait
        assert queue.stats("t", "g").ok
    queue.publish("t", [("k", b"v")])
    queue.close()


def test_a_database_lock_of_a_foreign_tool_is_throttled(path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY", 0.05)
    queue = SqliteQueue(path.parent)
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(ThrottledError):
        queue.publish("t", [("k", b"v")])
    foreign.execute("ROLLBACK")
    foreign.close()
    queue.publish("t", [("k", b"v")])
    queue.close()


def test_two_threads_do_not_wait_for_each_other_for_ever(path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY", 0.05)
    queue = SqliteQueue(path.parent)
    file = queue._topic("t").file
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with file.exclusive():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(60)
    with pytest.raises(ThrottledError):
        queue.publish("t", [("k", b"v")])
    leave.set()
    thread.join()
    queue.publish("t", [("k", b"v")])
    queue.close()


def test_a_removed_topic_is_missed_and_a_new_one_in_its_place_is_used(path):
    queue = SqliteQueue(path.parent)
    member = queue.join("t", "g", member="m")
    assert len(member.poll(500)) == 300
    for file in path.parent.glob("t.db*"):
        file.unlink()
    for call in (
        lambda: queue.publish("t", [("k", b"lost?")]),
        lambda: queue.end_offsets("t"),
        lambda: member.poll(1),
    ):
        with pytest.raises(NotFoundError):
            call()
    assert queue.stats("t", "g").ok is False
    other = SqliteQueue(path.parent)
    other.ensure([TopicSpec("t", 2)])
    queue.publish("t", [("k", b"v")])
    assert sum(other.end_offsets("t").values()) == 1
    assert [r.value for r in member.poll(10)] == [b"v"]
    queue.close()
    other.close()


def test_an_old_write_ahead_log_is_not_played_into_a_new_file(log, tmp_path):
    log.ensure([TopicSpec("t", 1)])
    log.publish("t", [("old", b"old")])
    path = tmp_path / "log" / "t.db"
    old_wal = path.with_name("t.db-wal").read_bytes()
    assert old_wal
    log.close()
    path.unlink()
    path.with_name("t.db-wal").write_bytes(old_wal)
    queue = SqliteQueue(path.parent)
    queue.ensure([TopicSpec("t", 1)])
    assert queue.end_offsets("t") == {0: 0}
    queue.publish("t", [("new", b"new")])
    assert [r.key for r in queue.read("t", 0, 0)] == ["new"]
    queue.close()


def test_a_topic_made_meanwhile_is_left_as_it_is(path):
    """Between looking for the file and making it, another process may have made it."""
    file = TopicFile(path)
    create(file, TopicSpec("t", 5), 0.0)
    file.close()
    queue = SqliteQueue(path.parent)
    assert sum(queue.end_offsets("t").values()) == 300
    queue.close()
    assert not list(path.parent.glob(".new-*"))


def test_closing_with_the_folder_gone_still_closes_everything(path):
    queue = SqliteQueue(path.parent)
    member = queue.join("t", "g", member="m")
    member.poll(0)
    shutil.rmtree(path.parent)
    with pytest.raises(NotFoundError):
        queue.close()
    assert not member._heart.is_alive()
    queue.close()


def test_a_forked_child_uses_connections_of_its_own(path):
    queue = SqliteQueue(path.parent)
    before = queue.end_offsets("t")
    file = queue._topic("t").file
    inherited = list(file._idle)
    assert inherited
    child = os.fork()
    if child == 0:
        status = 1
        try:
            queue.publish("t", [("child", b"c")])
            status = any(link.db is old.db for link in file._idle for old in inherited)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    queue.publish("t", [("parent", b"p")])
    assert sum(queue.end_offsets("t").values()) == sum(before.values()) + 2
    queue.close()


def test_opened_from_a_config(tmp_path):
    config = Config(name="x", queue=Queue(path=str(tmp_path / "q")))
    queue = SqliteQueue.open(config)
    assert queue.describe() == {}
    assert not (tmp_path / "q").exists()  # a reader leaves no traces
    queue.ensure([TopicSpec("t", 1)])
    assert sorted(queue.describe()) == ["t"]
    queue.close()
    with pytest.raises(ConfigError, match=r"queue\.path"):
        SqliteQueue.open(Config(name="x"))


def test_a_folder_that_is_a_file_is_said(tmp_path):
    (tmp_path / "q").write_text("x")
    queue = SqliteQueue(tmp_path / "q")
    with pytest.raises(VerlopsError, match="cannot use the log file"):
        queue.ensure([TopicSpec("t", 1)])
    queue.close()


def test_a_long_trim_goes_in_steps_and_leaves_no_rows(log, monkeypatch, tmp_path):
    monkeypatch.setattr(sqlite_topic, "CHUNK", 10)
    log.ensure([TopicSpec("t", 2)])
    log.publish("t", [(f"k{n}", b"v") for n in range(95)])
    ends = log.end_offsets("t")
    log.trim("t", {0: ends[0] - 3, 1: ends[1]})
    db = sqlite3.connect(tmp_path / "log" / "t.db")
    assert db.execute("SELECT count(*) FROM records").fetchone() == (3,)
    db.close()


def test_the_settings_that_durability_rests_on(log):
    log.ensure([TopicSpec("t", 1)])
    with log._topic("t").file.read() as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
