"""Always the same number of rollout workers.

Called by the controller once a step; the plan alone decides how that number is reached.
"""

from __future__ import annotations

from verlops.model import Desired, Memory, Observation, Pool


def decide(observation: Observation, memory: Memory, pool: Pool) -> Desired:
    """``fixed`` (or ``min``) within [min, max], whatever is observed."""
    del observation, memory
    wanted = pool.min if pool.fixed is None else pool.fixed
    count = min(pool.max, max(pool.min, wanted))
    return Desired(count=count, reason=f"fixed at {count}")
