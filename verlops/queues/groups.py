"""Who owns which partition of a consumer group: the rule that all members apply alike.

There is no broker. Every member looks at the group as it is stored, works out its own
next step with ``plan``, and does only that, in a transaction. Steps of members in any
order lead to the same balance: everybody holds floor or ceil of partitions / members,
and whoever holds more gives first (incremental cooperative rebalancing, KIP-429). Pure;
used by the consumer and by the engines' transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from verlops.errors import FencedError


class Member(NamedTuple):
    """One membership of a group; a consumer that joins again is a new one."""

    session: str
    """Unique for each membership: what ownership and commits are fenced by."""
    name: str
    """Unique in a group at any moment."""
    timeout: float
    """Seconds without a heartbeat after which the member is dead."""
    beat_at: float


class View(NamedTuple):
    """A consistent look at one group."""

    members: tuple[Member, ...]
    owners: Mapping[int, str]
    """Partition → session; a free partition is absent."""
    ranges: Mapping[int, tuple[int, int]]
    """Every partition of the topic → its first and its next offset."""

    def held(self) -> dict[str, list[int]]:
        """Session → its partitions, in order; of every member, also of one with none."""
        found: dict[str, list[int]] = {member.session: [] for member in self.members}
        for partition, owner in sorted(self.owners.items()):
            found[owner].append(partition)
        return found


class Step(NamedTuple):
    """What one member has to do now."""

    lost: bool = False
    """Its membership is gone: it must join again."""
    expired: frozenset[str] = frozenset()
    """Members to remove: dead for longer than their session timeout."""
    ahead: frozenset[str] = frozenset()
    """Members whose last beat lies in the future: the clock went back, or the machine
    was started anew. Their timeout begins again now."""
    give: frozenset[int] = frozenset()
    take: frozenset[int] = frozenset()

    def writes(self) -> bool:
        """Whether the stored group has to change (giving is a change of its own)."""
        return bool(self.expired or self.ahead or self.take)


def plan(view: View, session: str, now: float) -> Step:
    """The next step of the member ``session``."""
    held, name = view.held(), {member.session: member.name for member in view.members}
    if session not in held:
        return Step(lost=True)
    expired = frozenset(m.session for m in view.members if m.session != session and dead(m, now))
    for gone in expired:
        del held[gone]
    counts = {m.name: len(held[m.session]) for m in view.members if m.session in held}
    quota = quotas(counts, len(view.ranges))[name[session]]
    mine, owned = held[session], {p for partitions in held.values() for p in partitions}
    free = sorted(view.ranges.keys() - owned)
    return Step(
        expired=expired,
        ahead=frozenset(m.session for m in view.members if m.beat_at > now),
        give=frozenset(mine[quota:]),
        take=frozenset(free[: max(0, quota - len(mine))]),
    )


def dead(member: Member, now: float) -> bool:
    """Whether a member's session has timed out."""
    return now - member.beat_at >= member.timeout


def quotas(held: Mapping[str, int], partitions: int) -> dict[str, int]:
    """How many partitions each member (by name) should have; odd ones go to who has most.

    Sticky: nobody who holds floor or ceil has to move when the group is in balance. Ties
    go by name, so that the same history gives the same assignment.
    """
    floor, odd = divmod(partitions, len(held))
    ranked = sorted(held, key=lambda name: (-held[name], name))
    return {name: floor + (rank < odd) for rank, name in enumerate(ranked)}


def replaced(members: Sequence[Member], name: str) -> bool:
    """Whether a member of this name is in the group (under another session)."""
    return any(member.name == name for member in members)


def check_owner(
    topic: str, group: str, partitions: Iterable[int], owners: Mapping[int, str], session: str
) -> None:
    """Raise FencedError, naming the partitions, unless the session owns all of them."""
    foreign = sorted(p for p in partitions if owners.get(p) != session)
    if foreign:
        raise FencedError(
            f"group '{group}' of topic '{topic}': partitions {foreign} belong to another member "
            "or to nobody",
            hint="nothing was committed; their new owner starts at the committed offset",
        )
