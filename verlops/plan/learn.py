"""From outcomes to memory.

Called by the controller after it acted, and for late outcomes of intents left open.
"""

from __future__ import annotations

from collections.abc import Sequence

from verlops.model import (
    Action,
    Drain,
    Intent,
    Launch,
    Memory,
    Observation,
    Outcome,
    Tell,
    Terminate,
)
from verlops.plan.bars import launch_failed
from verlops.plan.ends import absorb, never_ready
from verlops.plan.keys import current_key, held, hold, next_generation, parent_of
from verlops.plan.settings import PlanSettings
from verlops.plan.victims import is_overdue

REMEDIES = {
    "QuotaError": "raise the quota, then run `verlops up` again",
    "CredentialsError": "renew the credentials, then run `verlops up` again",
    "BudgetError": "raise the budget, then run `verlops up` again",
}
"""Refusals that another try cannot mend, and what a person must do."""


def learn(
    memory: Memory,
    intents: Sequence[Intent],
    outcomes: Sequence[Outcome],
    observation: Observation,
    settings: PlanSettings,
) -> Memory:
    """The memory after these outcomes and the ends observed.

    An unknown or missing outcome teaches nothing: its intent stays open.
    """
    if "instances" not in observation.missing:
        memory = absorb(memory, observation, settings)
    found = {outcome.intent_id: outcome for outcome in outcomes}
    for intent in intents:
        outcome = found.get(intent.id)
        if outcome is not None and outcome.status != "unknown":
            memory = _learnt(memory, intent.action, outcome, observation, settings)
    return memory


def _learnt(
    memory: Memory,
    action: Action,
    outcome: Outcome,
    observation: Observation,
    settings: PlanSettings,
) -> Memory:
    ok = outcome.status == "ok"
    if isinstance(action, Launch):
        present = action.key == current_key(settings.name, action.slot, memory)
        if not present:
            return memory  # A launch of the past: its slot has gone on since.
        if ok:
            return _launched(memory, action, observation.now)
        return _refused(memory, action, outcome, observation.now, settings)
    if isinstance(action, Tell) or not ok:
        return memory
    return _leaves(memory, action, observation, settings)


def _launched(memory: Memory, launch: Launch, now: float) -> Memory:
    if launch.slot in held(memory):
        return memory
    memory = hold(memory, {**held(memory), launch.slot: now})
    if launch.role != "trainer":
        return memory
    launches = memory.trainer_launches + 1
    return memory.but(trainer_launches=launches, trainer_parent=parent_of(launch.slot))


def _refused(
    memory: Memory, launch: Launch, outcome: Outcome, now: float, settings: PlanSettings
) -> Memory:
    memory = next_generation(memory, launch.slot)
    if outcome.error in REMEDIES:
        return memory.but(stopped=f"{outcome.detail}: {REMEDIES[outcome.error]}")
    return launch_failed(memory, launch.role, launch.offer, now, settings.pool)


def _leaves(
    memory: Memory, action: Drain | Terminate, observation: Observation, settings: PlanSettings
) -> Memory:
    """The memory with one more machine told to go, since the first time it was told."""
    if action.instance_id in memory.draining:
        return memory
    now = observation.now
    instance = next((i for i in observation.instances if i.id == action.instance_id), None)
    if instance is not None and is_overdue(instance, observation, settings):
        memory = never_ready(memory, instance, now, settings)
    return memory.but(draining={**memory.draining, action.instance_id: now})
