"""What ``verlops up`` shows while it runs: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from verlops.assemble.session import Session
from verlops.assemble.status import describe
from verlops.cli.picture import headline, picture
from verlops.cli.summary import summary
from verlops.controller import Controller
from verlops.model import Event, Step

if TYPE_CHECKING:
    from rich.live import Live

EVERY = 10.0
"""Seconds between two progress lines where there is no terminal."""
TOLD = ("decision", "version", "notice", "ended", "chaos", "alarm")


class View:
    """Shows one run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._live: Live | None = None
        self._started = time.monotonic()
        self._last_line = 0.0
        self._seen_event = 0

    @contextmanager
    def live(self) -> Iterator[None]:
        """While inside: a live picture if standard output is a terminal."""
        if not sys.stdout.isatty():
            yield
            return
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), refresh_per_second=4, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def say(self, text: str) -> None:
        """One line for a person."""
        stamp = f"[{time.monotonic() - self._started:6.1f}s]"
        if self._live:
            self._live.console.print(f"{stamp} {text}", markup=False, highlight=False)
        else:
            print(f"{stamp} {text}", flush=True)

    def update(self, controller: Controller, step: Step) -> None:
        """Show what a step did."""
        for event in self._news():
            text = _sentence(event)
            if text:
                self.say(text)
        due = time.monotonic() - self._last_line >= EVERY
        if self._live or due:
            self._draw(controller, step)
            self._last_line = time.monotonic()

    def summary(self, controller: Controller) -> None:
        """The closing summary."""
        print("\n".join(summary(self._session, controller)), flush=True)

    def _news(self) -> list[Event]:
        found = list(self._session.ports.state.events(after=self._seen_event, kinds=TOLD))
        if found:
            self._seen_event = found[-1].seq
        return found

    def _draw(self, controller: Controller, step: Step) -> None:
        memory, _ = self._session.ports.state.load()
        data = describe(self._session, controller.observer, step.observation, memory)
        updates = controller.settings.updates
        if self._live is None:
            samples = data["samples"]
            self.say(
                f"{headline(data, updates)} · {samples['usable']:,} of "
                f"{samples['needed']:,} samples · trainer {data['trainer']['state']}"
            )
            return
        from rich.text import Text

        width = shutil.get_terminal_size().columns
        self._live.update(Text("\n".join(picture(data, width, updates=updates))))


def _sentence(event: Event) -> str:
    data: dict[str, Any] = event.data
    if event.kind == "decision":
        failed = "" if data.get("status") == "ok" else f" [{data['status']}: {data['detail']}]"
        return f"{data['action']} {event.instance_id}: {event.reason}{failed}"
    if event.kind == "version":
        reward = data["metrics"].get("reward_mean")
        shown = "unknown" if reward is None else f"{reward:.3f}"
        count = data["counts"].get("samples", 0)
        return f"version {data['version']} committed: {count:,} samples, mean reward {shown}"
    if event.kind == "notice":
        return f"notice for {event.instance_id}: {event.reason}, it holds {data.get('in_flight')}"
    if event.kind == "ended":
        left = data.get("unfinished")
        lost = f", {left} unfinished groups go back" if left else ""
        return f"ended {event.instance_id} ({data.get('role')}): {event.reason}{lost}"
    if event.kind == "chaos":
        return f"chaos: {data.get('what')} {event.instance_id}, it holds {data.get('in_flight')}"
    return f"alarm: {event.reason}"
