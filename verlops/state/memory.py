"""A state store in memory, for the simulator and for tests. Forgets at the end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from verlops.errors import LeaseLostError
from verlops.model import Event, Intent, Memory
from verlops.ports import Lease
from verlops.state.leases import Term, ask, refusal

CONTROLLER = "controller"


class MemoryState:
    """The StateStore port over plain dictionaries."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._intents: dict[str, Intent] = {}
        self._events: list[Event] = []
        self._leases: dict[str, Term] = {}
        self._blobs: dict[str, bytes] = {}
        self._rows: dict[str, dict[str, bytes]] = {}

    def load(self) -> tuple[Memory, list[Intent]]:
        return copy.deepcopy(self._memory), list(self._intents.values())

    def save(
        self,
        memory: Memory,
        *,
        opened: Sequence[Intent] = (),
        closed: Sequence[str] = (),
        events: Sequence[Event] = (),
        fence: int | None = None,
    ) -> None:
        lease = self.lease(CONTROLLER)
        if fence is not None and lease and lease.fence != fence:
            raise LeaseLostError(f"fence {fence} is not the newest ({lease.fence})")
        self._memory = copy.deepcopy(memory)
        self._intents |= {intent.id: intent for intent in opened}
        for intent_id in closed:
            self._intents.pop(intent_id, None)
        for event in events:
            self._events.append(msgspec.structs.replace(event, seq=len(self._events) + 1))

    def events(
        self, *, after: int = 0, kinds: Sequence[str] = (), limit: int | None = None
    ) -> Iterator[Event]:
        found = (e for e in self._events[after:] if not kinds or e.kind in kinds)
        for number, event in enumerate(found):
            if limit is not None and number >= limit:
                return
            yield event

    def acquire(
        self,
        name: str,
        holder: str,
        ttl: float,
        now: float,
        is_dead: Callable[[str], bool] | None = None,
    ) -> Lease:
        answer = ask(self._leases.get(name), name, holder, ttl, now, is_dead)
        self._leases[name] = answer.term
        if not answer.granted:
            raise refusal(answer.term.lease, now)
        return answer.term.lease

    def release(self, lease: Lease) -> None:
        term = self._leases.get(lease.name)
        if term and (term.lease.holder, term.lease.fence) == (lease.holder, lease.fence):
            free = Lease(lease.name, "", lease.fence, 0.0)
            self._leases[lease.name] = term._replace(lease=free)

    def lease(self, name: str) -> Lease | None:
        term = self._leases.get(name)
        return term.lease if term else None

    def put_blob(self, key: str, value: bytes) -> None:
        self._blobs[key] = value

    def get_blob(self, key: str) -> bytes | None:
        return self._blobs.get(key)

    def rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        yield from list(self._rows.get(table, {}).items())

    def put_rows(
        self, table: str, rows: Mapping[str, bytes], blobs: Mapping[str, bytes] | None = None
    ) -> None:
        self._rows.setdefault(table, {}).update(rows)
        self._blobs |= dict(blobs or {})

    def clear_rows(self, table: str) -> None:
        self._rows.pop(table, None)

    def close(self) -> None:
        return
