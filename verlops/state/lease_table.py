"""Leases in their table: read, compare-and-swap, release, and the check of a fence.

Used by ``verlops.state.sql`` inside its transactions. Decides nothing: that is
``verlops.state.leases``.
"""

from __future__ import annotations

import sqlalchemy as sa

from verlops.errors import LeaseLostError
from verlops.ports import Lease
from verlops.state.leases import NOBODY, Term
from verlops.state.tables import leases

CONTROLLER = "controller"
"""The lease whose fence guards the memory."""


def read_term(connection: sa.Connection, name: str) -> Term | None:
    """A lease as it is stored, or None when it was never taken."""
    row = connection.execute(sa.select(leases).where(leases.c.name == name)).one_or_none()
    if row is None:
        return None
    return Term(Lease(row.name, row.holder, row.fence, row.expires_at), row.ttl)


def swap(connection: sa.Connection, old: Term | None, new: Term) -> bool:
    """Store ``new`` if ``old`` is still what is stored; say whether it was.

    Where there was none, a second inserter gets SQLAlchemy's IntegrityError.
    """
    values = {**new.lease._asdict(), "ttl": new.ttl}
    if old is None:
        connection.execute(sa.insert(leases), values)
        return True
    same = [leases.c[key] == value for key, value in old.lease._asdict().items()]
    return connection.execute(sa.update(leases).where(*same).values(values)).rowcount == 1


def release(connection: sa.Connection, lease: Lease) -> None:
    """Make the lease nobody's if it is still this one; its fence stays."""
    same = (
        leases.c.name == lease.name,
        leases.c.holder == lease.holder,
        leases.c.fence == lease.fence,
    )
    connection.execute(sa.update(leases).where(*same).values(holder=NOBODY, expires_at=0.0))


def check_fence(connection: sa.Connection, fence: int) -> None:
    """Raise LeaseLostError unless ``fence`` is the newest; it stays so to the commit."""
    query = sa.select(leases.c.fence).where(leases.c.name == CONTROLLER).with_for_update()
    newest = connection.scalar(query) or 0
    if fence != newest:
        raise LeaseLostError(
            f"another controller took over: the newest fence is {newest}, ours is {fence}",
            hint="nothing was saved; see `verlops status`",
        )
