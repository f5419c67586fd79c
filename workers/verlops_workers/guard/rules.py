"""When a machine must end. Pure: facts in, verdict or None out.

Every rule holds without the controller: a machine whose controller is dead, whose role
hangs, or whose work somebody else has taken over must not go on costing money.
"""

from __future__ import annotations

from typing import NamedTuple

from verlops_workers.host import Status


class Limits(NamedTuple):
    """Seconds; None: the rule does not hold for this role."""

    grace: float
    control_ttl: float
    deadline: float | None = None
    no_progress: float | None = None
    fenced: bool = False
    """Whether a higher trainer fence ends this machine."""


class Facts(NamedTuple):
    """What the guard sees. Ages in seconds."""

    age: float
    status: Status
    progress_age: float
    """Since the role's progress last grew (or since the start)."""
    done_age: float | None
    control_age: float
    """Since the newest control record for us was seen (or since the start)."""
    command: str = ""
    own_fence: int = 0
    highest_fence: int = 0


class Verdict(NamedTuple):
    """Why the machine ends, and whether the role is asked to drain first."""

    reason: str
    detail: str
    gently: bool = False


def judge(facts: Facts, limits: Limits) -> Verdict | None:
    """The first rule that ends the machine, or None."""
    if facts.command == "stop":
        return Verdict("guard:stop", "told to stop", gently=True)
    if limits.fenced and facts.highest_fence > facts.own_fence:
        return Verdict("guard:fence", f"fence {facts.highest_fence} is above {facts.own_fence}")
    if facts.done_age is not None and facts.done_age > limits.grace:
        return Verdict("done", "it was done and did not exit")
    if limits.deadline is not None and facts.age > limits.deadline:
        return Verdict("guard:deadline", f"older than {limits.deadline:g} s")
    stalled = limits.no_progress is not None and facts.progress_age > limits.no_progress
    if stalled and not facts.status.done:
        return Verdict("guard:no_progress", f"no progress for {facts.progress_age:.0f} s")
    if facts.control_age > limits.control_ttl:
        text = f"no control record for {facts.control_age:.0f} s"
        return Verdict("guard:no_control", text, gently=True)
    return None
