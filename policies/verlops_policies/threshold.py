"""Start the trainer once N usable samples are there."""

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
    usable = observation.samples.usable
    if usable < rule.batch:
        return TrainerWish(action="none", reason=f"{usable:,} of {rule.batch:,} samples")
    return TrainerWish(action="start", reason=f"{usable:,} of {rule.batch:,} samples are usable")
