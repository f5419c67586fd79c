"""Who may act: the rule of a lease, apart from where it is stored. Pure.

The rule:

- A lease belongs to its holder until it expires, is released, or its holder is known to
  be dead.
- The fence grows by one whenever the lease changes hands, and never otherwise: a renewal
  keeps it, a late one too as long as nobody else took the lease in between. It is never
  reset, so that a fence names one term of one holder for ever.
- Clocks may be set back. An expiry more than the granted time ahead of the clock that
  looks at it was written before such a jump; it is drawn in to one full term from now.
  So a jump never ends a lease at once, and never keeps a dead holder's lease for longer
  than one term. A jump forward ends a lease early: the fence then keeps the old holder
  from saving anything.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from verlops.errors import LeaseHeldError
from verlops.ports import Lease

NOBODY = ""
"""The holder of a released lease."""


class Term(NamedTuple):
    """A lease as it is stored: with the seconds that it was granted for."""

    lease: Lease
    ttl: float


class Answer(NamedTuple):
    """What a request comes to: the term to store, and whether it is the asker's."""

    term: Term
    granted: bool


def ask(
    held: Term | None,
    name: str,
    holder: str,
    ttl: float,
    now: float,
    is_dead: Callable[[str], bool] | None = None,
) -> Answer:
    """Decide a request of ``holder`` for ``ttl`` seconds (see the module's rule)."""
    if not holder or ttl <= 0:
        raise ValueError(f"a lease needs a holder and a time above 0, got {holder!r}, {ttl!r}")
    if held is None:
        return Answer(Term(Lease(name, holder, 1, now + ttl), ttl), granted=True)
    lease = _drawn_in(held, now)
    if lease.holder == holder:
        return Answer(Term(lease._replace(expires_at=now + ttl), ttl), granted=True)
    free = lease.holder == NOBODY or lease.expires_at <= now
    if free or (is_dead is not None and is_dead(lease.holder)):
        return Answer(Term(Lease(name, holder, lease.fence + 1, now + ttl), ttl), granted=True)
    return Answer(Term(lease, held.ttl), granted=False)


def refusal(lease: Lease, now: float) -> LeaseHeldError:
    """The error for who asked in vain."""
    until = datetime.fromtimestamp(lease.expires_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return LeaseHeldError(
        f"lease '{lease.name}' is held by {lease.holder} until {until}, "
        f"for {lease.expires_at - now:.0f} s more",
        hint="wait for it, or stop that controller",
    )


def _drawn_in(held: Term, now: float) -> Lease:
    latest = now + held.ttl
    return held.lease._replace(expires_at=min(held.lease.expires_at, latest))
