"""A state store in memory, for the simulator and for tests. Forgets at the end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from verlops.errors import LeaseHeldError, LeaseLostError
from verlops.model import Event, Intent, Memory
from verlops.ports import Lease

CONTROLLER = "controller"


class MemoryState:
    """The StateStore port over plain dictionaries."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._intents: dict[str, Intent] = {}
        self._events: list[Event] = []
        self._leases: dict[str, Lease] = {}
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
        lease = self._leases.get(CONTROLLER)
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
        held = self._leases.get(name)
        others = held is not None and held.holder not in ("", holder) and held.expires_at > now
        if held and others and not (is_dead and is_dead(held.holder)):
            raise LeaseHeldError(f"lease '{name}' is held by {held.holder}")
        same = held is not None and held.holder == holder
        fence = held.fence if held and same else (held.fence if held else 0) + 1
        self._leases[name] = Lease(name, holder, fence, now + ttl)
        return self._leases[name]

    def release(self, lease: Lease) -> None:
        held = self._leases.get(lease.name)
        if held and held.holder == lease.holder and held.fence == lease.fence:
            self._leases[lease.name] = Lease(lease.name, "", lease.fence, 0.0)

    def lease(self, name: str) -> Lease | None:
        return self._leases.get(name)

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
