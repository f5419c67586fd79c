"""One topic's SQLite file: connections, transactions, durability, clear errors.

Used by ``sqlite_topic`` and ``sqlite_groups``, which know what is inside. Any number of
threads and processes may use a file at once; a process killed at any moment leaves it
whole. Never holds a transaction open between calls.

Why these settings: WAL lets readers go on beside the writer. ``synchronous=FULL`` makes
a commit survive power loss, not only a killed process: topics are separate files, and a
receipt must never outlive its group. It costs one fsync a transaction (0.3 ms here, a
few ms on a slow disk), which publishing in batches spreads. Writers take turns at a lock
file because SQLite's own waiting sleeps up to 100 ms, and because two connections that
write and checkpoint at once can damage the file before SQLite 3.51.3 (the "WAL-reset
bug", sqlite.org/wal.html).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from verlops.errors import CorruptError, NotFoundError, ThrottledError, VerlopsError

BUSY = 20.0
"""Seconds to wait for the write lock before giving up."""

APPLICATION = 0x7665726C
"""SQLite's application_id of our files ("verl")."""

FORMAT = 1
"""SQLite's user_version: the layout of the tables."""

WAL_KEPT = 16 * 1024 * 1024
"""Bytes that a write-ahead log may keep on disk after a checkpoint."""

_FIRST_TRY, _LAST_TRY = 0.0002, 0.005

_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class TopicFile:
    """Transactions on the file at ``path``, which ``sqlite_tables.create`` has made.

    Everything raises NotFoundError when the file is not there, CorruptError when it is
    damaged or none of ours, ThrottledError when it stays locked, VerlopsError when the
    disk fails or is full.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: deque[_Link] = deque()
        self._turn = _Turn(path.with_suffix(".lock"))
        self._pid = os.getpid()
        self._left_to_parent: list[object] = []
        self._closed = False

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A consistent snapshot; never waits for a writer."""
        with translated(self.path):
            self._check_open()
            with self._transaction("BEGIN", "ROLLBACK") as db:
                yield db

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction, durable when the block has ended; nothing of it on an error."""
        with translated(self.path):
            self._check_open()
            self._identity()  # a topic that nobody made gets no lock file either
            with self._turn, self._transaction("BEGIN IMMEDIATE", "COMMIT") as db:
                yield db

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Nobody writes meanwhile, whether the file is there or not."""
        with self._turn:
            yield

    def close(self) -> None:
        """Close the connections; those in use are closed when they come back."""
        self._closed = True
        while self._idle:
            self._idle.pop().db.close()
        self._turn.close()

    def _check_open(self) -> None:
        if self._closed:
            raise VerlopsError(f"the log at {self.path.parent} is closed")
        if self._pid != os.getpid():
            self._leave_to_parent()

    @contextmanager
    def _transaction(self, begin: str, end: str) -> Iterator[sqlite3.Connection]:
        link = self._take()
        try:
            link.db.execute(begin)
            yield link.db
            link.db.execute(end)
        finally:
            self._give_back(link)

    def _take(self) -> _Link:
        identity = self._identity()
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:
                break  # another thread was quicker
            if link.identity == identity:
                return link
            link.db.close()
        return _Link(_connect(self.path), identity)

    def _give_back(self, link: _Link) -> None:
        """Keep a connection for the next call, without any transaction."""
        try:
            if link.db.in_transaction:
                link.db.rollback()
        except sqlite3.Error:
            link.db.close()
            raise
        if self._closed:
            link.db.close()
        else:
            self._idle.append(link)

    def _identity(self) -> tuple[int, int]:
        """What tells this file from one made anew in its place."""
        try:
            stat = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            raise missing(self.path) from None
        return stat.st_dev, stat.st_ino

    def _leave_to_parent(self) -> None:
        # A connection must not be used, nor closed, on the far side of a fork.
        self._left_to_parent.append((self._idle, self._turn))
        self._idle, self._turn = deque(), _Turn(self.path.with_suffix(".lock"))
        self._pid = os.getpid()


class _Link(NamedTuple):
    db: sqlite3.Connection
    identity: tuple[int, int]


class _Turn:
    """The right to write: one thread of one process at a time, freed by its death."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = threading.Lock()
        self._file: int | None = None

    def __enter__(self) -> None:
        deadline = time.monotonic() + BUSY
        if not self._thread.acquire(timeout=BUSY):
            raise locked(self._path)
        try:
            self._lock(deadline)
        except BaseException:
            self._thread.release()
            raise

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._thread.release()

    def close(self) -> None:
        with self._thread:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _lock(self, deadline: float) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        pause = _FIRST_TRY
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise locked(self._path) from None
                time.sleep(pause)
                pause = min(2 * pause, _LAST_TRY)
            else:
                return


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the system as ours, with the file's name."""
    try:
        yield
    except sqlite3.Error as error:
        raise _ours(error, path) from error
    except OSError as error:
        raise VerlopsError(
            f"cannot use the log file {path}: {error.strerror or error}",
            hint="check that the folder exists, is on a local disk and may be written",
        ) from error


def missing(path: Path) -> NotFoundError:
    """The error for a topic that nobody has made."""
    return NotFoundError(
        f"no topic '{path.stem}' in {path.parent}", hint="`verlops up` makes the topics"
    )


def damaged(path: Path, what: str) -> CorruptError:
    """The error for a file whose contents can't be trusted."""
    return CorruptError(
        f"the log file {path} is damaged: {what}",
        hint="run `verlops down`, then put back a copy of the file, or move it and its -wal "
        "away and start again with `verlops up --new-run` (its records are lost)",
    )


def locked(path: Path) -> ThrottledError:
    """The error for a write lock that somebody keeps."""
    return ThrottledError(
        f"{path} is held by another process for over {BUSY:.0f} s",
        hint="nothing was written; look for a stopped process of this environment, then repeat",
    )


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=rw",
        uri=True,
        timeout=BUSY,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        _set_up(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _set_up(db: sqlite3.Connection, path: Path) -> None:
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA cell_size_check=ON")
    db.execute(f"PRAGMA journal_size_limit={WAL_KEPT}")
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise damaged(path, "it does not begin like a log of verlops")
    if version != FORMAT:
        raise VerlopsError(
            f"the log file {path} has layout {version}, this verlops reads {FORMAT}",
            hint="use the version of verlops that made it, or start in a new folder",
        )


def _ours(error: sqlite3.Error, path: Path) -> VerlopsError:
    # The low byte is the primary code; warnings about misuse of the module carry none.
    code = getattr(error, "sqlite_errorcode", -1) & 0xFF
    if code in _CORRUPT:
        return damaged(path, str(error))
    if code in _BUSY:
        return locked(path)
    if code == sqlite3.SQLITE_FULL:
        return VerlopsError(
            f"no space left for the log file {path}", hint="nothing was written; free some space"
        )
    return VerlopsError(
        f"cannot use the log file {path}: {error}",
        hint="check the disk and the rights of its folder",
    )
