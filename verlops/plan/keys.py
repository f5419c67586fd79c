"""Slots, generations and the idempotency keys of launches.

A slot (``rollout-3``, ``trainer-7`` for parent version 7) is rented at most once at a
time. Its generation grows only after a definite refusal or a confirmed end, so that a
launch whose answer was lost is repeated under the same key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import count

from verlops.model import Instance, Memory, Role


def machine_key(name: str, role: str, slot: str, generation: int) -> str:
    """``hash(name, role, slot, generation)``: 32 hex digits."""
    text = "\0".join((name, role, slot, str(generation)))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def current_key(name: str, role: str, slot: str, memory: Memory) -> str:
    """The key that the next launch for a slot has."""
    return machine_key(name, role, slot, memory.generations.get(slot, 0))


def next_generation(memory: Memory, slot: str) -> Memory:
    """The memory after a refusal or an end: the slot's key is never used again."""
    grown = memory.generations.get(slot, 0) + 1
    return memory.but(generations={**memory.generations, slot: grown})


def free_slots(
    name: str, role: Role, instances: Iterable[Instance], memory: Memory
) -> Iterator[str]:
    """Slots of a role that no listed machine holds, the lowest first."""
    taken = {i.key for i in instances if i.role == role}
    for number in count():
        slot = f"{role}-{number}"
        if current_key(name, role, slot, memory) not in taken:
            yield slot
