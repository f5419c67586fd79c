"""What the provider's listing tells that the journal does not know yet. Pure.

The ledger rests on these events alone: a launch whose answer was lost, a machine that
came and went between two steps, an end that was learnt late are all caught here,
because the listing names every machine and the time of each change.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from verlops.model import Event, Instance, Memory, Observation, Offer


def news(
    observation: Observation, memory: Memory, unfinished: Callable[[str], int | None]
) -> list[Event]:
    """Events for every machine whose phase changed since ``memory.seen``.

    ``unfinished`` says how many groups a machine last held that have no receipt.
    """
    found: list[Event] = []
    for instance in observation.instances:
        before = memory.seen.get(instance.id)
        if before is None:
            found.append(_launched(instance, observation.offers))
        if before != instance.phase:
            found.extend(_changed(instance, before, unfinished))
    return found


def seen(observation: Observation) -> dict[str, str]:
    """What ``memory.seen`` becomes."""
    return {instance.id: instance.phase for instance in observation.instances}


def _launched(instance: Instance, offers: tuple[Offer, ...]) -> Event:
    offer = instance.offer
    return Event(
        at=instance.launched_at,
        kind="launched",
        instance_id=instance.id,
        data={
            "key": instance.key,
            "role": instance.role,
            "offer": msgspec.to_builtins(offer),
            "price": offer.price,
            "currency": offer.currency,
            "market": offer.market,
            "gpu": offer.gpu,
            "gpus": offer.gpus,
            "on_demand_price": _on_demand_price(offer, offers),
        },
    )


def _on_demand_price(offer: Offer, offers: tuple[Offer, ...]) -> int | None:
    if offer.market != "spot":
        return offer.price
    same = [
        o.price
        for o in offers
        if o.market == "on_demand" and (o.gpu, o.gpus) == (offer.gpu, offer.gpus)
    ]
    return min(same, default=None)


def _changed(
    instance: Instance, before: str | None, unfinished: Callable[[str], int | None]
) -> list[Event]:
    found: list[Event] = []
    if instance.ready_at is not None and before in (None, "pending", "booting"):
        found.append(Event(at=instance.ready_at, kind="ready", instance_id=instance.id))
    if instance.phase == "doomed":
        found.append(_noticed(instance))
    if instance.phase == "gone" and instance.ended is not None:
        found.append(_ended(instance, unfinished(instance.id)))
    return found


def _noticed(instance: Instance) -> Event:
    deadline = instance.notice_deadline or 0.0
    return Event(
        at=instance.beat_at or instance.launched_at,
        kind="notice",
        instance_id=instance.id,
        reason="the machine will be taken away",
        data={"deadline": deadline, "in_flight": instance.in_flight},
    )


def _ended(instance: Instance, unfinished: int | None) -> Event:
    ended = instance.ended
    assert ended is not None
    return Event(
        at=ended.at,
        kind="ended",
        instance_id=instance.id,
        reason=ended.reason,
        data={
            "code": ended.code,
            "detail": ended.detail,
            "role": instance.role,
            "noticed": instance.notice_deadline is not None,
            "unfinished": unfinished,
        },
    )
