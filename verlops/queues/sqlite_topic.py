"""One topic in its SQLite file: records, offsets, compaction, trimming, counters.

Used by ``SqliteQueue`` alone; groups, in the same file, are the business of
``sqlite_groups``. Knows the tables through ``sqlite_tables``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from verlops.errors import CorruptError
from verlops.ports import Fetched, Position, TopicSpec
from verlops.queues.partition import TOMBSTONES_KEPT, check_sizes, last_of_each, positive_hash
from verlops.queues.sqlite_file import TopicFile
from verlops.queues.sqlite_tables import (
    INCOMING,
    checksum,
    configure,
    count,
    offset_of,
    one_range,
    ranges,
    row_id,
    settings,
)

CHUNK = 1000
"""Rows deleted in one transaction: others wait for a writer no longer than that."""


class Topic:
    """The records of one topic. Errors as ``TopicFile`` says."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.file = TopicFile(path)

    def spec(self) -> TopicSpec:
        """How the topic is now."""
        with self.file.read() as db:
            compact, retention_s, max_bytes, _ = settings(db)
            return TopicSpec(self.name, len(ranges(db)), compact, retention_s, max_bytes)

    def change(self, spec: TopicSpec) -> None:
        """Take over the settings and grow; partitions never become fewer."""
        now = self.spec()
        if spec._replace(partitions=max(spec.partitions, now.partitions)) == now:
            return
        with self.file.write() as db:
            configure(db, spec)

    def publish(self, records: Sequence[tuple[str, bytes | None]], now: float) -> list[Position]:
        """Append in one transaction."""
        hashes = [positive_hash(key) for key, _ in records]
        sums = [checksum(key, value) for key, value in records]
        with self.file.write() as db:
            known = settings(db)
            check_sizes(self.name, records, known.max_bytes)
            places = _places(hashes, {p: end for p, (_, end) in ranges(db).items()})
            db.executemany(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?)",
                (
                    (row_id(*place), key, value, now, crc)
                    for place, (key, value), crc in zip(places, records, sums, strict=True)
                ),
            )
            db.executemany(
                'UPDATE partitions SET "end" = ? WHERE partition = ?',
                [(offset + 1, partition) for partition, offset in dict(places).items()],
            )
            count(db, INCOMING, len(records), now)
            if known.compact:
                _compact(db, places, [key for key, _ in records], now)
            if known.retention_s is not None:
                _expire(db, now - known.retention_s, max(CHUNK, 2 * len(records)))
        return places

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Partition → (first offset kept, next offset)."""
        with self.file.read() as db:
            return ranges(db)

    def read(self, partition: int, start: int, limit: int) -> list[Fetched]:
        """Up to ``limit`` records from ``start`` (or the first one kept) on."""
        with self.file.read() as db:
            begin, end = one_range(db, self.name, partition)
            rows = db.execute(
                "SELECT id, key, value, timestamp, crc FROM records"
                " WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
                (row_id(partition, max(start, begin)), row_id(partition, end), max(0, limit)),
            ).fetchall()
        return [self._fetched(partition, *row) for row in rows]

    def trim(self, before: Mapping[int, int]) -> None:
        """Forget records below these offsets; what is past the end is the end."""
        with self.file.write() as db:
            for partition, offset in before.items():
                begin, end = one_range(db, self.name, partition)
                _begin_at(db, partition, max(begin, min(offset, end)))
        for partition in before:
            # Readers stop at the new beginning already; the rows go in small steps.
            while self._sweep(partition) == CHUNK:
                pass

    def _sweep(self, partition: int) -> int:
        with self.file.write() as db:
            begin, _ = one_range(db, self.name, partition)
            return db.execute(
                "DELETE FROM records WHERE id IN"
                " (SELECT id FROM records WHERE id >= ? AND id < ? LIMIT ?)",
                (row_id(partition, 0), row_id(partition, begin), CHUNK),
            ).rowcount

    def _fetched(
        self, partition: int, row: int, key: str, value: bytes | None, at: float, crc: int
    ) -> Fetched:
        offset = offset_of(row)
        if checksum(key, value) != crc:
            raise CorruptError(
                f"record {offset} of partition {partition} in {self.file.path} does not have "
                "the checksum it was written with",
                hint="the disk or a copy is bad: restore the file, or trim the topic past it",
            )
        return Fetched(self.name, partition, offset, key, value, at)


def _places(hashes: Sequence[int], ends: dict[int, int]) -> list[Position]:
    places = []
    for value in hashes:
        partition = value % len(ends)
        places.append(Position(partition, ends[partition]))
        ends[partition] += 1
    return places


def _compact(
    db: sqlite3.Connection, places: Sequence[Position], keys: Sequence[str], now: float
) -> None:
    """Keep the newest record of each key just written; drop deletions known long enough."""
    newest = ((keys[i], places[i]) for i in last_of_each(keys))
    db.executemany(
        "DELETE FROM records WHERE key = ? AND id >= ? AND id < ?",
        [(key, row_id(place.partition, 0), row_id(*place)) for key, place in newest],
    )
    db.execute(
        "DELETE FROM records WHERE value IS NULL AND timestamp < ?", (now - TOMBSTONES_KEPT,)
    )


def _expire(db: sqlite3.Connection, horizon: float, most: int) -> None:
    """Forget up to ``most`` records of each partition that are older than ``horizon``."""
    for partition, (begin, end) in ranges(db).items():
        rows = db.execute(
            "SELECT id, timestamp FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (row_id(partition, begin), row_id(partition, end), most),
        )
        old = None
        for row, timestamp in rows:
            if timestamp >= horizon:
                break
            old = row
        if old is not None:
            db.execute("DELETE FROM records WHERE id >= ? AND id <= ?", (row_id(partition, 0), old))
            _begin_at(db, partition, offset_of(old) + 1)


def _begin_at(db: sqlite3.Connection, partition: int, offset: int) -> None:
    db.execute('UPDATE partitions SET "begin" = ? WHERE partition = ?', (offset, partition))
