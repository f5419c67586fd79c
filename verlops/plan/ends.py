"""What the machines that are gone teach: generations, failures, bars."""

from __future__ import annotations

from verlops.model import Bar, Instance, Memory, Observation
from verlops.plan.keys import current_key, next_generation
from verlops.plan.settings import PlanSettings

OWN_DOING = ("terminated", "guard:stop", "reclaimed")
"""Ends that say nothing against the machine, the program or the offer."""


def absorb(memory: Memory, observation: Observation, settings: PlanSettings) -> Memory:
    """The memory after every confirmed end of a slot's present machine."""
    for instance in observation.instances:
        slot = _slot_of(instance, memory, observation, settings) if _gone(instance) else None
        if slot is not None:
            memory = _ended(memory, instance, slot, observation, settings)
    alive = {i.id for i in observation.instances if not _gone(i)}
    draining = {key: at for key, at in memory.draining.items() if key in alive}
    if observation.version != memory.trainer_failed_on:
        memory = memory.but(trainer_failures=0, trainer_failed_on=None)
    return memory.but(draining=draining)


def bar(memory: Memory, offer_id: str, now: float, settings: PlanSettings) -> Memory:
    """The memory after an offer failed: it rests, longer each time in a row."""
    old = memory.bars.get(offer_id)
    pool = settings.pool
    recent = old is not None and now < old.until + pool.recover
    failures = old.failures + 1 if old and recent else 1
    new = Bar(until=now + pool.bar * failures, failures=failures, failed_at=now)
    return memory.but(bars={**memory.bars, offer_id: new})


def spot_failed(memory: Memory, now: float) -> Memory:
    """Count a failed Spot launch of a rollout worker."""
    since = memory.spot_failing_since if memory.spot_failing_since is not None else now
    return memory.but(spot_failures=memory.spot_failures + 1, spot_failing_since=since)


def _gone(instance: Instance) -> bool:
    return instance.phase == "gone"


def _slot_of(
    instance: Instance, memory: Memory, observation: Observation, settings: PlanSettings
) -> str | None:
    """The slot whose *present* key this machine has; None for those of the past."""
    role = instance.role
    if role == "trainer":
        slots = {f"trainer-{observation.version}", f"trainer-{memory.trainer_parent}"}
    else:
        most = sum(i.role == role for i in observation.instances) + settings.pool.max
        slots = {f"{role}-{number}" for number in range(most)}
    slots |= {slot for slot in memory.generations if slot.startswith(f"{role}-")}
    return next(
        (s for s in slots if current_key(settings.name, role, s, memory) == instance.key), None
    )


def _ended(
    memory: Memory,
    instance: Instance,
    slot: str,
    observation: Observation,
    settings: PlanSettings,
) -> Memory:
    memory = next_generation(memory, slot)
    reason = instance.ended.reason if instance.ended else "vanished"
    if reason in OWN_DOING:
        return memory
    if instance.role == "trainer":
        return _trainer_ended(memory, slot, observation)
    if instance.ready_at is None:
        # It never came up: to a pool that is the same as no capacity.
        memory = bar(memory, instance.offer.id, observation.now, settings)
        if instance.role == "rollout" and instance.offer.market == "spot":
            memory = spot_failed(memory, observation.now)
    return memory


def _trainer_ended(memory: Memory, slot: str, observation: Observation) -> Memory:
    parent = int(slot.removeprefix("trainer-"))
    if observation.version > parent or "versions" in observation.missing:
        return memory
    again = memory.trainer_failed_on == parent
    failures = memory.trainer_failures + 1 if again else 1
    return memory.but(trainer_failures=failures, trainer_failed_on=parent)
