"""How many rollout workers to want now: holding, growing in steps, shrinking slowly."""

from __future__ import annotations

import math
from typing import NamedTuple

from verlops.model import Desired, Instance, Memory, Observation, Pool
from verlops.plan.settings import PlanSettings

ROLE = "rollout"
BIG_JUMP = 0.5
"""A wish to grow by more than this share needs a second fresh reading: a single odd
reading must not rent a fleet."""
UP_SHARE, DOWN_SHARE, LEAST_STEP = 0.5, 0.25, 2


class Target(NamedTuple):
    """The count to have, and why."""

    size: int
    reason: str
    memory: Memory
    alarms: tuple[str, ...] = ()


def target(
    observation: Observation, desired: Desired, memory: Memory, settings: PlanSettings
) -> Target:
    """The next count on the way to what the policy wants (SCALING rules 3 to 6)."""
    pool = settings.pool
    before = max(pool.min, min(pool.max, memory.desired.get(ROLE, pool.min)))
    if {"queue", "samples"} & observation.missing:
        return _blind(before, observation, memory, pool)
    memory = memory.but(reading_at=observation.now, blind_since=None)
    want, reason, alarms = _want(observation, desired, memory, settings)
    memory = _recommend(memory, want, before, observation.now, pool)
    if want > before:
        return _grow(before, want, reason, observation.now, memory)._replace(alarms=alarms)
    shrunk = _shrink(before, want, reason, observation.now, memory, pool)
    return shrunk._replace(alarms=alarms)


def _want(
    observation: Observation, desired: Desired, memory: Memory, settings: PlanSettings
) -> tuple[int, str, tuple[str, ...]]:
    pool, rule = settings.pool, settings.rule
    if memory.trainer_failures >= rule.max_failures:
        text = (
            f"{memory.trainer_failures} trainers failed on version {observation.version}: "
            "no more launches, pool to its minimum; see `verlops events` and the trainer's log"
        )
        return pool.min, "the trainer keeps failing", (text,)
    room = (rule.staleness + 1) * rule.batch
    if observation.samples.outstanding >= room:
        outstanding = observation.samples.outstanding
        return pool.min, f"{outstanding:,} samples are outstanding, {room:,} is the cap", ()
    return max(pool.min, min(pool.max, desired.count)), desired.reason, ()


def _blind(before: int, observation: Observation, memory: Memory, pool: Pool) -> Target:
    """Hold; after ``hold`` to the minimum if nothing works; after ``blind`` regardless."""
    since = memory.blind_since if memory.blind_since is not None else observation.now
    memory = memory.but(blind_since=since, fresh_up={**memory.fresh_up, ROLE: 0})
    dark = observation.now - since
    idle = dark >= pool.hold and _nothing_works(observation.of_role("rollout"))
    count = pool.min if idle or dark >= pool.blind else before
    names = " and ".join(sorted({"queue", "samples"} & observation.missing))
    text = f"{names} unreadable for {dark:.0f} s: holding {count} workers"
    return Target(count, text, _changed(memory, before, count, observation.now), (text,))


def _nothing_works(workers: tuple[Instance, ...]) -> bool:
    return all(worker.in_flight == 0 for worker in workers if worker.phase == "ready")


def _recommend(memory: Memory, want: int, before: int, now: float, pool: Pool) -> Memory:
    old = memory.recommendations.get(ROLE, [(now, before)])
    kept = [(at, count) for at, count in old if now - pool.window <= at <= now]
    return memory.but(recommendations={**memory.recommendations, ROLE: [*kept, (now, want)]})


def _grow(before: int, want: int, reason: str, now: float, memory: Memory) -> Target:
    readings = memory.fresh_up.get(ROLE, 0) + 1
    memory = memory.but(fresh_up={**memory.fresh_up, ROLE: readings})
    big = want - before > BIG_JUMP * before
    if big and readings < 2:
        return Target(before, f"{reason}; waiting for a second reading", memory)
    count = min(want, before + max(LEAST_STEP, math.ceil(UP_SHARE * before)))
    return Target(count, reason, _changed(memory, before, count, now))


def _shrink(before: int, want: int, reason: str, now: float, memory: Memory, pool: Pool) -> Target:
    memory = memory.but(fresh_up={**memory.fresh_up, ROLE: 0})
    largest = max(count for _, count in memory.recommendations[ROLE])
    cooling = now - memory.desired_at.get(ROLE, float("-inf")) < pool.cooldown
    if largest >= before or cooling:
        return Target(before, reason, memory.but(desired={**memory.desired, ROLE: before}))
    step = max(LEAST_STEP, math.ceil(DOWN_SHARE * before))
    count = max(want, largest, before - step)
    return Target(count, reason, _changed(memory, before, count, now))


def _changed(memory: Memory, before: int, count: int, now: float) -> Memory:
    memory = memory.but(desired={**memory.desired, ROLE: count})
    if count == before:
        return memory
    return memory.but(desired_at={**memory.desired_at, ROLE: now})
