"""How many rollout workers to want now: holding, growing in steps, shrinking slowly.

Called by the round once; the counters are in Memory, so they survive a restart. Rules 3
to 6 of the plan: the minimum, holding while blind, up, down.
"""

from __future__ import annotations

from typing import NamedTuple

from verlops.errors import ConfigError
from verlops.model import Desired, Instance, Memory, Observation, Pool
from verlops.plan.settings import PlanSettings

BIG_JUMP = 0.5
"""A wish to grow by more than this share needs a second fresh reading: a single odd
reading must not rent a fleet."""
UP_SHARE = 0.5
"""Of the present count, at most, in one step up: boots overlap, a wrong reading costs half."""
DOWN_SHARE = 0.25
"""In one step down: half as fast as up, since a boot is paid again and a wait is not."""
LEAST_STEP = 2
"""A share of a small pool would be nothing."""
STALE = 120.0
"""Seconds: a reading older than two ticks of a cron job says nothing of now."""


class Target(NamedTuple):
    """The count to have, and why."""

    size: int
    reason: str
    memory: Memory
    alarms: tuple[str, ...] = ()
    blind: bool = False
    forced: bool = False
    """Down to the minimum at once: neither steps nor the minimum life hold it up."""


def target(
    observation: Observation, desired: Desired, memory: Memory, settings: PlanSettings
) -> Target:
    """The next count on the way to what the policy wants. Raises ConfigError when the
    policy does not give a whole number.
    """
    pool, now = settings.pool, observation.now
    before = within(memory.desired.get(pool.role, pool.min), pool)
    unread = _unread(observation)
    if unread:
        return _blind(before, unread, observation, memory, pool)
    memory = memory.but(reading_at=now, blind_since=None)
    want, reason = _want(observation, desired, memory, settings)
    memory = _recommend(memory, want, before, now, pool)
    if want > before:
        return _grow(before, want, reason, now, memory, pool)
    return _shrink(before, reason, now, memory, pool)


def within(count: int, pool: Pool) -> int:
    """A count within [min, max]; where they contradict, the maximum holds."""
    return min(pool.max, max(pool.min, count))


def step_down(count: int) -> int:
    """How many may go in one step."""
    return max(LEAST_STEP, int(DOWN_SHARE * count))


def step_up(count: int) -> int:
    """How many may be added in one step."""
    return max(LEAST_STEP, int(UP_SHARE * count))


def _unread(observation: Observation) -> str:
    """Which readings failed or are too old to act on, in words; empty when none."""
    queue, failed = observation.queue, observation.missing & {"queue", "samples"}
    if not queue.ok or queue.lag < 0:
        failed |= {"queue"}
    if failed:
        return f"{' and '.join(sorted(failed))} unreadable"
    return f"the backlog reading is {queue.age_s:.0f} s old" if queue.age_s > STALE else ""


def _want(
    observation: Observation, desired: Desired, memory: Memory, settings: PlanSettings
) -> tuple[int, str]:
    pool, rule = settings.pool, settings.rule
    if memory.trainer_failures >= rule.max_failures:
        return within(pool.min, pool), "the trainer keeps failing"
    room, outstanding = (rule.staleness + 1) * rule.batch, observation.samples.outstanding
    if outstanding >= room:
        text = f"{outstanding:,} samples are outstanding and {room:,} is the cap"
        return within(pool.min, pool), text
    if not isinstance(desired.count, int):
        raise ConfigError(
            f"rollout.pool.policy wants {desired.count!r} workers",
            hint="a policy returns Desired with a whole number as its count",
        )
    return within(desired.count, pool), desired.reason


def _blind(
    before: int, unread: str, observation: Observation, memory: Memory, pool: Pool
) -> Target:
    """Hold; after ``hold`` to the minimum if beats show no work; after ``blind`` anyway."""
    now, role = observation.now, pool.role
    since = now if memory.blind_since is None else memory.blind_since
    memory = memory.but(blind_since=since, fresh_up={**memory.fresh_up, role: 0})
    dark = now - since
    forced = dark >= pool.blind or (dark >= pool.hold and _no_work(observation))
    count = within(pool.min, pool) if forced else before
    text = f"{unread} for {dark:.0f} s: {'draining to' if forced else 'holding'} {count} workers"
    memory = _changed(memory, before, count, now, pool)
    return Target(count, text, memory, (text,), blind=True, forced=forced)


def _no_work(observation: Observation) -> bool:
    """Whether fresh beats show it: no beat, or none that could be read, shows nothing."""
    ready: list[Instance] = [i for i in observation.of_role("rollout") if i.phase == "ready"]
    readable = bool(ready) and "beats" not in observation.missing
    return readable and all(worker.in_flight == 0 for worker in ready)


def _recommend(memory: Memory, want: int, before: int, now: float, pool: Pool) -> Memory:
    """The memory with this recommendation, and those of the window before it.

    After a gap the window starts from the present count: nothing is known of the gap.
    """
    old = memory.recommendations.get(pool.role, [])
    kept = [(at, count) for at, count in old if now - pool.window <= at <= now]
    kept = kept or [(now, before)]
    return memory.but(recommendations={**memory.recommendations, pool.role: [*kept, (now, want)]})


def _grow(before: int, want: int, reason: str, now: float, memory: Memory, pool: Pool) -> Target:
    readings = memory.fresh_up.get(pool.role, 0) + 1
    memory = memory.but(fresh_up={**memory.fresh_up, pool.role: readings})
    if want - before > BIG_JUMP * before and readings < 2:
        memory = _changed(memory, before, before, now, pool)
        return Target(before, f"{reason}; waiting for a second reading", memory)
    count = min(want, before + step_up(before))
    return Target(count, reason, _changed(memory, before, count, now, pool))


def _shrink(before: int, reason: str, now: float, memory: Memory, pool: Pool) -> Target:
    memory = memory.but(fresh_up={**memory.fresh_up, pool.role: 0})
    largest = max(count for _, count in memory.recommendations[pool.role])
    changed_at = memory.desired_at.get(pool.role, float("-inf"))
    # A clock that was set back must not stop the pool from shrinking for a day.
    cooling = 0 <= now - changed_at < pool.cooldown
    count = before if cooling else min(before, max(largest, before - step_down(before)))
    return Target(count, reason, _changed(memory, before, count, now, pool))


def _changed(memory: Memory, before: int, count: int, now: float, pool: Pool) -> Memory:
    """The memory of a decision; the cooldown starts when the count changes."""
    changed_at = memory.desired_at if count == before else {**memory.desired_at, pool.role: now}
    return memory.but(desired={**memory.desired, pool.role: count}, desired_at=changed_at)
