"""What it cost, and what it would have cost: rows, totals, split. Pure.

Used by ``cost-report`` and the closing summary. Ratios without a denominator are None,
never 0; every comparison carries the assumption it rests on.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from verlops.cost import Line, classify, spent
from verlops.model import MICRO
from verlops.tally import TokenShare

SCHEMA_VERSION = 1
SIGNS = {"CNY": "¥", "USD": "$", "EUR": "€"}
KEYS = ("role", "instance", "day", "update", "pool")
BUSY = ("rollout", "trainer", "reward")


class Baselines(msgspec.Struct, frozen=True, kw_only=True):
    """The assumptions of the comparisons. ``price``: micro-units an hour of the whole box."""

    gpus: int
    gpu: str
    price: int
    samples_per_hour: float
    train_gpu_seconds_per_sample: float
    rollout_samples_per_gpu_hour: float


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """What came out: distinct trained samples, trained tokens, and when versions came."""

    samples: int = 0
    tokens: int = 0
    committed: tuple[tuple[int, float], ...] = ()
    """(version, time of its commit), ascending."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of one key. Money in units of the currency."""

    key: str
    instances: int
    hours: float
    spent: float
    on_demand_equivalent: float | None


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The sums and what they mean. Money in units; savings as fractions of 1."""

    spent: float
    on_demand_equivalent: float | None
    always_on_baseline: float | None
    like_for_like_baseline: float | None
    saving_vs_on_demand: float | None
    saving_vs_baseline: float | None
    saving_vs_like_for_like: float | None
    per_thousand_samples: float | None
    per_million_trained_tokens: float | None
    samples: int
    trained_tokens: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of ``cost-report --json``."""

    schema_version: int
    currency: str
    start: float | None = msgspec.field(name="from")
    end: float | None = msgspec.field(name="to")
    by: str
    rows: tuple[Row, ...]
    totals: Totals
    split: dict[str, float]
    busy_fraction: float | None
    as_if_rented: bool
    assumptions: tuple[str, ...]


def build(
    lines: Sequence[Line],
    shares: Mapping[str, TokenShare],
    delivered: Delivered,
    baselines: Baselines,
    *,
    currency: str,
    by: str = "role",
    as_if_rented: bool = False,
) -> Report:
    """The report over lines that are already clipped to the window wanted."""
    split = classify(lines, shares)
    total = spent(lines)
    key = _keys(by, delivered)
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    return Report(
        schema_version=SCHEMA_VERSION,
        currency=currency,
        start=min((line.start for line in lines), default=None),
        end=max((line.end for line in lines), default=None),
        by=by,
        rows=tuple(_row(name, groups[name]) for name in sorted(groups)),
        totals=_totals(lines, total, delivered, baselines),
        split={name: amount / MICRO for name, amount in split.items()},
        busy_fraction=sum(split[c] for c in BUSY) / total if total else None,
        as_if_rented=as_if_rented,
        assumptions=_assumptions(baselines, currency, as_if_rented),
    )


def always_on(samples: int, baselines: Baselines) -> float:
    """Micro-units: the box that always runs, for the time it takes to make ``samples``."""
    return samples / baselines.samples_per_hour * baselines.price


def like_for_like(samples: int, baselines: Baselines) -> float:
    """Micro-units: the same GPUs, paid only while busy.

    samples × (training GPU-seconds + 3600 / rollout samples a GPU-hour) × price a GPU-second.
    """
    seconds = baselines.train_gpu_seconds_per_sample + 3600 / baselines.rollout_samples_per_gpu_hour
    return samples * seconds * baselines.price / baselines.gpus / 3600


def render_table(report: Report, width: int = 80) -> str:
    """Aligned plain text; the number that matters first."""
    table = [(report.by, "machines", "hours", "spent", "on demand")]
    table += [
        (
            row.key,
            str(row.instances),
            f"{row.hours:.3f}",
            _money(row.spent, report.currency),
            _money(row.on_demand_equivalent, report.currency),
        )
        for row in report.rows
    ]
    widths = [max(len(row[i]) for row in table) for i in range(5)]
    body = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]
    split = _wrapped(_split_line(report), width, first="")
    parts = [_headline(report), "", *body, "", *split, *_comparisons(report), ""]
    notes = [line for text in report.assumptions for line in _wrapped(text, width, first="- ")]
    return "\n".join(line[:width].rstrip() for line in [*parts, *notes])


def to_json(report: Report) -> dict[str, Any]:
    """JSON-like data under the names of the schema."""
    data: dict[str, Any] = msgspec.to_builtins(report)
    return data


def to_csv(report: Report) -> str:
    """The rows as CSV; a cell that a spreadsheet would run as a formula is disarmed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((report.by, "instances", "hours", "spent", "on_demand_equivalent", "currency"))
    for row in report.rows:
        other = "" if row.on_demand_equivalent is None else f"{row.on_demand_equivalent:.6f}"
        cells = (_disarmed(row.key), row.instances, f"{row.hours:.6f}", f"{row.spent:.6f}", other)
        writer.writerow((*cells, report.currency))
    return out.getvalue()


def _keys(by: str, delivered: Delivered) -> Callable[[Line], str]:
    def update(line: Line) -> str:
        after = [v for v, at in delivered.committed if at >= line.end]
        return f"{after[0]:08d}" if after else "after the last"

    return {
        "role": lambda line: line.role,
        "instance": lambda line: line.instance_id,
        "pool": lambda line: f"{line.market} {line.gpus}x{line.gpu} {line.offer}",
        "day": lambda line: datetime.fromtimestamp(line.start, UTC).date().isoformat(),
        "update": update,
    }[by]


def _row(key: str, lines: Sequence[Line]) -> Row:
    return Row(
        key=key,
        instances=len({line.instance_id for line in lines}),
        hours=sum(line.end - line.start for line in lines) / 3600,
        spent=spent(lines) / MICRO,
        on_demand_equivalent=_on_demand(lines),
    )


def _on_demand(lines: Sequence[Line]) -> float | None:
    known = [line.on_demand_amount for line in lines if line.on_demand_amount is not None]
    return sum(known) / MICRO if lines and len(known) == len(lines) else None


def _totals(
    lines: Sequence[Line], total: int, delivered: Delivered, baselines: Baselines
) -> Totals:
    other = _on_demand(lines)
    samples, tokens = delivered.samples, delivered.tokens
    box = always_on(samples, baselines) / MICRO if samples else None
    busy = like_for_like(samples, baselines) / MICRO if samples else None
    paid = total / MICRO
    return Totals(
        spent=paid,
        on_demand_equivalent=other,
        always_on_baseline=box,
        like_for_like_baseline=busy,
        saving_vs_on_demand=_saving(paid, other),
        saving_vs_baseline=_saving(paid, box),
        saving_vs_like_for_like=_saving(paid, busy),
        per_thousand_samples=paid / samples * 1000 if samples else None,
        per_million_trained_tokens=paid / tokens * 1_000_000 if tokens else None,
        samples=samples,
        trained_tokens=tokens,
    )


def _saving(paid: float, other: float | None) -> float | None:
    return 1 - paid / other if other else None


def _headline(report: Report) -> str:
    totals = report.totals
    each = totals.per_thousand_samples
    parts = [f"{_money(totals.spent, report.currency)} spent"]
    if report.as_if_rented:
        parts[0] += " (as if rented)"
    if each is not None:
        parts.append(f"{_money(each, report.currency)} per 1,000 trained samples")
    return "; ".join(parts)


def _split_line(report: Report) -> str:
    shown = [f"{n} {_money(v, report.currency)}" for n, v in report.split.items() if v]
    return "split: " + (" + ".join(shown) or "nothing")


def _comparisons(report: Report) -> list[str]:
    totals = report.totals
    rows = (
        ("same hours on demand", totals.on_demand_equivalent, totals.saving_vs_on_demand),
        ("always-on box", totals.always_on_baseline, totals.saving_vs_baseline),
        ("like for like", totals.like_for_like_baseline, totals.saving_vs_like_for_like),
    )
    return [
        f"{name:<21} {_money(amount, report.currency):>10}  {_percent(saving)}"
        for name, amount, saving in rows
    ]


def _percent(saving: float | None) -> str:
    if saving is None:
        return ""
    return f"{saving:.1%} saved" if saving >= 0 else f"{-saving:.1%} dearer"


def _assumptions(b: Baselines, currency: str, as_if_rented: bool) -> tuple[str, ...]:
    price = _money(b.price / MICRO, currency)
    found = [
        f"always-on box: {b.gpus}x{b.gpu} at {price}/h making {b.samples_per_hour:,.0f} "
        "samples an hour, for the time that the delivered samples take",
        f"like for like: the same GPUs paid only while busy, "
        f"{b.train_gpu_seconds_per_sample:g} GPU-seconds to train and "
        f"{3600 / b.rollout_samples_per_gpu_hour:g} to generate a sample",
    ]
    if as_if_rented:
        found.insert(0, "machines here are local processes, priced from the config as if rented")
    return tuple(found)


def _wrapped(text: str, width: int, *, first: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent="  ")


def _money(amount: float | None, currency: str) -> str:
    if amount is None:
        return "unknown"
    sign = SIGNS.get(currency, currency + " ")
    return f"{sign}{amount:,.2f}" if abs(amount) >= 1 or not amount else f"{sign}{amount:.4f}"


def _disarmed(text: str) -> str:
    return f"'{text}" if text[:1] in "=+-@\t\r" else text
