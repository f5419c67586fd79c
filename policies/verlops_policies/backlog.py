"""The field's rule: one rollout worker for each ``backlog_per_worker`` waiting prompts.

Called by the controller once a step. Never looks at money, samples or machines: the plan
holds, steps and caps what is wanted here.
"""

from __future__ import annotations

from verlops.model import Desired, Memory, Observation, Pool


def decide(observation: Observation, memory: Memory, pool: Pool) -> Desired:
    """ceil(backlog / backlog_per_worker) within [min, max]; holds on a failed reading."""
    queue = observation.queue
    if "queue" in observation.missing or not queue.ok or queue.lag < 0:
        return _within(memory.desired.get(pool.role, pool.min), "holding: backlog unreadable", pool)
    wanted = -(-queue.lag // pool.backlog_per_worker)
    reason = f"backlog of {queue.lag:,} prompts at {pool.backlog_per_worker:,} a worker"
    return _within(wanted, reason, pool)


def _within(count: int, reason: str, pool: Pool) -> Desired:
    # Where min and max contradict (few partitions), max holds: the rest would be idle.
    return Desired(count=min(pool.max, max(pool.min, count)), reason=reason)
