"""The guard's process: start the role, watch it, end the machine.

Armed before the role's set-up. Its exit ends the machine: on a cloud by shutting down,
locally because the wrapper waits for it. It leaves its verdict in ``guard.json``.
Exit codes: 0 the role was done; 1 it failed or was killed; 3 the guard ended it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil

from verlops.errors import VerlopsError
from verlops.lineage import highest_fence
from verlops_workers.guard.death import die_with_parent
from verlops_workers.guard.rules import Facts, Limits, Verdict, judge
from verlops_workers.host import Host, write_atomic
from verlops_workers.runtime import ControlWatch, open_queue, open_store

TICK = 0.2
"""Seconds between two looks at the role."""
LOOK = 1.0
"""Seconds between two looks at the control topic and the fences."""


def main(host: Host) -> int:
    """Guard the role of this machine; return the exit code."""
    return Guard(host).run()


def limits_of(host: Host) -> Limits:
    """The limits of a machine's role, from its config."""
    config, trainer = host.config, host.spec.role == "trainer"
    return Limits(
        grace=config.trainer.grace,
        control_ttl=config.control.ttl,
        deadline=config.trainer.deadline if trainer else None,
        no_progress=config.trainer.no_progress if trainer else None,
        fenced=trainer,
    )


def role_command(role: str) -> list[str]:
    """What starts a role's process."""
    return [sys.executable, "-m", "verlops_workers.main", role]


class Guard:
    """Watches one role process."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._limits = limits_of(host)
        self._started = time.monotonic()
        self._progress = (-1, self._started)
        self._done_at: float | None = None
        self._control_at = self._started
        self._command = ""
        self._fence = 0
        self._looked = float("-inf")
        self._watch: ControlWatch | None = None
        self._asked_to_end = False

    def run(self) -> int:
        """Until the role exits or a rule ends it."""
        signal.signal(signal.SIGTERM, self._end)
        role = subprocess.Popen(
            role_command(self._host.spec.role),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        while role.poll() is None:
            verdict = judge(self._facts(), self._limits)
            if self._asked_to_end:
                verdict = Verdict("terminated", "the guard was told to end", gently=True)
            if verdict:
                self._end_role(role, verdict)
                self._leave(verdict.reason, role.returncode, verdict.detail)
                return 0 if verdict.reason == "done" else 3
            time.sleep(TICK)
        return self._exited(role.returncode)

    def _exited(self, code: int) -> int:
        error = self._host.status().error
        if code == 0:
            self._leave("done", 0, "")
            return 0
        killed = code == -signal.SIGKILL
        detail = error or (f"by {signal.Signals(-code).name}" if code < 0 else "")
        self._leave("killed" if killed else "failed", code, detail)
        return 1

    def _facts(self) -> Facts:
        now = time.monotonic()
        status = self._host.status()
        if status.progress != self._progress[0]:
            self._progress = (status.progress, now)
        if status.done and self._done_at is None:
            self._done_at = now
        if now - self._looked >= LOOK:
            self._looked = now
            self._look(now)
        return Facts(
            age=now - self._started,
            status=status,
            progress_age=now - self._progress[1],
            done_age=None if self._done_at is None else now - self._done_at,
            control_age=now - self._control_at,
            command=self._command,
            own_fence=self._host.spec.trainer_fence,
            highest_fence=self._fence,
        )

    def _look(self, now: float) -> None:
        """Read control and fences. What cannot be read counts as silence."""
        with contextlib.suppress(VerlopsError):
            if self._watch is None:
                self._watch = ControlWatch(open_queue(self._host.config), self._host)
            before = self._watch.seen_at
            record = self._watch.poll()
            if self._watch.seen_at != before:
                self._control_at = now
            self._command = record.command if record else ""
        if self._limits.fenced:
            with contextlib.suppress(VerlopsError):
                store = open_store(self._host.config)
                self._fence = highest_fence(store, self._host.spec.run)

    def _end_role(self, role: subprocess.Popen[bytes], verdict: Verdict) -> None:
        if verdict.gently:
            role.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                role.wait(self._limits.grace)
        for process in self._tree(role.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(role.pid, signal.SIGKILL)
        role.wait()

    def _tree(self, pid: int) -> list[psutil.Process]:
        try:
            return psutil.Process(pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _leave(self, reason: str, code: int | None, detail: str) -> None:
        verdict = {"reason": reason, "code": code, "detail": detail}
        write_atomic(self._host.folder / "guard.json", json.dumps(verdict).encode())

    def _end(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked_to_end = True
