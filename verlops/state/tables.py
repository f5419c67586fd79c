"""The tables of the state store. Used by ``verlops.state.sql`` alone.

Bodies that only the program reads are msgpack; what a person may look for with any SQL
client (times, kinds, reasons, holders) has a column of its own.
"""

from __future__ import annotations

import sqlalchemy as sa

SCHEMA = 1
"""Version of this layout; grows when a table changes in a way an older verlops misreads."""

metadata = sa.MetaData()

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
"""``schema``: the version of the layout; ``name``: the environment that this state is of."""

memory = sa.Table(
    "memory",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
"""One row, id 1: the controller's Memory."""

intents = sa.Table(
    "intents",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sqlite_autoincrement=True,
)
"""The open intents; a closed one is deleted, its outcome is an event."""

events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("instance_id", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Index("events_by_kind", "kind", "seq"),
    # Without it SQLite gives the number of a deleted last row out again.
    sqlite_autoincrement=True,
)
"""The journal, append-only."""

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
    sa.Column("ttl", sa.Double, nullable=False),
)
"""One row a lease, for ever: the fence must outlive its holders."""

blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)

rows = sa.Table(
    "rows",
    metadata,
    sa.Column("section", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)
"""Named key-value tables; ``section`` is the name."""
