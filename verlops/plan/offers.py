"""Which offer to take: GPU kind first, then market, then price."""

from __future__ import annotations

from verlops.model import Memory, Observation, Offer, Role
from verlops.plan.settings import PlanSettings


def choose(
    role: Role, observation: Observation, memory: Memory, settings: PlanSettings
) -> Offer | None:
    """The best offer for a role now, or None."""
    found = [o for o in observation.offers if _fits(role, o, observation.now, memory, settings)]
    gpus = list(settings.gpu_order.get(role, ()))
    markets = list(settings.market_order.get(role, ()))

    def order(offer: Offer) -> tuple[int, int, float, str]:
        price = offer.price * _penalty(offer, observation.now, memory, settings)
        return (gpus.index(offer.gpu), markets.index(offer.market), price, offer.id)

    return min(found, key=order, default=None)


def _fits(role: Role, offer: Offer, now: float, memory: Memory, settings: PlanSettings) -> bool:
    # A price of nothing is a fault of a catalog, not a bargain.
    wanted = offer.available and (offer.price > 0 or offer.market == "owned")
    wanted = wanted and offer.gpu in settings.gpu_order.get(role, ())
    wanted = wanted and offer.market in settings.market_order.get(role, ())
    wanted = wanted and offer.gpus >= settings.min_gpus.get(role, 1)
    bar = memory.bars.get(offer.id)
    barred = bar is not None and now < bar.until
    return wanted and not barred and _market_open(role, offer, now, memory, settings)


def _market_open(
    role: Role, offer: Offer, now: float, memory: Memory, settings: PlanSettings
) -> bool:
    """On-demand rollout only after Spot has failed often and long enough."""
    spot_too = "spot" in settings.market_order.get(role, ())
    if role != "rollout" or offer.market != "on_demand" or not spot_too:
        return True
    since, pool = memory.spot_failing_since, settings.pool
    long_enough = since is not None and now - since >= pool.on_demand_after
    return long_enough and memory.spot_failures >= pool.on_demand_after_failures


def _penalty(offer: Offer, now: float, memory: Memory, settings: PlanSettings) -> float:
    """2 just after its bar, falling to 1 over ``recover`` seconds."""
    bar = memory.bars.get(offer.id)
    if bar is None:
        return 1.0
    return 1.0 + max(0.0, 1.0 - (now - bar.until) / settings.pool.recover)
