"""One round of planning: the rules in their order of precedence.

Called by the controller between the policy and the saving of intents.
"""

from __future__ import annotations

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
from verlops.plan.bars import spot_failed
from verlops.plan.ends import absorb, just_ended
from verlops.plan.keys import current_key, free_slots, held, role_of, trainer_slot
from verlops.plan.offers import choose, spot_is_out
from verlops.plan.settings import PlanResult, PlanSettings
from verlops.plan.target import Target, step_down, target
from verlops.plan.victims import drain, is_capacity, pick, remove, terminate, to_end, wind_down


def plan(
    observation: Observation,
    desired: Desired,
    wish: TrainerWish,
    memory: Memory,
    settings: PlanSettings,
) -> PlanResult:
    """What to do now. Deterministic; the same input gives the same actions and keys.

    Raises ConfigError when the policy does not give a whole number.
    """
    alarms: tuple[str, ...] = ()
    unlisted = "instances" in observation.missing
    if unlisted:
        alarms = ("machines cannot be listed: none is launched, only the last known are ended",)
    else:
        memory = absorb(memory, observation, settings)
    memory, limit = budget.watch(budget.roll_day(memory, observation), observation, settings)
    down = settings.mode == "down"
    if down or limit:
        # Before everything else, on the last known machines if need be: ending one that
        # is gone already does no harm.
        actions = wind_down(observation, memory, settings, "going down" if down else limit)
        alarms += () if down else (limit,)
        stopped = "going down" if down else "budget"
        return PlanResult(memory=memory, actions=actions, alarms=alarms, stopped=stopped)
    if unlisted:
        return PlanResult(memory=memory, alarms=alarms)
    return _Round(observation, memory, settings).run(desired, wish)


class _Round:
    """The actions of one round as they gather."""

    def __init__(self, observation: Observation, memory: Memory, settings: PlanSettings) -> None:
        self._seen = observation
        self._memory = memory
        self._settings = settings
        self._ending = to_end(observation, memory, settings)
        self._actions: list[Action] = []
        self._alarms: list[str] = []

    def run(self, desired: Desired, wish: TrainerWish) -> PlanResult:
        self._end_lost()
        if self._memory.stopped:
            self._alarms.append(f"launches are stopped: {self._memory.stopped}")
        elif "offers" in self._seen.missing:
            self._alarms.append("offers cannot be listed: nothing is launched")
        self._reward()
        self._trainer(wish)
        self._rollout(desired)
        return PlanResult(
            memory=self._memory, actions=tuple(self._actions), alarms=tuple(self._alarms)
        )

    def _end_lost(self) -> None:
        for instance in self._seen.instances:
            if instance.id in self._ending:
                self._actions.append(terminate(instance, self._ending[instance.id]))
        for worker in self._seen.of_role("rollout"):
            endless = worker.phase == "doomed" and worker.notice_deadline is None
            if endless and worker.id not in self._memory.draining | self._ending:
                self._actions.append(drain(worker, "it will be taken away, nobody says when"))

    def _reward(self) -> None:
        servers = self._capacity("reward")
        if not self._settings.reward:
            self._actions += [terminate(s, "no reward server is wanted") for s in servers]
        elif not servers and not self._coming("reward"):
            slot = next(free_slots("reward", self._memory))
            self._launch("reward", slot, "no reward server is running")

    def _trainer(self, wish: TrainerWish) -> None:
        memory, seen = self._memory, self._seen
        failing = memory.trainer_failures >= self._settings.rule.max_failures
        if failing:
            self._alarms.append(
                f"{memory.trainer_failures} trainers failed on version "
                f"{memory.trainer_failed_on}: no more are launched and the pool goes to its "
                "minimum; read the trainer's log, then run `verlops up` again"
            )
        alive = seen.of_role("trainer")
        if wish.action == "stop":
            self._actions += [terminate(t, wish.reason) for t in alive if t.id not in self._ending]
        slot = trainer_slot(seen.version)
        wait = failing or "versions" in seen.missing or just_ended(memory, slot, seen.now)
        if wish.action == "start" and not (wait or alive or self._coming("trainer")):
            self._launch("trainer", slot, wish.reason)

    def _rollout(self, desired: Desired) -> None:
        goal = target(self._seen, desired, self._memory, self._settings)
        self._memory = goal.memory
        self._alarms += goal.alarms
        workers = self._capacity("rollout")
        have = len(workers) + self._coming("rollout")
        why = f"{goal.reason}: {have} → {goal.size} workers"
        if have > goal.size:
            self._shrink(workers, have - goal.size, goal, why)
        elif have < goal.size:
            self._grow(goal.size - have, why)

    def _shrink(self, workers: list[Instance], spare: int, goal: Target, why: str) -> None:
        if goal.forced:
            victims = pick(workers, spare, self._seen.now, 0.0)
        elif goal.blind:
            victims = []
        else:
            spare = min(spare, step_down(len(workers)))
            victims = pick(workers, spare, self._seen.now, self._settings.pool.min_life)
        self._actions += [remove(victim, why) for victim in victims]

    def _grow(self, count: int, why: str) -> None:
        if "offers" not in self._seen.missing and spot_is_out(self._seen, self._settings):
            self._memory = spot_failed(self._memory, self._seen.now)
        slots = free_slots("rollout", self._memory)
        for _ in range(count):
            if not self._launch("rollout", next(slots), why):
                break

    def _capacity(self, role: Role) -> list[Instance]:
        found = self._seen.of_role(role)
        return [i for i in found if is_capacity(i, self._memory, self._ending)]

    def _coming(self, role: Role) -> int:
        """Machines that were launched and that the listing does not show yet."""
        listed, name = {i.key for i in self._seen.instances}, self._settings.name
        slots = [slot for slot in held(self._memory) if role_of(slot) == role]
        return sum(current_key(name, slot, self._memory) not in listed for slot in slots)

    def _launch(self, role: Role, slot: str, reason: str) -> bool:
        """Add a launch, or say why there is none."""
        if self._memory.stopped or "offers" in self._seen.missing:
            return False
        offer = choose(role, self._seen, self._memory, self._settings)
        if offer is None:
            self._alarms.append(f"no offer for a {role} machine: all are barred or sold out")
            return False
        launch = Launch(
            key=current_key(self._settings.name, slot, self._memory),
            role=role,
            slot=slot,
            generation=self._memory.generations.get(slot, 0),
            offer=offer,
            reason=reason,
        )
        pending = [a for a in self._actions if isinstance(a, Launch)]
        why = budget.refuses(launch, pending, self._seen, self._memory, self._settings)
        if why:
            self._alarms.append(f"no {role} machine is launched: {why}")
            return False
        self._actions.append(launch)
        return True
