"""Consumer groups in a topic's SQLite file: membership, ownership, commits, backlog.

``SqliteGroup`` is the ``GroupLog`` behind a consumer; ``SqliteQueue`` asks it for commits
and statistics. Every rule of who may own what is in ``groups.plan``.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping

from verlops.model import QueueStats
from verlops.ports import Fetched
from verlops.queues.groups import Member, View, check_owner, plan
from verlops.queues.partition import lag, rate, start_offset
from verlops.queues.sqlite_tables import (
    INCOMING,
    count,
    counts,
    ranges,
    row_id,
    settings,
)
from verlops.queues.sqlite_topic import Topic


class SqliteGroup:
    """One group of one topic."""

    def __init__(self, topic: Topic, group: str, clock: Callable[[], float]) -> None:
        self._topic = topic
        self._clock = clock
        self._file = topic.file
        self._group = group

    def view(self) -> View:
        """The group as it is stored."""
        with self._file.read() as db:
            return self._view(db)

    def enter(self, member: Member) -> None:
        """Add a member; one of the same name is removed."""
        with self._file.write() as db:
            older = "SELECT session FROM members WHERE grp = ? AND name = ?"
            for (session,) in db.execute(older, (self._group, member.name)).fetchall():
                self._remove(db, session)
            db.execute("INSERT INTO members VALUES (?, ?, ?, ?, ?)", (self._group, *member))

    def leave(self, session: str) -> None:
        """Remove a member and free its partitions."""
        with self._file.write() as db:
            self._remove(db, session)

    def beat(self, session: str, now: float) -> None:
        """A heartbeat; of a member that is gone it changes nothing."""
        with self._file.write() as db:
            self._beat(db, session, now)

    def settle(self, session: str, now: float) -> dict[int, int]:
        """Beat, remove the dead, take what is free; partition taken → where it starts."""
        with self._file.write() as db:
            view = self._view(db)
            step = plan(view, session, now)
            if step.lost:
                return {}
            for expired in step.expired:
                self._remove(db, expired)
            for beating in {session, *step.ahead}:
                self._beat(db, beating, now)
            db.executemany(
                "INSERT OR REPLACE INTO owners VALUES (?, ?, ?)",
                [(self._group, p, session) for p in step.take],
            )
            committed = self._committed(db)
            return {p: start_offset(committed.get(p), *view.ranges[p]) for p in step.take}

    def release(self, session: str, partitions: Iterable[int]) -> None:
        """Free these partitions if the session still owns them."""
        with self._file.write() as db:
            db.executemany(
                "DELETE FROM owners WHERE grp = ? AND partition = ? AND session = ?",
                [(self._group, partition, session) for partition in partitions],
            )

    def commit(self, session: str, offsets: Mapping[int, int]) -> None:
        """Store next offsets. Raises FencedError unless the session owns all of them."""
        with self._file.write() as db:
            check_owner(self._topic.name, self._group, offsets, self._owners(db), session)
            committed, known = self._committed(db), ranges(db)
            starts = {p: start_offset(committed.get(p), *known[p]) for p in offsets}
            advance = sum(max(0, offset - starts[p]) for p, offset in offsets.items())
            count(db, _traffic(self._group), advance, self._clock())
            db.executemany(
                "INSERT OR REPLACE INTO commits VALUES (?, ?, ?)",
                [(self._group, partition, offset) for partition, offset in offsets.items()],
            )

    def fetch(self, partition: int, start: int, limit: int) -> list[Fetched]:
        """Records of a partition."""
        return self._topic.read(partition, start, limit)

    def wait(self, seconds: float) -> None:
        """Other processes publish, too, and cannot wake us: look again after a while."""
        time.sleep(seconds)

    def committed(self) -> dict[int, int | None]:
        """Partition → committed offset, None before any."""
        with self._file.read() as db:
            committed = self._committed(db)
            return {partition: committed.get(partition) for partition in ranges(db)}

    def stats(self) -> QueueStats:
        """The backlog of the group, in one snapshot."""
        now = self._clock()
        with self._file.read() as db:
            known, committed, since = ranges(db), self._committed(db), settings(db).created_at
            waiting = {p: lag(committed.get(p), *span) for p, span in known.items()}
            starts = {p: end - waiting[p] for p, (_, end) in known.items() if waiting[p]}
            oldest = [at for p, start in starts.items() for at in _first_after(db, p, start)]
            return QueueStats(
                lag=sum(waiting.values()),
                oldest_age_s=max(0.0, now - min(oldest)) if oldest else None,
                in_per_s=rate(counts(db, INCOMING), now, since),
                out_per_s=rate(counts(db, _traffic(self._group)), now, since),
                partitions=len(known),
                end=sum(end for _, end in known.values()),
            )

    def _view(self, db: sqlite3.Connection) -> View:
        members = db.execute(
            "SELECT session, name, timeout, beat_at FROM members WHERE grp = ?", (self._group,)
        )
        return View(tuple(map(Member._make, members)), self._owners(db), ranges(db))

    def _owners(self, db: sqlite3.Connection) -> dict[int, str]:
        rows = db.execute("SELECT partition, session FROM owners WHERE grp = ?", (self._group,))
        return dict(rows)

    def _committed(self, db: sqlite3.Connection) -> dict[int, int]:
        rows = db.execute('SELECT partition, "offset" FROM commits WHERE grp = ?', (self._group,))
        return dict(rows)

    def _beat(self, db: sqlite3.Connection, session: str, now: float) -> None:
        db.execute(
            "UPDATE members SET beat_at = ? WHERE grp = ? AND session = ?",
            (now, self._group, session),
        )

    def _remove(self, db: sqlite3.Connection, session: str) -> None:
        for table in ("members", "owners"):
            db.execute(f"DELETE FROM {table} WHERE grp = ? AND session = ?", (self._group, session))


def _traffic(group: str) -> str:
    """The name of a group's counter; never that of what is published."""
    return f"group {group}"


def _first_after(db: sqlite3.Connection, partition: int, start: int) -> list[float]:
    """The timestamp of the first record from ``start`` on, if there is one."""
    rows = db.execute(
        "SELECT timestamp FROM records WHERE id >= ? AND id < ? ORDER BY id LIMIT 1",
        (row_id(partition, start), row_id(partition + 1, 0)),
    )
    return [at for (at,) in rows]
