"""Offers that failed: how long they rest, and when Spot as a whole is failing.

Called by ``learn`` and ``ends``, which know of failures, and by the choice of offers.
"""

from __future__ import annotations

from verlops.model import Bar, Instance, Memory, Observation, Offer, Pool, Role


def launch_failed(memory: Memory, role: Role, offer: Offer, now: float, pool: Pool) -> Memory:
    """The memory after an offer gave no machine, or one that never came up."""
    memory = bar(memory, offer, now, pool)
    if role == "rollout" and offer.market == "spot":
        return spot_failed(memory, now)
    return memory


def bar(memory: Memory, offer: Offer, now: float, pool: Pool) -> Memory:
    """The memory with an offer barred for ``pool.bar`` seconds."""
    old = memory.bars.get(offer.id)
    failures = old.failures + 1 if old else 1
    new = Bar(until=now + pool.bar, failures=failures, failed_at=now)
    return memory.but(bars={**memory.bars, offer.id: new})


def spot_failed(memory: Memory, now: float) -> Memory:
    """Count one failure to get a Spot rollout worker."""
    since = now if memory.spot_failing_since is None else memory.spot_failing_since
    return memory.but(spot_failures=memory.spot_failures + 1, spot_failing_since=since)


def is_barred(memory: Memory, offer: Offer, now: float) -> bool:
    """Whether an offer still rests."""
    found = memory.bars.get(offer.id)
    return found is not None and now < found.until


def penalty(memory: Memory, offer: Offer, now: float, pool: Pool) -> float:
    """What its price is multiplied by: 2 just after its bar, 1 ``recover`` seconds later.

    Twice the price lets any pool of the same kind and market that has not failed go
    first, unless it costs more than double.
    """
    found = memory.bars.get(offer.id)
    if found is None or not pool.recover:
        return 1.0
    return 1.0 + max(0.0, 1.0 - (now - found.until) / pool.recover)


def refresh(memory: Memory, observation: Observation, pool: Pool) -> Memory:
    """The memory without bars that are over, and without Spot failures once Spot works.

    A launch that was accepted proves nothing: a pool may take launches all day and
    never bring one up. The first Spot worker that comes up after the failures does.
    """
    now = observation.now
    bars = {key: b for key, b in memory.bars.items() if now < b.until + pool.recover}
    if len(bars) < len(memory.bars):
        memory = memory.but(bars=bars)
    since = memory.spot_failing_since
    if since is not None and any(_came_up(i, since) for i in observation.instances):
        return memory.but(spot_failures=0, spot_failing_since=None)
    return memory


def _came_up(instance: Instance, since: float) -> bool:
    ready = instance.role == "rollout" and instance.phase == "ready"
    up_at = instance.launched_at if instance.ready_at is None else instance.ready_at
    return ready and instance.offer.market == "spot" and up_at > since
