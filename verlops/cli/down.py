"""``verlops down``: drain, stop, and verify that nothing is left."""

from __future__ import annotations

import sys
from pathlib import Path

from verlops.assemble.load import load_config
from verlops.assemble.session import Session
from verlops.drive import drive
from verlops.errors import VerlopsError
from verlops.model import Step


def command(*, config: Path | None) -> int:
    """Take an environment down. Raises VerlopsError naming what is left."""
    session = Session(load_config(config))
    try:
        if not session.run:
            print(f"'{session.config.name}' has no run: nothing to take down")
            return 0
        controller = session.controller()
        controller.go_down()
        give_up = session.ports.clock.now() + _patience(session)

        def until(step: Step) -> bool:
            alive = [i for i in step.observation.instances if i.phase != "gone"]
            clean = not alive and "instances" not in step.observation.missing
            return (clean and not step.actions) or step.observation.now > give_up

        def complain(error: VerlopsError) -> None:
            print(f"step failed, trying again: {error}", file=sys.stderr)

        drive(
            controller,
            session.ports.clock,
            min(1.0, session.config.control.period),
            until=until,
            on_error=complain,
        )
        controller.release()
        left = [i.id for i in session.ports.provider.instances() if i.phase != "gone"]
        if left:
            raise VerlopsError(f"still running: {', '.join(left)}", hint="run `verlops down` again")
        print(f"'{session.config.name}' is down: nothing is running")
        return 0
    finally:
        session.close()


def _patience(session: Session) -> float:
    """Seconds: the longest drain, with time for the machines to end after it."""
    return session.config.rollout.pool.drain_timeout + 60.0
