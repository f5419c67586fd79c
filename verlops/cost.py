"""Money: the integral of recorded prices over recorded intervals. Pure.

Used by the controller (spent so far, budgets) and by the report. Folds over journal
events, in any order, duplicates included. Integer micro-units throughout: an amount up
to a moment is the floor of the exact integral, so that windows add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from verlops.errors import ConfigError
from verlops.model import Event
from verlops.tally import TokenShare

HOUR_US = 3_600_000_000
CLASSES = ("rollout", "trainer", "reward", "boot", "idle", "wasted", "disk", "controller")


class Line(NamedTuple):
    """One machine at one price. Times in seconds since the epoch; amount in micro-units."""

    instance_id: str
    role: str
    market: str
    gpu: str
    gpus: int
    offer: str
    currency: str
    start: float
    end: float
    price: int
    amount: int
    on_demand_amount: int | None
    """The same machine-time on demand; None when its on-demand price is not known."""
    ready_at: float | None
    ended: str
    """Reason of the end; empty while the machine runs."""


class _Life(NamedTuple):
    instance_id: str
    start: float
    end: float
    ended: str
    ready_at: float | None
    prices: list[tuple[float, int]]
    facts: dict[str, Any]


def bill(
    events: Iterable[Event],
    now: float,
    minimum_s: float = 0,
    *,
    since: float | None = None,
    until: float | None = None,
) -> list[Line]:
    """Every machine's lines within [since, until), one for each price that was in force.

    A machine without an end runs until ``now``. ``minimum_s`` is the least that the
    provider bills. Raises ConfigError when currencies are mixed.
    """
    lives = _lives(events, now, minimum_s)
    currencies = {life.facts["currency"] for life in lives}
    if len(currencies) > 1:
        names = ", ".join(sorted(currencies))
        raise ConfigError(f"the journal mixes currencies ({names}); they are never added")
    low = float("-inf") if since is None else since
    high = now if until is None else until
    return [line for life in lives for line in _lines(life, low, high)]


def spent(lines: Iterable[Line]) -> int:
    """The sum in micro-units."""
    return sum(line.amount for line in lines)


def classify(lines: Sequence[Line], shares: Mapping[str, TokenShare]) -> dict[str, int]:
    """Micro-units by class; the sum is exactly ``spent(lines)``.

    A second has the first class that fits: wasted (a failed trainer; the part of a
    rollout worker's work whose output was lost, by its share of response tokens), boot
    (launch to ready), idle (ready, but beyond the GPU seconds of its receipts), its role.
    """
    split = dict.fromkeys(CLASSES, 0)
    by_machine: dict[str, list[Line]] = {}
    for line in lines:
        by_machine.setdefault(line.instance_id, []).append(line)
    for instance_id, own in by_machine.items():
        weights = _weights(own, shares.get(instance_id, TokenShare()))
        for name, amount in _shared(spent(own), weights).items():
            split[name] += amount
    return split


def _lives(events: Iterable[Event], now: float, minimum_s: float) -> list[_Life]:
    launched: dict[str, Event] = {}
    ended: dict[str, Event] = {}
    ready: dict[str, float] = {}
    prices: dict[str, set[tuple[float, int]]] = {}
    for event in events:
        if event.kind == "launched":
            launched[event.instance_id] = _earlier(launched.get(event.instance_id), event)
        elif event.kind == "ended":
            ended[event.instance_id] = _earlier(ended.get(event.instance_id), event)
        elif event.kind == "ready":
            ready[event.instance_id] = min(ready.get(event.instance_id, event.at), event.at)
        elif event.kind == "price":
            prices.setdefault(event.instance_id, set()).add((event.at, int(event.data["price"])))
    lives = []
    for instance_id in sorted(launched):
        start, end = launched[instance_id], ended.get(instance_id)
        least = start.at + minimum_s
        # A clock that was set back must not make a machine earn money.
        stop = max(start.at, end.at if end else now)
        known = sorted(prices.get(instance_id, set()))
        lives.append(
            _Life(
                instance_id,
                start.at,
                max(stop, least) if end else stop,
                end.reason if end else "",
                ready.get(instance_id),
                _in_force(start, known),
                start.data,
            )
        )
    return lives


def _earlier(old: Event | None, new: Event) -> Event:
    return new if old is None or new.at < old.at else old


def _in_force(launch: Event, known: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """(from, price), ascending, the first at the launch: the point before it included."""
    before = [price for at, price in known if at <= launch.at]
    first = before[-1] if before else int(launch.data["price"])
    return [(launch.at, first), *((at, price) for at, price in known if at > launch.at)]


def _lines(life: _Life, low: float, high: float) -> list[Line]:
    found: list[Line] = []
    exact = other = Fraction(0)
    facts, on_demand = life.facts, life.facts.get("on_demand_price")
    ends = [at for at, _ in life.prices[1:]] + [life.end]
    for (start, price), stop in zip(life.prices, ends, strict=True):
        if start >= life.end:
            break
        stop = min(stop, life.end)
        first, last = max(start, low), min(stop, high)
        if first < last:
            a, b = exact + _cost(price, start, first), exact + _cost(price, start, last)
            od = None
            if on_demand is not None:
                c, d = (other + _cost(on_demand, start, t) for t in (first, last))
                od = d.__floor__() - c.__floor__()
            found.append(
                Line(
                    life.instance_id,
                    facts["role"],
                    facts["market"],
                    facts["gpu"],
                    facts["gpus"],
                    _offer_id(facts),
                    facts["currency"],
                    first,
                    last,
                    price,
                    b.__floor__() - a.__floor__(),
                    od,
                    life.ready_at,
                    life.ended,
                )
            )
        exact += _cost(price, start, stop)
        other += _cost(on_demand or 0, start, stop)
    return found


def _offer_id(facts: dict[str, Any]) -> str:
    offer = facts.get("offer")
    return str(offer["id"]) if isinstance(offer, dict) else str(offer or "")


def _cost(price: int, start: float, end: float) -> Fraction:
    return Fraction(price * (_us(end) - _us(start)), HOUR_US)


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _weights(lines: Sequence[Line], share: TokenShare) -> dict[str, Fraction]:
    """Class → seconds, for the lines of one machine."""
    first = lines[0]
    total = sum((_span(line.start, line.end) for line in lines), Fraction(0))
    ready = first.ready_at
    boots = [_span(line.start, min(line.end, ready or line.end)) for line in lines]
    boot = sum((max(Fraction(0), b) for b in boots), Fraction(0))
    if first.role == "trainer" and first.ended not in ("", "done"):
        return {"wasted": total}
    if first.role != "rollout":
        return {"boot": boot, first.role: total - boot}
    work = min(Fraction(share.gpu_seconds), total - boot)
    tokens = share.trained + share.usable + share.lost
    lost = work * Fraction(share.lost, tokens) if tokens else Fraction(0)
    return {"wasted": lost, "boot": boot, "idle": total - boot - work, "rollout": work - lost}


def _span(start: float, end: float) -> Fraction:
    return Fraction(_us(end) - _us(start), 1_000_000)


def _shared(amount: int, weights: Mapping[str, Fraction]) -> dict[str, int]:
    """``amount`` split by weight, in whole micro-units, by largest remainder."""
    total = sum(weights.values(), Fraction(0))
    if not total:
        return {next(iter(weights)): amount}
    exact = {name: amount * weight / total for name, weight in weights.items()}
    floors = {name: value.__floor__() for name, value in exact.items()}
    left = amount - sum(floors.values())
    by_rest = sorted(exact, key=lambda name: (floors[name] - exact[name], name))
    for name in by_rest[:left]:
        floors[name] += 1
    return floors
