"""From outcomes to memory."""

from __future__ import annotations

from collections.abc import Sequence

from verlops.model import Drain, Intent, Launch, Memory, Observation, Outcome
from verlops.plan.ends import bar, spot_failed
from verlops.plan.keys import next_generation
from verlops.plan.settings import PlanSettings

REMEDIES = {
    "QuotaError": "raise the quota, then run `verlops up` again",
    "CredentialsError": "renew the credentials, then run `verlops up` again",
    "BudgetError": "raise the budget, then run `verlops up` again",
}


def learn(
    memory: Memory,
    intents: Sequence[Intent],
    outcomes: Sequence[Outcome],
    observation: Observation,
    settings: PlanSettings,
) -> Memory:
    """The memory after these outcomes. An unknown outcome teaches nothing."""
    found = {outcome.intent_id: outcome for outcome in outcomes}
    for intent in intents:
        outcome = found[intent.id]
        if isinstance(intent.action, Launch) and outcome.status == "ok":
            memory = _launched(memory, intent.action)
        elif isinstance(intent.action, Launch) and outcome.status == "refused":
            memory = _refused(memory, intent.action, outcome, observation.now, settings)
        elif isinstance(intent.action, Drain) and outcome.status == "ok":
            since = {intent.action.instance_id: observation.now}
            memory = memory.but(draining={**since, **memory.draining})
    return memory


def _launched(memory: Memory, launch: Launch) -> Memory:
    if launch.role == "trainer":
        parent = int(launch.slot.removeprefix("trainer-"))
        return memory.but(trainer_launches=memory.trainer_launches + 1, trainer_parent=parent)
    if launch.role == "rollout" and launch.offer.market == "spot":
        return memory.but(spot_failures=0, spot_failing_since=None)
    return memory


def _refused(
    memory: Memory, launch: Launch, outcome: Outcome, now: float, settings: PlanSettings
) -> Memory:
    memory = next_generation(memory, launch.slot)
    if outcome.error in REMEDIES:
        return memory.but(stopped=f"{outcome.detail}: {REMEDIES[outcome.error]}")
    memory = bar(memory, launch.offer.id, now, settings)
    if launch.role == "rollout" and launch.offer.market == "spot":
        memory = spot_failed(memory, now)
    return memory
