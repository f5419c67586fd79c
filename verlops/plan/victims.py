"""Which machines must go, and how: at once, or drained first."""

from __future__ import annotations

from collections.abc import Sequence

from verlops.model import Action, Drain, Instance, Memory, Observation, Terminate
from verlops.plan.settings import PlanSettings

COMING = ("pending", "booting")


def is_lost(instance: Instance, observation: Observation, settings: PlanSettings) -> str:
    """Why a machine is no capacity and must be replaced at once; empty when it is fine."""
    pool, now = settings.pool, observation.now
    deadline = settings.rule.boot_deadline if instance.role == "trainer" else pool.boot_deadline
    if instance.phase in COMING and now - instance.launched_at > deadline:
        return f"not ready after {deadline:.0f} s"
    silent_since = max(instance.beat_at or 0.0, instance.ready_at or 0.0)
    ready = instance.phase == "ready" and instance.role != "trainer"
    if ready and "beats" not in observation.missing and now - silent_since > pool.dead_after:
        return f"no beat for {now - silent_since:.0f} s"
    return ""


def finish_drains(observation: Observation, memory: Memory, settings: PlanSettings) -> list[Action]:
    """End what has drained, or has had its time to."""
    found: list[Action] = []
    for instance in observation.of_role("rollout"):
        since = memory.draining.get(instance.id)
        if since is None or instance.phase == "doomed":
            continue
        if instance.drained:
            found.append(terminate(instance, "drained"))
        elif observation.now - since >= settings.pool.drain_timeout:
            found.append(terminate(instance, "its time to drain is over"))
    return found


def pick(workers: Sequence[Instance], count: int, now: float, min_life: float) -> list[Instance]:
    """The victims of a scale-in: booting, then idle, then least in flight, then dearest,
    then youngest. Ready ones younger than ``min_life`` stay.
    """
    old_enough = [w for w in workers if w.phase in COMING or now - w.launched_at >= min_life]

    def order(w: Instance) -> tuple[bool, float, int, float, str]:
        held = float("inf") if w.in_flight is None else w.in_flight
        return (w.phase not in COMING, held, -w.offer.price, -w.launched_at, w.id)

    return sorted(old_enough, key=order)[:count]


def remove(instance: Instance, reason: str) -> Action:
    """End a booting machine; drain any other, so that none becomes busy meanwhile."""
    if instance.phase in COMING:
        return terminate(instance, reason)
    return Drain(instance_id=instance.id, key=instance.key, reason=reason)


def terminate(instance: Instance, reason: str) -> Terminate:
    """The action that ends a machine now."""
    return Terminate(instance_id=instance.id, key=instance.key, reason=reason)


def wind_down(
    observation: Observation, memory: Memory, settings: PlanSettings, reason: str
) -> list[Action]:
    """Everything goes: trainer and booting ones at once, workers drained, reward last."""
    actions = finish_drains(observation, memory, settings)
    workers = observation.of_role("rollout")
    gone_soon = {a.instance_id for a in actions if isinstance(a, Terminate)}
    for worker in workers:
        if worker.id in gone_soon or worker.id in memory.draining:
            continue
        lost = is_lost(worker, observation, settings)
        actions.append(terminate(worker, lost) if lost else remove(worker, reason))
    actions += [terminate(t, reason) for t in observation.of_role("trainer")]
    if not workers:
        # Workers that drain still need their last scores.
        actions += [terminate(r, reason) for r in observation.of_role("reward")]
    return actions
