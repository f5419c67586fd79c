"""The SQL store beyond the contract: files, faults, layouts, other databases."""

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from verlops.config import Config, parse
from verlops.errors import ConfigError, CorruptError, LeaseHeldError, ThrottledError, VerlopsError
from verlops.model import Event, Memory
from verlops.state import engine as engine_module
from verlops.state import tables
from verlops.state.sql import PAGE, SqlState

NOW = 1_700_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def config(folder: Path | None, name: str = "demo") -> Config:
    state = {"path": str(folder)} if folder else {}
    return parse({"name": name, "state": state})


def test_open_makes_the_folder_and_what_was_saved_is_there_again(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    store = SqlState.open(config(folder))
    store.save(Memory(run="r"), events=[Event(at=NOW, kind="x")])
    store.close()
    again = SqlState.open(config(folder))
    assert again.load()[0].run == "r"
    assert [e.kind for e in again.events()] == ["x"]
    again.close()
    assert (folder / "state.db").is_file()


def test_open_needs_a_resolved_path() -> None:
    with pytest.raises(ConfigError, match=r"state\.path: not resolved"):
        SqlState.open(config(None))


def test_open_in_an_impossible_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(VerlopsError, match=r"cannot make .*/file/state"):
        SqlState.open(config(tmp_path / "file" / "state"))


def test_a_state_belongs_to_one_environment(tmp_path: Path) -> None:
    SqlState.open(config(tmp_path, "one")).close()
    with pytest.raises(ConfigError, match="is the state of 'one', not of 'two'"):
        SqlState.open(config(tmp_path, "two"))
    SqlState.open(config(tmp_path, "one")).close()


def test_the_state_of_a_newer_layout_is_left_alone(path: Path) -> None:
    SqlState(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    raw.close()
    with pytest.raises(ConfigError, match="has layout 99, this verlops reads 1"):
        SqlState(path)


def test_commits_are_durable_and_readers_do_not_wait(path: Path) -> None:
    store = SqlState(path)
    with engine_module.writing(store._engine, "here") as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000
        assert store.load() == (Memory(), [])  # while the write transaction is open
    store.close()


def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"this was never a database, whatever its name says" * 100)
    with pytest.raises(CorruptError) as caught:
        SqlState(path)
    text = str(caught.value)
    assert text.startswith(f"{path} is damaged: file is not a database (restore a copy of it")
    assert "\n" not in text


def test_a_damaged_page(path: Path) -> None:
    store = SqlState(path)
    store.save(Memory(run="x" * 50_000))
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="is damaged"):
        SqlState(path).load()


@pytest.mark.parametrize(
    "statement", ["UPDATE memory SET body = x'c1'", "UPDATE events SET data = x'93'"]
)
def test_a_body_that_does_not_decode(path: Path, statement: str) -> None:
    store = SqlState(path)
    store.save(Memory(run="r"), events=[Event(at=NOW, kind="x")])
    store.close()
    with sqlite3.connect(path) as raw:
        raw.execute(statement)
    raw.close()
    store = SqlState(path)
    with pytest.raises(CorruptError, match=r"state\.db is damaged: a stored .* does not decode"):
        (store.load(), list(store.events()))
    store.close()


def test_fields_of_a_newer_memory_are_ignored(path: Path) -> None:
    import msgspec

    store = SqlState(path)
    body = msgspec.msgpack.encode({"run": "r", "from_the_future": [1, 2]})
    with engine_module.writing(store._engine, "here") as connection:
        connection.execute(sa.insert(tables.memory), {"id": 1, "body": body})
    assert store.load()[0] == Memory(run="r")
    store.close()


def test_a_locked_database_is_a_reason_to_back_off(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "BUSY_S", 0.05)
    store = SqlState(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ThrottledError, match="is locked by another process"):
        store.save(Memory(run="r"))
    assert store.load()[0] == Memory()
    other.execute("ROLLBACK")
    other.close()
    store.save(Memory(run="r"))
    assert store.load()[0].run == "r"
    store.close()


def test_a_full_disk_leaves_the_last_state(path: Path) -> None:
    store = SqlState(path)
    store.save(Memory(run="before"))
    with store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 20")
    with pytest.raises(VerlopsError, match=r"state\.db: the disk is full \(make room"):
        store.put_blob("big", b"x" * 10_000_000)
    assert store.load()[0].run == "before"
    assert store.get_blob("big") is None
    store.close()


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    with pytest.raises(VerlopsError, match=r"state\.db cannot be opened for writing"):
        SqlState(tmp_path / "state.db")


def test_a_failed_save_leaves_nothing_behind(path: Path) -> None:
    store = SqlState(path)
    store.save(Memory(version=1))
    with pytest.raises(TypeError):
        store.save(Memory(version=2), events=[Event(at=NOW, kind="x", data={"bad": object()})])
    assert store.load()[0].version == 1
    assert list(store.events()) == []
    store.close()


def test_a_programming_error_keeps_its_trace(path: Path) -> None:
    store = SqlState(path)
    with (
        pytest.raises(sa.exc.OperationalError, match="no such column"),
        engine_module.reading(store._engine, "here") as connection,
    ):
        connection.exec_driver_sql("SELECT wrong FROM memory")
    store.close()


def test_events_are_read_across_pages(path: Path) -> None:
    store = SqlState(path)
    count = 2 * PAGE + 5
    store.save(Memory(), events=[Event(at=NOW + i, kind="x") for i in range(count)])
    assert [e.seq for e in store.events()] == list(range(1, count + 1))
    assert len(list(store.events(limit=PAGE + 1))) == PAGE + 1
    half_read = store.events()
    next(half_read)
    store.save(Memory(), events=[Event(at=NOW, kind="late")])  # an open reader blocks nobody
    assert [e.kind for e in half_read][-1] == "late"
    store.close()


def test_a_clock_set_back_is_written_down_at_the_first_look(path: Path) -> None:
    store = SqlState(path)
    store.acquire("controller", "a", 60.0, NOW)
    with pytest.raises(LeaseHeldError, match="for 60 s more"):
        store.acquire("controller", "b", 60.0, NOW - 3600)
    with pytest.raises(LeaseHeldError, match="for 20 s more"):
        store.acquire("controller", "b", 60.0, NOW - 3600 + 40)
    assert store.acquire("controller", "b", 60.0, NOW - 3600 + 60).fence == 2
    store.close()


def test_every_table_can_be_made_on_postgresql() -> None:
    dialect = postgresql.dialect()
    made = [
        str(sa.schema.CreateTable(table).compile(dialect=dialect)).split("(")[0].split()[-1]
        for table in tables.metadata.sorted_tables
    ]
    assert sorted(made) == ["blobs", "events", "intents", "leases", "memory", "meta", "rows"]
