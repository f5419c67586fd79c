"""Always the same number of rollout workers."""

from __future__ import annotations

from verlops.model import Desired, Memory, Observation, Pool


def decide(observation: Observation, memory: Memory, pool: Pool) -> Desired:
    """``fixed`` (or ``min``) within [min, max], whatever is observed."""
    del observation, memory
    wanted = pool.min if pool.fixed is None else pool.fixed
    count = max(pool.min, min(pool.max, wanted))
    return Desired(count=count, reason=f"fixed at {count}")
