"""What the machines that have ended teach: generations, failures, bars.

Called by ``plan`` and by ``learn`` with what was observed; a second call with the same
observation changes nothing, because an end is counted while its slot still has its key.
"""

from __future__ import annotations

from verlops.model import Instance, Memory, Observation
from verlops.plan.bars import bar, launch_failed, refresh
from verlops.plan.keys import (
    current_key,
    forget_old_trainers,
    held,
    hold,
    known_slots,
    next_generation,
    parent_of,
    role_of,
)
from verlops.plan.settings import PlanSettings

LISTING_LAG = 120.0
"""Seconds: a cloud's listing may be so far behind its answers (eventual consistency); a
machine that is not listed for longer, as gone or otherwise, is gone."""
COMING = ("pending", "booting")
POOL_FAULTS = frozenset({"boot_failed", "vanished", "reclaimed"})
"""Ends before a machine was up that speak against its offer, not against its program."""
NO_FAULT = frozenset({"done", "terminated", "guard:stop", "guard:fence", "guard:no_control"})
"""Ends that were wanted, or that say something of the controller alone."""


def absorb(memory: Memory, observation: Observation, settings: PlanSettings) -> Memory:
    """The memory after every end that is confirmed. Needs a good listing of machines."""
    listed, kept = {i.key: i for i in observation.instances}, {}
    for slot in known_slots(observation, memory, settings):
        before = memory.generations.get(slot, 0)
        memory, alive = _past_the_ended(slot, listed, memory, observation, settings)
        known_at = held(memory).get(slot)
        if alive:
            kept[slot] = observation.now
        elif known_at is not None and memory.generations.get(slot, 0) == before:
            if observation.now - known_at <= LISTING_LAG:
                kept[slot] = known_at
            else:
                memory = _vanished(memory, slot, observation)
    alive_ids = {i.id for i in observation.instances if i.phase != "gone"}
    draining = {key: at for key, at in memory.draining.items() if key in alive_ids}
    memory = _new_version(hold(memory, kept).but(draining=draining), observation)
    return refresh(forget_old_trainers(memory), observation, settings.pool)


def never_ready(memory: Memory, instance: Instance, now: float, settings: PlanSettings) -> Memory:
    """The memory after a machine was given up because it did not come up in time."""
    memory = launch_failed(memory, instance.role, instance.offer, now, settings.pool)
    slots = [
        slot for slot in held(memory) if current_key(settings.name, slot, memory) == instance.key
    ]
    if instance.role == "trainer" and slots:
        return _trainer_failed(memory, slots[0], now)
    return memory


def reopen(memory: Memory) -> Memory:
    """The memory after a person said ``up`` again: launches are tried once more.

    For the command line, which alone knows that somebody has seen the alarm.
    """
    return memory.but(stopped="", trainer_failures=0, trainer_failed_on=None)


def just_ended(memory: Memory, slot: str, now: float) -> bool:
    """Whether a trainer of this slot was seen to end in this very observation.

    Versions are read before machines are listed: a trainer that commits and ends in
    between looks like a failure once. One round later its version is seen.
    """
    return bool(memory.extra.get("trainer_ended") == [slot, now])


def _past_the_ended(
    slot: str,
    listed: dict[str, Instance],
    memory: Memory,
    observation: Observation,
    settings: PlanSettings,
) -> tuple[Memory, bool]:
    """The memory at the slot's first generation without an end, and whether that is listed."""
    while True:
        machine = listed.get(current_key(settings.name, slot, memory))
        if machine is None or machine.phase != "gone":
            return memory, machine is not None
        memory = _ended(next_generation(memory, slot), machine, slot, observation, settings)


def _ended(
    memory: Memory,
    machine: Instance,
    slot: str,
    observation: Observation,
    settings: PlanSettings,
) -> Memory:
    reason = machine.ended.reason if machine.ended else "vanished"
    if machine.id in memory.draining:
        # Told to go: what there was to learn was learnt when it was told.
        return memory
    now, came_up = observation.now, memory.seen.get(machine.id) not in (None, *COMING)
    if not came_up and reason in POOL_FAULTS:
        memory = launch_failed(memory, machine.role, machine.offer, now, settings.pool)
    if machine.role == "trainer":
        return _trainer_ended(memory, slot, reason, observation)
    if not came_up and reason not in NO_FAULT | POOL_FAULTS:
        # Its program died at once: rest, rather than rent the next one for the same end.
        return bar(memory, machine.offer, now, settings.pool)
    return memory


def _vanished(memory: Memory, slot: str, observation: Observation) -> Memory:
    memory = next_generation(memory, slot)
    if role_of(slot) == "trainer":
        return _trainer_ended(memory, slot, "vanished", observation)
    return memory


def _trainer_ended(memory: Memory, slot: str, reason: str, observation: Observation) -> Memory:
    """Count a failure unless it made its version, or was stopped or taken away.

    An end as ``done`` without a new version is one: it would be launched for ever.
    """
    blameless = reason != "done" and (reason in NO_FAULT or reason == "reclaimed")
    if observation.version > parent_of(slot) or blameless:
        return memory
    return _trainer_failed(memory, slot, observation.now)


def _trainer_failed(memory: Memory, slot: str, now: float) -> Memory:
    parent = parent_of(slot)
    failures = memory.trainer_failures + 1 if memory.trainer_failed_on == parent else 1
    extra = {**memory.extra, "trainer_ended": [slot, now]}
    return memory.but(trainer_failures=failures, trainer_failed_on=parent, extra=extra)


def _new_version(memory: Memory, observation: Observation) -> Memory:
    """Failures are counted on one parent: a new version forgives them."""
    same = observation.version == memory.trainer_failed_on
    if same or memory.trainer_failed_on is None or "versions" in observation.missing:
        return memory
    return memory.but(trainer_failures=0, trainer_failed_on=None)
