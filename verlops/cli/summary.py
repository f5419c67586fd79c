"""The closing summary of ``verlops up``: what was learnt, survived and spent."""

from __future__ import annotations

from typing import Any

from verlops.assemble.costs import cost_report
from verlops.assemble.session import Session
from verlops.assemble.status import status
from verlops.cli.picture import STATES, columns, spark
from verlops.controller import Controller
from verlops.report import render_table


def summary(session: Session, controller: Controller) -> list[str]:
    """Lines: reward by update, prompts by state, preemptions, cost against the baselines."""
    del controller
    data = status(session)
    report = cost_report(session)
    return [
        "",
        *_updates(data),
        "",
        _prompts(data),
        _preemptions(data),
        "",
        render_table(report, 80),
    ]


def _updates(data: dict[str, Any]) -> list[str]:
    versions = data["versions"]
    if not versions:
        return ["no update was committed"]
    rows = [("update", "samples", "mean reward", "KL", "clipped", "staleness")]
    rows += [
        (
            str(v["version"]),
            f"{v['samples']:,}",
            _number(v["reward_mean"]),
            _number(v["kl"], 4),
            _number(v["clip_fraction"]),
            _number(v["staleness_mean"], 1),
        )
        for v in versions
    ]
    rewards = [v["reward_mean"] for v in versions if v["reward_mean"] is not None]
    lines = columns(rows, right={0, 1, 2, 3, 4, 5})
    if rewards:
        change = rewards[-1] - rewards[0]
        lines.append(f"reward {rewards[0]:.3f} {spark(rewards)} {rewards[-1]:.3f} ({change:+.3f})")
    return lines


def _prompts(data: dict[str, Any]) -> str:
    states = data["prompts"]["states"]
    parts = [f"{states[s]:,} {s}" for s in STATES if states[s]]
    attempts = data["samples"]["group_attempts"]
    fed = data["prompts"]["fed"]
    return f"prompts: {fed:,} fed = {' + '.join(parts) or '0'}; {attempts:,} group attempts"


def _preemptions(data: dict[str, Any]) -> str:
    lost = data["preemptions"]
    return (
        f"preemptions survived: {lost['noticed']} with notice, "
        f"{lost['killed'] + lost['vanished']} without"
    )


def _number(value: float | None, digits: int = 3) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"
