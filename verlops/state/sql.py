"""The state store over a SQL database: SQLite in the environment's folder.

Opened by ``verlops.assemble``; used by the controller, the feeder and the readers of the
status, each in a process of its own and at the same time. Never decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from verlops.config import Config
from verlops.errors import ConfigError, ThrottledError, VerlopsError
from verlops.model import Event, Intent, Memory
from verlops.ports import Lease
from verlops.state import tables
from verlops.state.engine import corrupt, open_engine, reading, upsert, writing
from verlops.state.lease_table import check_fence, read_term, release, swap
from verlops.state.leases import Term, ask, refusal

FILE = "state.db"
PAGE = 1000
"""Events read in one go: a reader never holds the whole journal."""
TRIES = 100
"""Rounds of compare-and-swap; each lost round means that somebody else moved on."""


class SqlState:
    """A StateStore (ports). Errors: CorruptError, ThrottledError, VerlopsError."""

    def __init__(self, url_or_path: str | Path, *, name: str = "") -> None:
        """Open, and create what is missing. ``name`` is the environment, if known.

        Raises ConfigError when the state is of another environment or of a newer verlops.
        """
        self._url = _url(url_or_path)
        self._where = self._url.database or str(self._url)
        self._engine = open_engine(self._url)
        self._prepare(name)

    @classmethod
    def open(cls, config: Config) -> SqlState:
        """The store of an environment: ``state.db`` in the folder ``state.path``."""
        if config.state.path is None:
            raise ConfigError("state.path: not resolved; load the config with load_config")
        folder = Path(config.state.path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise VerlopsError(f"cannot make {folder}: {error.strerror}") from error
        return cls(folder / FILE, name=config.name)

    def load(self) -> tuple[Memory, list[Intent]]:
        """The saved memory (empty at first) and the open intents, in the order of opening."""
        with reading(self._engine, self._where) as connection:
            body = connection.scalar(sa.select(tables.memory.c.body))
            bodies = connection.scalars(
                sa.select(tables.intents.c.body).order_by(tables.intents.c.seq)
            ).all()
        memory = self._decoded(body, Memory) if body is not None else Memory()
        return memory, [self._decoded(found, Intent) for found in bodies]

    def save(
        self,
        memory: Memory,
        *,
        opened: Sequence[Intent] = (),
        closed: Sequence[str] = (),
        events: Sequence[Event] = (),
        fence: int | None = None,
    ) -> None:
        """One transaction. Raises LeaseLostError when ``fence`` is not the newest."""
        with writing(self._engine, self._where) as connection:
            if fence is not None:
                check_fence(connection, fence)
            body = msgspec.msgpack.encode(memory)
            upsert(connection, tables.memory, [{"id": 1, "body": body}], "id", "body")
            begun = [{"id": i.id, "body": msgspec.msgpack.encode(i)} for i in opened]
            upsert(connection, tables.intents, begun, "id", "body")
            if closed:
                gone = sa.delete(tables.intents).where(tables.intents.c.id == sa.bindparam("gone"))
                connection.execute(gone, [{"gone": intent_id} for intent_id in closed])
            if events:
                connection.execute(sa.insert(tables.events), [_row(event) for event in events])

    def events(
        self, *, after: int = 0, kinds: Sequence[str] = (), limit: int | None = None
    ) -> Iterator[Event]:
        """Events with a number above ``after``, oldest first; read page by page."""
        table = tables.events
        query = sa.select(table).order_by(table.c.seq)
        if kinds:
            query = query.where(table.c.kind.in_(kinds))
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            with reading(self._engine, self._where) as connection:
                page = connection.execute(query.where(table.c.seq > after).limit(size)).all()
            yield from (self._event(row) for row in page)
            if len(page) < size:
                return
            after = page[-1].seq
            left = None if left is None else left - size

    def acquire(
        self,
        name: str,
        holder: str,
        ttl: float,
        now: float,
        is_dead: Callable[[str], bool] | None = None,
    ) -> Lease:
        """Take or renew a lease by the rule of ``verlops.state.leases``.

        Raises LeaseHeldError, which names the holder and says until when.
        """
        for _ in range(TRIES):
            held = self._term(name)
            answer = ask(held, name, holder, ttl, now, is_dead)
            if answer.term != held and not self._swap(held, answer.term):
                continue
            if not answer.granted:
                raise refusal(answer.term.lease, now)
            return answer.term.lease
        raise ThrottledError(f"lease '{name}' changed hands {TRIES} times while it was asked for")

    def release(self, lease: Lease) -> None:
        """Give a lease back; does nothing when it has changed hands. The fence stays."""
        with writing(self._engine, self._where) as connection:
            release(connection, lease)

    def lease(self, name: str) -> Lease | None:
        """A lease as it stands; an empty holder: released; None: never taken."""
        term = self._term(name)
        return term.lease if term else None

    def put_blob(self, key: str, value: bytes) -> None:
        """Write one value."""
        with writing(self._engine, self._where) as connection:
            upsert(connection, tables.blobs, [{"key": key, "value": value}], "key", "value")

    def get_blob(self, key: str) -> bytes | None:
        """One value, or None."""
        query = sa.select(tables.blobs.c.value).where(tables.blobs.c.key == key)
        with reading(self._engine, self._where) as connection:
            return connection.scalar(query)

    def rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        """All rows of a table, sorted by key, as they were at one moment."""
        rows = tables.rows
        query = sa.select(rows.c.key, rows.c.value).where(rows.c.section == table)
        with reading(self._engine, self._where) as connection:
            found = connection.execute(query.order_by(rows.c.key)).all()
        yield from ((row.key, row.value) for row in found)

    def put_rows(
        self, table: str, rows: Mapping[str, bytes], blobs: Mapping[str, bytes] | None = None
    ) -> None:
        """Insert or replace rows and blobs, in one transaction."""
        found = [{"section": table, "key": k, "value": v} for k, v in rows.items()]
        values = [{"key": k, "value": v} for k, v in (blobs or {}).items()]
        if not found and not values:
            return
        with writing(self._engine, self._where) as connection:
            upsert(connection, tables.rows, found, "section,key", "value")
            upsert(connection, tables.blobs, values, "key", "value")

    def clear_rows(self, table: str) -> None:
        """Delete all rows of a table."""
        with writing(self._engine, self._where) as connection:
            connection.execute(sa.delete(tables.rows).where(tables.rows.c.section == table))

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _prepare(self, name: str) -> None:
        with writing(self._engine, self._where) as connection:
            tables.metadata.create_all(connection)
            meta = {row.key: row.value for row in connection.execute(sa.select(tables.meta))}
            given = {"schema": str(tables.SCHEMA)} | ({"name": name} if name else {})
            self._check_meta(meta, name)
            missing = [{"key": k, "value": v} for k, v in given.items() if k not in meta]
            if missing:
                connection.execute(sa.insert(tables.meta), missing)

    def _check_meta(self, meta: Mapping[str, str], name: str) -> None:
        if meta.get("schema", str(tables.SCHEMA)) != str(tables.SCHEMA):
            raise ConfigError(
                f"{self._where} has layout {meta['schema']}, this verlops reads {tables.SCHEMA}",
                hint="use the verlops that wrote it",
            )
        if name and meta.get("name", name) != name:
            raise ConfigError(
                f"{self._where} is the state of '{meta['name']}', not of '{name}'",
                hint="give each environment a folder of its own: state.path or VERLOPS_STATE",
            )

    def _term(self, name: str) -> Term | None:
        with reading(self._engine, self._where) as connection:
            return read_term(connection, name)

    def _swap(self, old: Term | None, new: Term) -> bool:
        try:
            with writing(self._engine, self._where) as connection:
                return swap(connection, old, new)
        except sa.exc.IntegrityError:  # somebody else made the first term
            return False

    def _event(self, row: Any) -> Event:
        return Event(
            at=row.at,
            kind=row.kind,
            instance_id=row.instance_id,
            reason=row.reason,
            data=self._decoded(row.data, dict[str, Any]),
            seq=row.seq,
        )

    def _decoded(self, body: bytes, kind: Any) -> Any:
        try:
            return msgspec.msgpack.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise corrupt(self._where, f"a stored {kind} does not decode: {error}") from error


def _url(url_or_path: str | Path) -> sa.URL:
    if isinstance(url_or_path, str) and "://" in url_or_path:
        return sa.make_url(url_or_path)
    return sa.URL.create("sqlite", database=str(url_or_path))


def _row(event: Event) -> dict[str, Any]:
    return {
        "at": event.at,
        "kind": event.kind,
        "instance_id": event.instance_id,
        "reason": event.reason,
        "data": msgspec.msgpack.encode(event.data),
    }
