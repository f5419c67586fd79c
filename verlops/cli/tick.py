"""``verlops tick``: one step under the lease, for cron."""

from __future__ import annotations

import sys
from pathlib import Path

from verlops.assemble.feed import Feeder
from verlops.assemble.load import load_config
from verlops.assemble.session import Session
from verlops.cli.output import print_json
from verlops.model import Step


def command(*, config: Path | None, json: bool) -> int:
    """One step; exit 8 (LeaseHeldError) when another controller acts."""
    session = Session(load_config(config))
    try:
        session.prepare(say=lambda line: print(line, file=sys.stderr))
        controller = session.controller()
        try:
            step = controller.step()
        finally:
            controller.release()
        wanted, queue = session.config.task.keep_backlog, step.observation.queue
        if wanted and queue.ok and queue.lag < wanted:
            feeder = Feeder(
                session.config, session.ports.queue, session.ports.state, session.need_run()
            )
            feeder.generate(wanted - queue.lag)
        _say(step, json)
        return 0
    finally:
        session.close()


def _say(step: Step, json: bool) -> None:
    actions = [
        {"action": type(action).__name__.lower(), "reason": action.reason}
        for action in step.actions
    ]
    if json:
        version = step.observation.version
        print_json(
            {
                "schema_version": 1,
                "policy_version": version,
                "actions": actions,
                "alarms": list(step.alarms),
            }
        )
        return
    for action in actions:
        print(f"{action['action']}: {action['reason']}", file=sys.stderr)
    for alarm in step.alarms:
        print(f"alarm: {alarm}", file=sys.stderr)
