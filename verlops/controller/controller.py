"""The step: close open intents, observe, decide, save intents, act, learn, record.

Called by ``drive`` (the loop) and by ``verlops tick`` (once). Never sleeps. Holds the
lease ``controller``; everything that must outlive the process is in the state store.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from verlops.controller.act import Actor, adopted
from verlops.controller.journal import news, seen
from verlops.controller.observe import Observer
from verlops.controller.orders import orders
from verlops.controller.settings import Ports, Settings
from verlops.controller.signals import Signals
from verlops.errors import LeaseLostError
from verlops.model import (
    Action,
    Desired,
    Event,
    Intent,
    Launch,
    Memory,
    Observation,
    Outcome,
    Step,
    Tell,
    TrainerWish,
)
from verlops.plan import PlanResult, learn, plan
from verlops.ports import Lease

LEASE = "controller"


class Controller:
    """Decides for one environment, under its lease."""

    def __init__(
        self,
        ports: Ports,
        settings: Settings,
        *,
        run: str,
        holder: str,
        is_dead: Callable[[str], bool] | None = None,
    ) -> None:
        self._ports = ports
        self.settings = settings
        self._run = run
        self._holder = holder
        self._is_dead = is_dead
        self._lease: Lease | None = None
        self.observer = Observer(ports, settings, Signals(ports, settings, run))
        self._actor = Actor(ports, settings, run)

    def step(self) -> Step:
        """One step. Raises LeaseHeldError or LeaseLostError when somebody else acts."""
        now = self._ports.clock.now()
        fence = self.hold(now)
        memory, intents = self._ports.state.load()
        observation = self.observer.observe(now, memory)
        memory, late = self._close(memory, intents, observation, fence)
        desired, wish, result = self._decide(observation, memory)
        known = {o.intent_id for o in late if _definite(o)}
        still_open = {_about(i.action) for i in intents if i.id not in known}
        step = self._carry_out(observation, desired, wish, result, still_open, fence)
        self.observer.signals.persist()
        self._order(observation, result, fence)
        return step

    def hold(self, now: float) -> int:
        """Take or renew the lease; return its fence."""
        before = self._lease
        lease = self._ports.state.acquire(
            LEASE, self._holder, self.settings.lease_ttl, now, self._is_dead
        )
        if before and before.fence != lease.fence:
            raise LeaseLostError("another controller took over while this one was away")
        self._lease = lease
        return lease.fence

    def go_down(self) -> None:
        """From the next step on: drain and end everything."""
        plan_settings = self.settings.plan.but(mode="down")
        self.settings = dataclasses.replace(self.settings, plan=plan_settings)

    def release(self) -> None:
        """Give the lease back, if held."""
        if self._lease:
            self._ports.state.release(self._lease)
            self._lease = None

    def _close(
        self, memory: Memory, intents: Sequence[Intent], observation: Observation, fence: int
    ) -> tuple[Memory, list[Outcome]]:
        if not intents:
            return memory, []
        outcomes = [adopted(i, observation.instances) or self._actor.act(i, fence) for i in intents]
        memory = learn(memory, intents, outcomes, observation, self.settings.plan)
        closed = [o.intent_id for o in outcomes if _definite(o)]
        events = [_event(i, o, observation.now) for i, o in zip(intents, outcomes, strict=True)]
        self._ports.state.save(memory, closed=closed, events=events, fence=fence)
        return memory, outcomes

    def _decide(
        self, observation: Observation, memory: Memory
    ) -> tuple[Desired, TrainerWish, PlanResult]:
        settings = self.settings
        desired = settings.policy(observation, memory, settings.plan.pool)
        wish = settings.trigger(observation, memory, settings.plan.rule)
        if settings.updates is not None and observation.version >= settings.updates:
            wish = TrainerWish(action="none", reason=f"{settings.updates} updates are committed")
        return desired, wish, plan(observation, desired, wish, memory, settings.plan)

    def _carry_out(
        self,
        observation: Observation,
        desired: Desired,
        wish: TrainerWish,
        result: PlanResult,
        still_open: set[str],
        fence: int,
    ) -> Step:
        state, now = self._ports.state, observation.now
        events = news(observation, result.memory, self.observer.signals.unfinished)
        # A machine of an open intent may or may not exist: nothing new for its slot.
        actions = tuple(a for a in result.actions if _about(a) not in still_open)
        intents = [self._intent(action, now, fence) for action in actions]
        state.save(result.memory, opened=intents, fence=fence)
        outcomes = [self._actor.act(intent, fence) for intent in intents]
        memory = learn(result.memory, intents, outcomes, observation, self.settings.plan)
        memory = memory.but(
            seen=seen(observation) if "instances" not in observation.missing else memory.seen,
            version=observation.version,
            rate=observation.groups_per_s,
        )
        events += [_event(i, o, now) for i, o in zip(intents, outcomes, strict=True)]
        events += [Event(at=now, kind="alarm", reason=alarm) for alarm in result.alarms]
        events += self._version_news(result.memory, observation)
        closed = [o.intent_id for o in outcomes if _definite(o)]
        state.save(memory, closed=closed, events=events, fence=fence)
        return Step(
            observation=observation,
            desired=desired,
            wish=wish,
            actions=actions,
            outcomes=tuple(outcomes),
            events=tuple(events),
            alarms=result.alarms,
        )

    def _version_news(self, memory: Memory, observation: Observation) -> list[Event]:
        found: list[Event] = []
        for number in range(memory.version + 1, observation.version + 1):
            version = self.observer.signals.versions.get(number)
            if version:
                data = {"version": number, "metrics": version.metrics, "counts": version.counts}
                at = version.committed_at
                found.append(Event(at=at, kind="version", instance_id=version.instance, data=data))
        return found

    def _order(self, observation: Observation, result: PlanResult, fence: int) -> None:
        signals = self.observer.signals
        alive = {i.id for i in observation.of_role("reward") if i.phase == "ready"}
        urls = [b.url for i, b in signals.beats.items() if i in alive and b.url]
        plan_settings = self.settings.plan
        for control in orders(
            observation,
            plan_settings.rule,
            group_size=self.settings.group_size,
            fence=fence,
            reward_url=urls[0] if urls else "",
            mode=plan_settings.mode,
            stopped=result.stopped,
        ):
            self._actor.tell(control)

    def _intent(self, action: Action, now: float, fence: int) -> Intent:
        return Intent(id=self._ports.ids.new(), action=action, at=now, fence=fence)


def _about(action: Action) -> str:
    """What an action is about: a slot, a machine, or a control target."""
    if isinstance(action, Launch):
        return action.slot
    return action.target if isinstance(action, Tell) else action.instance_id


def _definite(outcome: Outcome) -> bool:
    return outcome.status != "unknown"


def _event(intent: Intent, outcome: Outcome, now: float) -> Event:
    action = intent.action
    kind = type(action).__name__.lower()
    name = f"{action.role} {action.offer.id}" if isinstance(action, Launch) else ""
    return Event(
        at=now,
        kind="decision",
        instance_id=outcome.instance_id or str(getattr(action, "instance_id", "")),
        reason=action.reason,
        data={
            "action": f"{kind} {name}".strip(),
            "status": outcome.status,
            "error": outcome.error,
            "detail": outcome.detail,
        },
    )
