"""The tables of a topic's SQLite file: their making, and the reads and writes that both
records and groups need.

Used by ``sqlite_topic`` and ``sqlite_groups``. Functions that take a connection run
inside the caller's transaction and never begin or end one. A record's row id is
``partition << 40 | offset``, so that a partition is one range of one B-tree and an append
touches nothing else.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple

from verlops.errors import NotFoundError
from verlops.ports import TopicSpec
from verlops.queues.partition import RATE_BUCKET, RATE_WINDOW, bucket
from verlops.queues.sqlite_file import APPLICATION, FORMAT, TopicFile, translated

OFFSET_BITS = 40
INCOMING = ""
"""The traffic counter of what is published; those of commits are named by their group."""

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE settings (compact INTEGER, retention_s REAL, max_bytes INTEGER, created_at REAL);
CREATE TABLE partitions (partition INTEGER PRIMARY KEY, "begin" INTEGER, "end" INTEGER);
CREATE TABLE records (id INTEGER PRIMARY KEY, key TEXT, value BLOB, timestamp REAL, crc INTEGER);
CREATE TABLE traffic (name TEXT, bucket INTEGER, records INTEGER, PRIMARY KEY (name, bucket))
    WITHOUT ROWID;
CREATE TABLE members (grp TEXT, session TEXT, name TEXT, timeout REAL, beat_at REAL,
    PRIMARY KEY (grp, session)) WITHOUT ROWID;
CREATE TABLE owners (grp TEXT, partition INTEGER, session TEXT,
    PRIMARY KEY (grp, partition)) WITHOUT ROWID;
CREATE TABLE commits (grp TEXT, partition INTEGER, "offset" INTEGER,
    PRIMARY KEY (grp, partition)) WITHOUT ROWID;
"""


class Settings(NamedTuple):
    """What a topic was made with."""

    compact: bool
    retention_s: float | None
    max_bytes: int | None
    created_at: float


def create(file: TopicFile, spec: TopicSpec, now: float) -> None:
    """Make the file of a topic, whole or not at all; one that is there is left alone."""
    path = file.path
    with translated(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as folder:
            draft = Path(folder) / path.name
            _draft(draft, spec, now)
            with file.exclusive():
                if not path.exists():
                    _move_in(draft, path)


def row_id(partition: int, offset: int) -> int:
    """The row of a record; of ``begin`` and ``end``: the bounds of a partition's rows."""
    return partition << OFFSET_BITS | offset


def offset_of(row: int) -> int:
    """The offset of a row."""
    return row & ((1 << OFFSET_BITS) - 1)


def checksum(key: str, value: bytes | None) -> int:
    """crc32 of key and value."""
    return zlib.crc32(value or b"", zlib.crc32(key.encode()))


def settings(db: sqlite3.Connection) -> Settings:
    """The topic's settings."""
    compact, retention_s, max_bytes, created_at = db.execute("SELECT * FROM settings").fetchone()
    return Settings(bool(compact), retention_s, max_bytes, created_at)


def ranges(db: sqlite3.Connection) -> dict[int, tuple[int, int]]:
    """Partition → (first offset kept, next offset)."""
    rows = db.execute('SELECT partition, "begin", "end" FROM partitions')
    return {partition: (begin, end) for partition, begin, end in rows}


def one_range(db: sqlite3.Connection, topic: str, partition: int) -> tuple[int, int]:
    """The range of one partition. Raises NotFoundError."""
    row: tuple[int, int] | None = db.execute(
        'SELECT "begin", "end" FROM partitions WHERE partition = ?', (partition,)
    ).fetchone()
    if row is None:
        raise NotFoundError(f"topic '{topic}' has no partition {partition}")
    return row


def count(db: sqlite3.Connection, name: str, records: int, now: float) -> None:
    """Add to a traffic counter; counters that no rate needs any more go."""
    this = bucket(now)
    db.execute(
        "INSERT INTO traffic VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET records = records + excluded.records",
        (name, this, records),
    )
    db.execute(
        "DELETE FROM traffic WHERE name = ? AND bucket < ?",
        (name, this - 2 * RATE_WINDOW // RATE_BUCKET),
    )


def counts(db: sqlite3.Connection, name: str) -> dict[int, int]:
    """A traffic counter by bucket."""
    return dict(db.execute("SELECT bucket, records FROM traffic WHERE name = ?", (name,)))


def configure(db: sqlite3.Connection, spec: TopicSpec) -> None:
    """Set a topic's settings and add the partitions that it lacks."""
    have = len(ranges(db))
    db.executemany(
        "INSERT INTO partitions VALUES (?, 0, 0)", [(p,) for p in range(have, spec.partitions)]
    )
    db.execute(
        "UPDATE settings SET compact = ?, retention_s = ?, max_bytes = ?",
        (spec.compact, spec.retention_s, spec.max_bytes),
    )
    if spec.compact:
        db.execute("CREATE INDEX IF NOT EXISTS records_by_key ON records (key)")
        db.execute(
            "DELETE FROM records WHERE EXISTS (SELECT 1 FROM records AS newer WHERE"
            " newer.key = records.key AND newer.id > records.id"
            f" AND newer.id >> {OFFSET_BITS} = records.id >> {OFFSET_BITS})"
        )


def _draft(path: Path, spec: TopicSpec, now: float) -> None:
    """A whole topic file in journal mode WAL, at a place that nobody looks at."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(_SCHEMA)
        db.execute("INSERT INTO settings VALUES (0, NULL, NULL, ?)", (now,))
        configure(db, spec)
    finally:
        db.close()


def _move_in(draft: Path, path: Path) -> None:
    """Give a draft its name, durably; a write-ahead log of a file that is gone goes too."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
