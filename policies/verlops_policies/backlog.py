"""The field's rule: one rollout worker for each ``backlog_per_worker`` waiting prompts."""

from __future__ import annotations

from verlops.model import Desired, Memory, Observation, Pool


def decide(observation: Observation, memory: Memory, pool: Pool) -> Desired:
    """ceil(backlog / backlog_per_worker) within [min, max]; holds on a failed reading."""
    if "queue" in observation.missing or not observation.queue.ok:
        held = memory.desired.get("rollout", pool.min)
        return Desired(count=held, reason="holding: backlog unreadable")
    lag = observation.queue.lag
    count = max(pool.min, min(pool.max, -(-lag // pool.backlog_per_worker)))
    return Desired(count=count, reason=f"backlog of {lag:,} prompts")
