"""Which machines must go, and how: at once, or drained first.

Called by the round. Every machine that goes is named; nothing is left to the cloud to
choose, because it would take busy ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from verlops.model import Action, Drain, Instance, Memory, Observation, Terminate
from verlops.plan.budget import within_forecast
from verlops.plan.ends import COMING
from verlops.plan.settings import PlanSettings

Rule = Callable[[Instance, Observation, Memory, PlanSettings], str]


def to_end(observation: Observation, memory: Memory, settings: PlanSettings) -> dict[str, str]:
    """Instance id → why it is ended now, at once; no cooldown, no minimum life."""
    found = {}
    for instance in observation.instances:
        whys = (rule(instance, observation, memory, settings) for rule in _RULES)
        why = next(filter(None, whys), "") if instance.phase != "gone" else ""
        if why:
            found[instance.id] = why
    return found


def is_overdue(instance: Instance, observation: Observation, settings: PlanSettings) -> bool:
    """Whether a machine should have been ready by now."""
    trainer = instance.role == "trainer"
    deadline = settings.rule.boot_deadline if trainer else settings.pool.boot_deadline
    # Only a beat says that a machine serves: unread, it may well.
    judged = instance.phase in COMING and "beats" not in observation.missing
    return judged and observation.now - instance.launched_at > deadline


def is_capacity(instance: Instance, memory: Memory, ending: Mapping[str, str]) -> bool:
    """Whether a machine works or will: it is not leaving, lost, or about to be taken."""
    there = instance.phase in (*COMING, "ready")
    return there and instance.id not in memory.draining and instance.id not in ending


def pick(workers: Sequence[Instance], count: int, now: float, min_life: float) -> list[Instance]:
    """The victims of a scale-in: booting, then idle, then least in flight, then dearest,
    then youngest (the old ones have shown that they survive).

    Ready ones younger than ``min_life`` stay; a booting one has done nothing to keep.
    """
    old_enough = [w for w in workers if w.phase in COMING or now - w.launched_at >= min_life]

    def order(w: Instance) -> tuple[bool, float, int, float, str]:
        in_flight = float("inf") if w.in_flight is None else w.in_flight
        return (w.phase not in COMING, in_flight, -w.offer.price, -w.launched_at, w.id)

    return sorted(old_enough, key=order)[:count]


def remove(instance: Instance, reason: str) -> Action:
    """End a booting machine; drain any other, so that none becomes busy meanwhile."""
    return terminate(instance, reason) if instance.phase in COMING else drain(instance, reason)


def terminate(instance: Instance, reason: str) -> Terminate:
    """The action that ends a machine now."""
    return Terminate(instance_id=instance.id, key=instance.key, reason=reason)


def drain(instance: Instance, reason: str) -> Drain:
    """The action that lets a machine finish what it holds and take nothing more."""
    return Drain(instance_id=instance.id, key=instance.key, reason=reason)


def wind_down(
    observation: Observation, memory: Memory, settings: PlanSettings, reason: str
) -> tuple[Action, ...]:
    """Everything goes: workers drained, booting ones and the trainer at once, the reward
    server last, because workers that drain still need their last scores.

    When money is the reason, a running update whose end is reserved for comes to it:
    ended now, all that it cost would be lost and nothing saved that was not set aside.
    """
    ending = to_end(observation, memory, settings)
    listed = [i for i in observation.instances if i.phase != "gone"]
    actions: list[Action] = [terminate(i, ending[i.id]) for i in listed if i.id in ending]
    rest = [i for i in listed if i.id not in ending and i.id not in memory.draining]
    actions += [remove(i, reason) for i in rest if i.role == "rollout"]
    trainers = [i for i in rest if i.role == "trainer"]
    actions += [terminate(i, reason) for i in trainers if not _may_end(i, observation, settings)]
    if not any(i.role == "rollout" for i in listed):
        actions += [terminate(i, reason) for i in rest if i.role == "reward"]
    return tuple(actions)


def _may_end(trainer: Instance, observation: Observation, settings: PlanSettings) -> bool:
    running = settings.mode == "run" and trainer.phase == "ready"
    return running and within_forecast(trainer, observation.now, settings)


def _drained(
    instance: Instance, observation: Observation, memory: Memory, settings: PlanSettings
) -> str:
    since = memory.draining.get(instance.id)
    if instance.phase == "doomed" and instance.notice_deadline is not None:
        return ""  # It leaves by itself, and may use its notice to the last second.
    if instance.drained:
        return "drained"
    late = since is not None and observation.now - since >= settings.pool.drain_timeout
    return "its time to drain is over" if late else ""


def _overdue(
    instance: Instance, observation: Observation, memory: Memory, settings: PlanSettings
) -> str:
    del memory
    if not is_overdue(instance, observation, settings):
        return ""
    return f"not ready {observation.now - instance.launched_at:.0f} s after its launch"


def _silent(
    instance: Instance, observation: Observation, memory: Memory, settings: PlanSettings
) -> str:
    """A trainer in the middle of a step may be silent; its guard watches its progress."""
    del memory
    speaks = instance.phase in ("ready", "draining") and instance.role != "trainer"
    if not speaks or "beats" in observation.missing:
        return ""
    heard_at = max(instance.launched_at, instance.ready_at or 0.0, instance.beat_at or 0.0)
    silence = observation.now - heard_at
    return f"no beat for {silence:.0f} s" if silence > settings.pool.dead_after else ""


def _notice_over(
    instance: Instance, observation: Observation, memory: Memory, settings: PlanSettings
) -> str:
    """Warned, spared by the cloud, and no longer working: it must not stay, billed."""
    del memory
    deadline = instance.notice_deadline
    if instance.phase != "doomed" or deadline is None:
        return ""
    # As long again as a machine may be silent: a cloud takes a while after its deadline.
    over = observation.now - deadline > settings.pool.dead_after
    return "its notice is over and it is still there" if over else ""


_RULES: tuple[Rule, ...] = (_drained, _overdue, _silent, _notice_over)
