"""Start the trainer once N usable samples are there.

Called by the controller once a step. Usable means scored, fresh enough and not trained
yet, as the tally counts it; raw offsets would count attempts that are never trained.
"""

from __future__ import annotations

from verlops.model import Memory, Observation, TrainerRule, TrainerWish


def decide(observation: Observation, memory: Memory, rule: TrainerRule) -> TrainerWish:
    """``start`` iff usable ≥ N and no trainer exists; never on an unread count."""
    del memory
    unread = observation.missing & {"samples", "versions", "instances"}
    if unread:
        return TrainerWish(action="none", reason=f"holding: {', '.join(sorted(unread))} unreadable")
    if observation.trainer.state != "none":
        return TrainerWish(action="keep", reason=f"the trainer is {observation.trainer.state}")
    reason = f"{observation.samples.usable:,} of {rule.batch:,} samples are usable"
    enough = observation.samples.usable >= rule.batch
    return TrainerWish(action="start" if enough else "none", reason=reason)
