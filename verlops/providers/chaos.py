"""Faults on order: spot notices and ``kill -9`` for machines that hold unfinished work.

Used by ``verlops up --chaos`` and by tests, on the local provider only. Injects after a
step, from what the step observed; every injection becomes an event of the journal.
"""

from __future__ import annotations

import random
import re
from typing import Literal, NamedTuple

from verlops.config.units import parse_duration
from verlops.errors import ConfigError
from verlops.model import Event, Instance, Step
from verlops.ports import Provider
from verlops.providers.local import LocalProvider

What = Literal["notice", "kill", "kill-trainer"]
_ITEM = re.compile(r"^(notice|kill|kill-trainer)@(.+)$")
EXAMPLE = "write it like notice@20s,kill@40s or random:90s"


class Fault(NamedTuple):
    """One fault, due so many seconds after the first step."""

    what: What
    after: float


class Plan(NamedTuple):
    """Faults by schedule, and the mean gap of random ones (None: none)."""

    faults: tuple[Fault, ...] = ()
    mean_gap: float | None = None


def parse_chaos(text: str) -> Plan:
    """The plan in ``notice@20s,kill@40s,random:90s``. Raises ConfigError."""
    faults: list[Fault] = []
    gap: float | None = None
    for item in (part.strip() for part in text.split(",")):
        try:
            if item.startswith("random:"):
                gap = parse_duration(item.removeprefix("random:"))
                continue
            match = _ITEM.match(item)
            if not match:
                raise ValueError(f"'{item}' is no fault")
            what: What = match[1]  # type: ignore[assignment]
            faults.append(Fault(what, parse_duration(match[2])))
        except ValueError as error:
            raise ConfigError(f"--chaos: {error}", hint=EXAMPLE) from error
    if gap is not None and gap <= 0:
        raise ConfigError("--chaos: the mean gap must be above zero", hint=EXAMPLE)
    return Plan(tuple(sorted(faults, key=lambda fault: fault.after)), gap)


class Chaos:
    """Injects the faults of a plan; ``seed`` repeats the random ones."""

    def __init__(self, plan: Plan, provider: Provider, seed: int) -> None:
        if not isinstance(provider, LocalProvider):
            raise ConfigError("--chaos works on the local provider only")
        self._provider = provider
        self._waiting = list(plan.faults)
        self._gap = plan.mean_gap
        self._random = random.Random(seed)
        self._started: float | None = None
        self._next = 0.0

    def after_step(self, step: Step, now: float) -> list[Event]:
        """Inject what is due and has a victim; one fault a step."""
        if self._started is None:
            self._started = now
            self._next = now + self._draw()
        for fault in self._due(now):
            victim = self._victim(fault.what, step)
            if victim is None:
                continue
            if fault in self._waiting:
                self._waiting.remove(fault)
            else:
                self._next = now + self._draw()
            return [self._inject(fault.what, victim, now)]
        return []

    def _due(self, now: float) -> list[Fault]:
        started = self._started or now
        due = [fault for fault in self._waiting if now - started >= fault.after]
        if self._gap is not None and now >= self._next:
            due.append(Fault(self._random.choice(("notice", "kill")), now - started))
        return due

    def _draw(self) -> float:
        return self._random.expovariate(1.0 / self._gap) if self._gap else 0.0

    def _victim(self, what: What, step: Step) -> Instance | None:
        """Of a rollout worker, one that holds unfinished groups; the same for one seed."""
        observation = step.observation
        if what == "kill-trainer":
            running = [t for t in observation.of_role("trainer") if t.phase == "ready"]
            return running[0] if running else None
        ended = {getattr(action, "instance_id", "") for action in step.actions}
        busy = [
            i
            for i in observation.of_role("rollout")
            if i.phase == "ready" and i.in_flight and i.id not in ended
        ]
        return self._random.choice(sorted(busy, key=lambda i: i.id)) if busy else None

    def _inject(self, what: What, victim: Instance, now: float) -> Event:
        if what == "notice":
            self._provider.notice(victim.id, self._provider.notice_s)
        else:
            self._provider.kill(victim.id)
        return Event(
            at=now,
            kind="chaos",
            instance_id=victim.id,
            reason="injected",
            data={"what": what, "in_flight": victim.in_flight, "role": victim.role},
        )
