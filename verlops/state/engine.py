"""How the state store speaks to its database: connections, transactions, faults.

Used by ``verlops.state.sql`` alone. Everything that only SQLite understands stands here;
the store itself is plain SQLAlchemy Core. Nothing here knows what is stored.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from verlops.errors import CorruptError, ThrottledError, VerlopsError

BUSY_S = 30.0
"""Seconds to wait for another process's transaction; ours take milliseconds."""
POLL_S = 0.02
WRITE = "verlops_write"

INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""Dialect → its ``insert`` with ``on_conflict_do_update``, which SQL itself lacks."""

BUGS = ("ERROR", "MISUSE", "CONSTRAINT", "MISMATCH", "RANGE", "SCHEMA")
"""SQLite result codes that mean: the program is wrong. They keep their trace."""


def open_engine(url: sa.URL) -> sa.Engine:
    """An engine on ``url``; connects to nothing yet."""
    if url.get_backend_name() != "sqlite":
        return sa.create_engine(url)
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_S})
    sa.event.listen(engine, "connect", _tune)
    sa.event.listen(engine, "begin", _begin)
    return engine


@contextmanager
def reading(engine: sa.Engine, where: str) -> Iterator[sa.Connection]:
    """A transaction that sees one state of the database throughout."""
    with _translated(where), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: sa.Engine, where: str) -> Iterator[sa.Connection]:
    """A transaction that commits whole or not at all; SQLite: one writer at a time."""
    with _translated(where), engine.connect() as connection:
        connection.execution_options(**{WRITE: True})
        with connection.begin():
            yield connection


def upsert(
    connection: sa.Connection, table: sa.Table, found: list[dict[str, Any]], key: str, value: str
) -> None:
    """Insert rows; where the key columns (comma-separated) exist, replace ``value``."""
    if not found:
        return
    statement = INSERTS[connection.dialect.name](table)
    statement = statement.on_conflict_do_update(
        index_elements=key.split(","), set_={value: statement.excluded[value]}
    )
    connection.execute(statement, found)


def _tune(connection: sqlite3.Connection, _record: object) -> None:
    """WAL: readers never wait for the writer. FULL: a commit survives a power cut."""
    # The driver would begin by itself, and only before the first change: too late for a
    # transaction that reads the fence and then writes.
    connection.isolation_level = None
    _use_wal(connection)
    connection.execute("PRAGMA synchronous = FULL")


def _use_wal(connection: sqlite3.Connection) -> None:
    # SQLite does not wait (busy_timeout) when two processes switch a new file to WAL.
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _code(error) not in ("BUSY", "LOCKED") or time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def _begin(connection: sa.Connection) -> None:
    # IMMEDIATE: a transaction that reads and then writes would otherwise fail as soon as
    # another process has written in between.
    write = connection.get_execution_options().get(WRITE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def _translated(where: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if isinstance(error, sa.exc.IntegrityError | sa.exc.ProgrammingError):
            raise
        if _code(error.orig) in BUGS:
            raise
        raise _fault(error, where) from error


def _fault(error: DBAPIError, where: str) -> VerlopsError:
    match _code(error.orig):
        case "NOTADB" | "CORRUPT":
            return corrupt(where, str(error.orig))
        case "BUSY" | "LOCKED":
            return ThrottledError(
                f"{where} is locked by another process for over {BUSY_S:.0f} s",
                hint="look for a program that keeps it open, a backup for example",
            )
        case "FULL":
            return VerlopsError(f"{where}: the disk is full", hint="make room and try again")
        case "CANTOPEN" | "READONLY" | "PERM" | "AUTH":
            return VerlopsError(
                f"{where} cannot be opened for writing: {error.orig}",
                hint="check that its folder exists and is yours",
            )
    return VerlopsError(f"{where}: {error.orig}")


def corrupt(where: str, why: str) -> CorruptError:
    """The error for a database that cannot be understood, with what to do."""
    return CorruptError(
        f"{where} is damaged: {why}",
        hint="restore a copy of it, or move it aside and begin with `verlops up --new-run`; "
        "the journal and its costs are lost then",
    )


def _code(error: BaseException | None) -> str:
    """``BUSY`` of SQLITE_BUSY_SNAPSHOT; empty where there is none."""
    name = getattr(error, "sqlite_errorname", "") or ""
    return name.split("_")[1] if "_" in name else ""
