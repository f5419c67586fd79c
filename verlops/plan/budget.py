"""What may still be spent.

committed = spent + what it costs to drain all that runs + the running trainer's forecast.
A launch must fit below the limit with its own least cost; at the limit all goes down.
"""

from __future__ import annotations

from collections.abc import Sequence

from verlops.model import Instance, Launch, Memory, Observation
from verlops.plan.settings import PlanSettings

DAY = 86400


def roll_day(memory: Memory, observation: Observation) -> Memory:
    """The memory with the money spent before the present UTC day."""
    day = int(observation.now // DAY)
    if memory.extra.get("day") == day:
        return memory
    return memory.but(extra={**memory.extra, "day": day, "spent_before": observation.spent})


def reached(observation: Observation, memory: Memory, settings: PlanSettings) -> str:
    """Which hard limit is reached, in words; empty when none is."""
    reserve = _reserve(observation.instances, observation.now, settings)
    for name, used, limit in _limits(observation, memory, settings):
        if used + reserve >= limit:
            return f"the {name} budget is reached"
    return ""


def refuses(
    launch: Launch,
    pending: Sequence[Launch],
    observation: Observation,
    memory: Memory,
    settings: PlanSettings,
) -> str:
    """Why a launch must not be made, or empty. ``pending``: launches of this step."""
    alive = [i for i in observation.instances if i.phase != "gone"]
    hourly = sum(i.offer.price for i in alive) + sum(p.offer.price for p in pending)
    limit = settings.budget.per_hour
    if limit is not None and hourly + launch.offer.price > limit:
        return "it would pass the budget per hour"
    least = sum(_least(one, settings) for one in (*pending, launch))
    reserve = _reserve(observation.instances, observation.now, settings)
    for name, used, most in _limits(observation, memory, settings):
        if used + reserve + least > most:
            return f"it would pass the {name} budget"
    return ""


def _limits(
    observation: Observation, memory: Memory, settings: PlanSettings
) -> list[tuple[str, int, int]]:
    budget = settings.budget
    today = observation.spent - int(memory.extra.get("spent_before", observation.spent))
    found = [("total", observation.spent, budget.total), ("daily", today, budget.per_day)]
    return [(name, used, limit) for name, used, limit in found if limit is not None]


def _reserve(instances: Sequence[Instance], now: float, settings: PlanSettings) -> int:
    return sum(_to_end(i, now, settings) for i in instances if i.phase != "gone")


def _to_end(instance: Instance, now: float, settings: PlanSettings) -> int:
    seconds = settings.pool.drain_timeout
    if instance.role == "trainer":
        seconds = max(0.0, settings.rule.forecast_s - (now - instance.launched_at))
    return _cost(instance.offer.price, seconds)


def _least(launch: Launch, settings: PlanSettings) -> int:
    trainer = launch.role == "trainer"
    seconds = settings.rule.forecast_s if trainer else settings.pool.drain_timeout
    return _cost(launch.offer.price, seconds)


def _cost(price: int, seconds: float) -> int:
    return round(price * seconds / 3600)
