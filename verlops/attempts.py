"""Which attempt at a group counts, and what state it is in (DATAPLANE rules 1, 3, 4, 5).

The tally (over receipts) and the trainer (over groups) both decide with these
functions, so that what the tally calls usable is usable to the trainer. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Literal, NamedTuple

State = Literal["usable", "trained", "stale", "failed", "rejected"]


class Attempt(NamedTuple):
    """The facts about one complete attempt at a group that decide its fate."""

    group_id: str
    attempt: str
    oldest_version: int
    """Version of the oldest segment of any sample; −1 when rejected."""
    partition: int
    offset: int
    """Where the group lies in the samples topic; −1 when it was rejected."""
    samples: int
    scored: int
    rejected: bool = False


def position(attempt: Attempt) -> tuple[int, int]:
    """The order of ties: lowest offset first, then lowest partition."""
    return (attempt.offset, attempt.partition)


def beats(new: Attempt, old: Attempt, *, min_scored: int) -> bool:
    """Whether ``new`` replaces ``old`` as the attempt that counts for its group.

    An attempt that can train beats one that cannot; then the newest oldest-segment
    version wins, ties by lowest offset. The same attempt again never wins.
    """
    rank_new, rank_old = _rank(new, min_scored), _rank(old, min_scored)
    if rank_new != rank_old:
        return rank_new > rank_old
    if new.oldest_version != old.oldest_version:
        return new.oldest_version > old.oldest_version
    return position(new) < position(old)


def state(
    attempt: Attempt,
    *,
    version: int,
    staleness: int,
    min_scored: int,
    trained: Container[str],
) -> State:
    """The state of a group whose counting attempt this is, at policy ``version``."""
    if attempt.group_id in trained:
        return "trained"
    if attempt.rejected:
        return "rejected"
    if attempt.scored < min_scored:
        return "failed"
    return "stale" if version - attempt.oldest_version > staleness else "usable"


def take(attempts: Iterable[Attempt], samples: int) -> list[Attempt]:
    """Whole groups, oldest version first, then by offset, until ≥ ``samples`` scored.

    Fewer samples than asked for: everything there is.
    """
    taken: list[Attempt] = []
    count = 0
    for attempt in sorted(attempts, key=lambda a: (a.oldest_version, *position(a))):
        if count >= samples:
            break
        taken.append(attempt)
        count += attempt.scored
    return taken


def _rank(attempt: Attempt, min_scored: int) -> int:
    return 0 if attempt.rejected else 1 if attempt.scored < min_scored else 2
