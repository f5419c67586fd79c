"""Slots, generations and the idempotency keys of launches.

A slot (``rollout-3``, ``reward-0``, ``trainer-7`` for parent version 7) is rented at
most once at a time. Its generation grows only after a definite refusal or a confirmed
end, so that a launch whose answer was lost is repeated under the same key.

A slot is *held* from the launch that was answered until its machine's end is known:
``memory.extra["held"]`` has slot → when its machine was last known to be there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count

from verlops.model import Memory, Observation, Role
from verlops.plan.settings import PlanSettings

HELD = "held"
TRAINER_SLOTS_KEPT = 16
"""Generations are kept for so many trainer slots: a run has one slot a version, and
nobody rolls back further than the few full states that retention keeps."""


@lru_cache(maxsize=4096)
def machine_key(name: str, role: str, slot: str, generation: int) -> str:
    """``hash(name, role, slot, generation)``: 32 hex digits."""
    text = "\0".join((name, role, slot, str(generation)))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def role_of(slot: str) -> str:
    """The role that a slot is for."""
    return slot.rpartition("-")[0]


def trainer_slot(parent: int) -> str:
    """The slot of the trainer that makes version ``parent + 1``."""
    return f"trainer-{parent}"


def parent_of(slot: str) -> int:
    """The parent version of a trainer's slot."""
    return int(slot.rpartition("-")[2])


def current_key(name: str, slot: str, memory: Memory) -> str:
    """The key that a slot's machine has, or that its next launch will have."""
    return machine_key(name, role_of(slot), slot, memory.generations.get(slot, 0))


def next_generation(memory: Memory, slot: str) -> Memory:
    """The memory after a refusal or an end: the slot's key is never used again."""
    grown = memory.generations.get(slot, 0) + 1
    return memory.but(generations={**memory.generations, slot: grown})


def held(memory: Memory) -> dict[str, float]:
    """Slot → when its machine was last known to be there."""
    found: dict[str, float] = memory.extra.get(HELD, {})
    return found


def hold(memory: Memory, slots: Mapping[str, float]) -> Memory:
    """The memory with these slots held, and no others."""
    return memory.but(extra={**memory.extra, HELD: dict(slots)})


def known_slots(observation: Observation, memory: Memory, settings: PlanSettings) -> list[str]:
    """Every slot that a listed machine may have, in a fixed order."""
    pool = {f"rollout-{number}" for number in range(settings.pool.max)}
    fixed = {"reward-0", trainer_slot(observation.version)}
    return sorted(pool | fixed | memory.generations.keys() | held(memory).keys())


def free_slots(role: Role, memory: Memory) -> Iterator[str]:
    """Slots of a role that nobody holds, the lowest first.

    They go on past the pool's maximum: a machine that is leaving keeps its slot until
    it is gone, and its replacement does not wait for that.
    """
    for number in count():
        slot = f"{role}-{number}"
        if slot not in held(memory):
            yield slot


def forget_old_trainers(memory: Memory) -> Memory:
    """The memory without the generations of trainer slots of long ago."""
    slots = [slot for slot in memory.generations if role_of(slot) == "trainer"]
    old = set(sorted(slots, key=parent_of)[:-TRAINER_SLOTS_KEPT])
    if not old:
        return memory
    kept = {slot: number for slot, number in memory.generations.items() if slot not in old}
    return memory.but(generations=kept)
