"""``verlops up``: make what is missing, then drive until done or told to stop."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from verlops.assemble.feed import Feeder
from verlops.assemble.load import load_config
from verlops.assemble.session import Session
from verlops.cli.view import View
from verlops.controller import Controller
from verlops.drive import drive
from verlops.errors import ConfigError, VerlopsError
from verlops.model import Step
from verlops.providers.chaos import Chaos, parse_chaos


def command(
    *,
    config: Path | None,
    yes: bool,
    updates: int | None,
    chaos: str | None,
    new_run: bool,
    rotate: bool,
) -> int:
    """Run an environment in the foreground; return the exit code."""
    plan = parse_chaos(chaos) if chaos else None
    loaded = load_config(config)
    if loaded.config.provider.kind != "local" and not yes and not sys.stdin.isatty():
        raise ConfigError("renting needs a yes and there is no terminal to ask", hint="add --yes")
    session = Session(loaded)
    view = View(session)
    try:
        session.prepare(new_run=new_run, rotate=rotate, again=True, say=view.say)
        target = None if updates is None else _newest(session) + updates
        controller = session.controller(updates=target)
        injector = Chaos(plan, session.ports.provider, loaded.config.task.seed) if plan else None
        return _Run(session, controller, view, target, injector).go()
    finally:
        session.close()


class _Run:
    """One foreground run: the loop, its watchers, and how it ends."""

    def __init__(
        self,
        session: Session,
        controller: Controller,
        view: View,
        target: int | None,
        chaos: Chaos | None,
    ) -> None:
        self._session = session
        self._controller = controller
        self._view = view
        self._target = target
        self._chaos = chaos
        self._feeder = Feeder(
            session.config, session.ports.queue, session.ports.state, session.need_run()
        )
        self._interrupted = False

    def go(self) -> int:
        """Drive to the end. 0 when everything is gone as asked, 130 when cut short."""
        with self._interruptible(), self._view.live():
            drive(
                self._controller,
                self._session.ports.clock,
                self._session.config.control.period,
                until=self._finished,
                watchers=[self._watch],
                on_error=self._error,
            )
            self._controller.release()
        left = [i.id for i in self._session.ports.provider.instances() if i.phase != "gone"]
        self._view.summary(self._controller)
        if left:
            raise VerlopsError(f"still running: {', '.join(left)}", hint="run `verlops down`")
        reached = self._target is None or self._version >= self._target
        return 0 if reached and not (self._interrupted and self._target) else 130

    def _watch(self, step: Step) -> None:
        self._version = step.observation.version
        if self._chaos:
            events = self._chaos.after_step(step, self._session.ports.clock.now())
            if events:
                memory, _ = self._session.ports.state.load()
                self._session.ports.state.save(memory, events=events)
        self._view.update(self._controller, step)
        if self._target is not None and self._version >= self._target:
            self._down(f"{self._target} updates are committed: going down")
        elif self._controller.settings.plan.mode == "run":
            self._top_up(step)

    def _top_up(self, step: Step) -> None:
        wanted = self._session.config.task.keep_backlog
        queue = step.observation.queue
        if wanted and queue.ok and queue.lag < wanted:
            self._feeder.generate(wanted - queue.lag)

    def _finished(self, step: Step) -> bool:
        down = self._controller.settings.plan.mode == "down"
        listed = "instances" not in step.observation.missing
        alive = [i for i in step.observation.instances if i.phase != "gone"]
        return down and listed and not alive and not step.actions

    def _down(self, why: str) -> None:
        if self._controller.settings.plan.mode != "down":
            self._view.say(why)
            self._controller.go_down()

    def _error(self, error: VerlopsError) -> None:
        self._view.say(f"step failed, trying again: {error}")

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Once: drain and go down. Twice: stop at once and say what still runs."""

        def handle(_signal: int, _frame: FrameType | None) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            self._down("interrupted: draining; once more to stop at once")

        before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        except KeyboardInterrupt:
            left = [i.id for i in self._session.ports.provider.instances() if i.phase != "gone"]
            self._view.say(f"stopped at once; still running: {', '.join(left) or 'nothing'}")
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _newest(session: Session) -> int:
    from verlops.lineage import newest_version

    return newest_version(session.ports.store, session.need_run()) or 0
