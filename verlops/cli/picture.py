"""A status as lines of text. Pure; used by the live view, ``status`` and the summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

SIGNS = {"CNY": "¥", "USD": "$", "EUR": "€"}
BARS = "▁▂▃▄▅▆▇█"
STATES = ("waiting", "leased", "resume", "usable", "trained", "stale", "failed", "rejected", "dead")


def money(amount: float | None, currency: str, digits: int = 2) -> str:
    """``¥12.30``, or ``unknown``."""
    if amount is None:
        return "unknown"
    return f"{SIGNS.get(currency, currency + ' ')}{amount:,.{digits}f}"


def count(number: int | None) -> str:
    """``12,000``, or ``unknown``."""
    return "unknown" if number is None else f"{number:,}"


def spark(values: Sequence[float]) -> str:
    """One bar a value, scaled between the least and the largest."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[round((v - low) / span * (len(BARS) - 1))] for v in values)


def picture(status: dict[str, Any], width: int, *, updates: int | None = None) -> list[str]:
    """The whole status, no line longer than ``width``."""
    lines = [headline(status, updates), "", *facts(status), ""]
    lines += machines(status["instances"], status["spend"]["currency"], status["at"])
    lines += ["", *decisions(status["decisions"][-4:], width)]
    return [line[:width] for line in lines]


def headline(status: dict[str, Any], updates: int | None = None) -> str:
    """Name, version and money: what a person wants to know first."""
    spend = status["spend"]
    goal = f" of {updates}" if updates is not None else ""
    rented = ", as if rented" if spend["as_if_rented"] else ""
    return (
        f"{status['name']}: policy version {status['policy_version']}{goal} · "
        f"{money(spend['total'], spend['currency'])} spent{rented} · "
        f"{money(spend['per_hour'], spend['currency'])}/h now"
    )


def facts(status: dict[str, Any]) -> list[str]:
    """Reward, prompts, samples, pool and trainer: a line each."""
    samples, pool, trainer = status["samples"], status["rollout"], status["trainer"]
    rewards = [v["reward_mean"] for v in status["versions"] if v["reward_mean"] is not None]
    learning = (
        f"{rewards[0]:.3f} {spark(rewards)} {rewards[-1]:.3f}" if rewards else "no update yet"
    )
    states = status["prompts"]["states"]
    shown = [f"{states[s]:,} {s}" for s in STATES if states[s] or s in ("waiting", "trained")]
    lines = [
        f"reward    {learning}",
        f"prompts   {' · '.join(shown)}",
        f"samples   {samples['usable']:,} of {samples['needed']:,} usable · "
        f"{samples['outstanding']:,} outstanding · {samples['trained']:,} trained",
        f"rollout   {pool['ready']} ready · {pool['booting']} booting · "
        f"{pool['draining'] + pool['doomed']} leaving · {pool['min']} to {pool['max']}",
        f"trainer   {trainer['state']} {trainer['progress']}".rstrip(),
    ]
    if status["missing"]:
        lines.append(f"unread    {', '.join(status['missing'])}: the last known values are shown")
    return lines


def machines(instances: Iterable[dict[str, Any]], currency: str, now: float) -> list[str]:
    """A table of the machines that are alive."""
    head = ("machine", "role", "phase", "market", "gpu", "version", "holds", "price/h", "age")
    rows = [head, *(_machine(i, currency, now) for i in instances)]
    return columns(rows, right={5, 6, 7, 8})


def _machine(i: dict[str, Any], currency: str, now: float) -> tuple[str, ...]:
    return (
        i["id"],
        i["role"],
        i["phase"],
        i["market"],
        i["type"],
        "-" if i["version"] is None else str(i["version"]),
        "-" if i["in_flight"] is None else str(i["in_flight"]),
        money(i["price"], currency),
        f"{max(0, now - i['since']):.0f}s",
    )


def decisions(found: Iterable[dict[str, Any]], width: int) -> list[str]:
    """The last decisions with their reasons."""
    return [f"{d['action']}: {d['reason']}"[:width] for d in found]


def columns(rows: Sequence[Sequence[str]], right: set[int] | None = None) -> list[str]:
    """Rows as aligned lines; columns in ``right`` are aligned to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    aligned = right or set()
    lines = []
    for row in rows:
        cells = [
            cell.rjust(w) if i in aligned else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
