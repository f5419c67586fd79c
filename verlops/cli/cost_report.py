"""``verlops cost-report``: what it cost, and what it would have cost."""

from __future__ import annotations

import shutil
from pathlib import Path

from verlops.assemble.costs import cost_report
from verlops.assemble.load import load_config
from verlops.assemble.session import Session
from verlops.cli.output import print_json
from verlops.errors import ConfigError
from verlops.report import KEYS, render_table, to_csv, to_json


def command(
    *,
    config: Path | None,
    by: str,
    since: float | None,
    until: float | None,
    format: str,
) -> int:
    """Print the report; changes nothing."""
    if by not in KEYS:
        raise ConfigError(f"--by {by}: not one of {', '.join(KEYS)}")
    session = Session(load_config(config))
    try:
        report = cost_report(session, by=by, since=since, until=until)
    finally:
        session.close()
    if format == "json":
        print_json(to_json(report))
    elif format == "csv":
        print(to_csv(report), end="")
    else:
        print(render_table(report, shutil.get_terminal_size().columns))
    return 0
