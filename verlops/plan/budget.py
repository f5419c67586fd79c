"""What may still be spent.

committed = spent + what it costs to drain all that runs + the running trainer's forecast
to its end. A launch must fit below the limit with its own least cost; once committed
reaches the limit, everything goes, and stays away until the limit changes (or, for the
daily one, until the next day in UTC): what was reserved for draining is not spent on
new machines. Amounts in micro-units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from verlops.model import MICRO, Instance, Launch, Memory, Observation
from verlops.plan.settings import PlanSettings

DAY = 86400
"""Seconds; a budget's day is the UTC day, as the bill's is."""


class Limit(NamedTuple):
    """One limit: what is used of it, how much it is, and the day it holds for."""

    name: str
    used: int
    most: int
    day: int | None


def roll_day(memory: Memory, observation: Observation) -> Memory:
    """The memory with the money spent before the present UTC day.

    What is spent between midnight and the day's first step counts for the day before.
    """
    day = _day(observation)
    if memory.extra.get("day") == day:
        return memory
    return memory.but(extra={**memory.extra, "day": day, "spent_before": observation.spent})


def watch(memory: Memory, observation: Observation, settings: PlanSettings) -> tuple[Memory, str]:
    """Which hard limit is reached, in words (empty: none), and the memory of it."""
    reserve = reserved(observation, memory, settings)
    for limit in _limits(observation, memory, settings):
        mark = [limit.name, limit.most, limit.day]
        if limit.used + reserve >= limit.most or memory.extra.get("reached") == mark:
            text = (
                f"the {limit.name} budget of {_amount(limit.most)} is reached: "
                f"{_amount(limit.used)} spent, {_amount(reserve)} to wind down"
            )
            return memory.but(extra={**memory.extra, "reached": mark}), text
    if "reached" in memory.extra:
        extra = {key: value for key, value in memory.extra.items() if key != "reached"}
        memory = memory.but(extra=extra)
    return memory, ""


def refuses(
    launch: Launch,
    pending: Sequence[Launch],
    observation: Observation,
    memory: Memory,
    settings: PlanSettings,
) -> str:
    """Why a launch must not be made, or empty. ``pending``: launches of this round."""
    per_hour, new = settings.budget.per_hour, (*pending, launch)
    hourly = sum(i.offer.price for i in observation.instances if i.phase != "gone")
    hourly += sum(one.offer.price for one in new)
    if per_hour is not None and hourly > per_hour:
        return f"{_amount(hourly)} an hour would pass the budget of {_amount(per_hour)} per hour"
    committed = reserved(observation, memory, settings) + sum(_least(o, settings) for o in new)
    for limit in _limits(observation, memory, settings):
        if limit.used + committed > limit.most:
            total = _amount(limit.used + committed)
            return f"{total} would pass the {limit.name} budget of {_amount(limit.most)}"
    return ""


def reserved(observation: Observation, memory: Memory, settings: PlanSettings) -> int:
    """What it costs to let everything that runs come to its end."""
    return sum(
        _cost(i.offer.price, _seconds_left(i, observation.now, memory, settings))
        for i in observation.instances
        if i.phase != "gone"
    )


def within_forecast(trainer: Instance, now: float, settings: PlanSettings) -> bool:
    """Whether a running update's end is already paid for in what is reserved."""
    return now - trainer.launched_at < settings.rule.forecast_s


def _limits(observation: Observation, memory: Memory, settings: PlanSettings) -> list[Limit]:
    budget, found = settings.budget, []
    if budget.total is not None:
        found.append(Limit("total", observation.spent, budget.total, None))
    if budget.per_day is not None:
        today = observation.spent - int(memory.extra.get("spent_before", observation.spent))
        found.append(Limit("daily", today, budget.per_day, _day(observation)))
    return found


def _seconds_left(instance: Instance, now: float, memory: Memory, settings: PlanSettings) -> float:
    if instance.role == "trainer":
        return max(0.0, settings.rule.forecast_s - (now - instance.launched_at))
    since = memory.draining.get(instance.id, now)
    return max(0.0, settings.pool.drain_timeout - (now - since))


def _least(launch: Launch, settings: PlanSettings) -> int:
    trainer = launch.role == "trainer"
    seconds = settings.rule.forecast_s if trainer else settings.pool.drain_timeout
    return _cost(launch.offer.price, seconds)


def _cost(price: int, seconds: float) -> int:
    return round(price * seconds / 3600)


def _day(observation: Observation) -> int:
    return int(observation.now // DAY)


def _amount(micro: int) -> str:
    return f"{micro / MICRO:,.2f}"
