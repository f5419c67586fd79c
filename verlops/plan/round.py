"""One round of planning: the rules in their order of precedence."""

from __future__ import annotations

from collections.abc import Iterator

from verlops.model import (
    Action,
    Desired,
    Instance,
    Launch,
    Memory,
    Observation,
    Role,
    TrainerWish,
)
from verlops.plan import budget
from verlops.plan.ends import absorb
from verlops.plan.keys import free_slots, machine_key
from verlops.plan.offers import choose
from verlops.plan.settings import PlanResult, PlanSettings
from verlops.plan.target import target
from verlops.plan.victims import finish_drains, is_lost, pick, remove, terminate, wind_down


def plan(
    observation: Observation,
    desired: Desired,
    wish: TrainerWish,
    memory: Memory,
    settings: PlanSettings,
) -> PlanResult:
    """What to do now. Deterministic; the same input gives the same actions and keys."""
    if "instances" in observation.missing:
        text = "machines cannot be listed: nothing is launched or ended"
        return PlanResult(memory=memory, alarms=(text,))
    memory = budget.roll_day(absorb(memory, observation, settings), observation)
    if settings.mode == "down":
        actions = wind_down(observation, memory, settings, "going down")
        return PlanResult(memory=memory, actions=tuple(actions), stopped="going down")
    limit = budget.reached(observation, memory, settings)
    if limit:
        actions = wind_down(observation, memory, settings, limit)
        return PlanResult(memory=memory, actions=tuple(actions), alarms=(limit,), stopped=limit)
    return _Round(observation, memory, settings).run(desired, wish)


class _Round:
    """The actions of one round as they gather."""

    def __init__(self, observation: Observation, memory: Memory, settings: PlanSettings) -> None:
        self._seen = observation
        self._memory = memory
        self._settings = settings
        self._actions: list[Action] = []
        self._alarms: list[str] = []

    def run(self, desired: Desired, wish: TrainerWish) -> PlanResult:
        self._actions += finish_drains(self._seen, self._memory, self._settings)
        self._end_lost()
        if self._memory.stopped:
            self._alarms.append(f"launches are stopped: {self._memory.stopped}")
        self._reward()
        self._rollout(desired)
        self._trainer(wish)
        return PlanResult(
            memory=self._memory, actions=tuple(self._actions), alarms=tuple(self._alarms)
        )

    def _end_lost(self) -> None:
        for instance in self._seen.instances:
            why = is_lost(instance, self._seen, self._settings)
            if why:
                self._actions.append(terminate(instance, why))

    def _reward(self) -> None:
        if self._settings.reward and not self._capacity("reward"):
            slots = free_slots(self._settings.name, "reward", self._seen.instances, self._memory)
            self._launch("reward", next(slots), "no reward server is running")

    def _rollout(self, desired: Desired) -> None:
        goal = target(self._seen, desired, self._memory, self._settings)
        self._memory = goal.memory
        self._alarms += goal.alarms
        workers = self._capacity("rollout")
        if len(workers) > goal.size:
            spare = len(workers) - goal.size
            for victim in pick(workers, spare, self._seen.now, self._settings.pool.min_life):
                self._actions.append(remove(victim, f"{goal.reason} → {goal.size} workers"))
        slots = self._rollout_slots()
        for _ in range(goal.size - len(workers)):
            if not self._launch("rollout", next(slots), f"{goal.reason} → {goal.size} workers"):
                break

    def _trainer(self, wish: TrainerWish) -> None:
        failing = self._memory.trainer_failures >= self._settings.rule.max_failures
        alive = self._seen.of_role("trainer")
        if wish.action == "stop":
            self._actions += [terminate(t, wish.reason) for t in alive]
        elif wish.action == "start" and not alive and not failing:
            self._launch("trainer", f"trainer-{self._seen.version}", wish.reason)

    def _capacity(self, role: Role) -> list[Instance]:
        """Machines that work or will: not leaving, not lost."""
        return [
            i
            for i in self._seen.of_role(role)
            if i.phase in ("pending", "booting", "ready")
            and i.id not in self._memory.draining
            and not is_lost(i, self._seen, self._settings)
        ]

    def _rollout_slots(self) -> Iterator[str]:
        return free_slots(self._settings.name, "rollout", self._seen.instances, self._memory)

    def _launch(self, role: Role, slot: str, reason: str) -> bool:
        """Add a launch, or say why not."""
        if self._memory.stopped or "offers" in self._seen.missing:
            return False
        offer = choose(role, self._seen, self._memory, self._settings)
        if offer is None:
            self._alarms.append(f"no offer for a {role} machine: all are barred or sold out")
            return False
        generation = self._memory.generations.get(slot, 0)
        key = machine_key(self._settings.name, role, slot, generation)
        launch = Launch(
            key=key, role=role, slot=slot, generation=generation, offer=offer, reason=reason
        )
        pending = [a for a in self._actions if isinstance(a, Launch)]
        why = budget.refuses(launch, pending, self._seen, self._memory, self._settings)
        if why:
            self._alarms.append(f"no {role} machine is launched: {why}")
            return False
        self._actions.append(launch)
        return True
