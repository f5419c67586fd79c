"""The money spent so far, folded from the journal as it grows."""

from __future__ import annotations

from verlops.cost import bill
from verlops.model import Event
from verlops.ports import StateStore

LEDGER_KINDS = ("launched", "ready", "price", "ended")


class Ledger:
    """The journal's money events, read incrementally."""

    def __init__(self, state: StateStore, minimum_s: int) -> None:
        self._state = state
        self._minimum_s = minimum_s
        self._seen = 0
        self.events: list[Event] = []

    def refresh(self) -> list[Event]:
        """Every money event of the journal, oldest first."""
        for event in self._state.events(after=self._seen, kinds=LEDGER_KINDS):
            self.events.append(event)
            self._seen = event.seq
        return self.events

    def spent(self, now: float) -> int:
        """Micro-units spent until ``now``."""
        return sum(b.amount for b in bill(self.refresh(), now, self._minimum_s))
