"""The loop: step, let the watchers look, sleep until the next period.

Called by ``verlops up`` and by the simulator. The only place below the command line
that sleeps, and it sleeps through the clock's port.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verlops.controller import Controller
from verlops.errors import LeaseHeldError, LeaseLostError, VerlopsError
from verlops.model import Step
from verlops.ports import Clock

Watcher = Callable[[Step], None]

FATAL = (LeaseHeldError, LeaseLostError)
"""Errors of a step after which another controller acts: never repeated."""


def drive(
    controller: Controller,
    clock: Clock,
    period: float,
    *,
    until: Callable[[Step], bool],
    watchers: Sequence[Watcher] = (),
    on_error: Callable[[VerlopsError], None] | None = None,
) -> Step:
    """Step every ``period`` seconds until ``until(step)``; return the last step.

    A step that takes longer than the period is followed by the next at once. A step
    that fails with a VerlopsError is reported to ``on_error`` and tried again a period
    later: what it had begun is in its open intents. Without ``on_error`` it is raised.
    """
    while True:
        started = clock.now()
        step = _try_step(controller, on_error)
        if step:
            for watch in watchers:
                watch(step)
            if until(step):
                return step
        clock.sleep(max(0.0, period - max(0.0, clock.now() - started)))


def _try_step(
    controller: Controller, on_error: Callable[[VerlopsError], None] | None
) -> Step | None:
    try:
        return controller.step()
    except FATAL:
        raise
    except VerlopsError as error:
        if on_error is None:
            raise
        on_error(error)
        return None
