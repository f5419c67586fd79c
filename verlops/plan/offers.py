"""Which offer to take: GPU kind first, then market, then effective price.

Called by the round for each launch. Never looks at an offer's name.
"""

from __future__ import annotations

from verlops.model import Memory, Observation, Offer, Role
from verlops.plan.bars import is_barred, penalty
from verlops.plan.settings import PlanSettings


def choose(
    role: Role, observation: Observation, memory: Memory, settings: PlanSettings
) -> Offer | None:
    """The best offer for a role that can be taken now, or None."""
    fitting, now = _fitting(role, observation, settings), observation.now
    free = [o for o in fitting if o.available and not is_barred(memory, o, now)]
    if role == "rollout" and not _on_demand_open(fitting, free, now, memory, settings):
        free = [o for o in free if o.market != "on_demand"]
    gpus, markets = settings.gpu_order.get(role, ()), settings.market_order.get(role, ())

    def order(offer: Offer) -> tuple[int, int, float, str]:
        price = offer.price * penalty(memory, offer, now, settings.pool)
        return (gpus.index(offer.gpu), markets.index(offer.market), price, offer.id)

    return min(free, key=order, default=None)


def spot_is_out(observation: Observation, settings: PlanSettings) -> bool:
    """Whether there are Spot pools for rollout and every one says that it has nothing.

    That is a failure like a refusal, though no launch was tried.
    """
    spot = [o for o in _fitting("rollout", observation, settings) if o.market == "spot"]
    return bool(spot) and not any(o.available for o in spot)


def _fitting(role: Role, observation: Observation, settings: PlanSettings) -> list[Offer]:
    gpus, markets = settings.gpu_order.get(role, ()), settings.market_order.get(role, ())
    least = settings.min_gpus.get(role, 1)
    return [
        o
        for o in observation.offers
        if o.gpu in gpus
        and o.market in markets
        and o.gpus >= least
        # A price of nothing is a fault of a catalog, not a bargain.
        and (o.price > 0 or o.market == "owned")
    ]


def _on_demand_open(
    fitting: list[Offer], free: list[Offer], now: float, memory: Memory, settings: PlanSettings
) -> bool:
    """On-demand workers only where no Spot pool can be tried, and none could for long.

    A Spot machine that is still booting is no reason, so nothing counts but failures.
    Where there is no Spot pool at all, waiting for one would be pointless.
    """
    if any(o.market == "spot" for o in free):
        return False
    if not any(o.market == "spot" for o in fitting):
        return True
    since, pool = memory.spot_failing_since, settings.pool
    long_enough = since is not None and now - since >= pool.on_demand_after
    return long_enough and memory.spot_failures >= pool.on_demand_after_failures
