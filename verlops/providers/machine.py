"""The wrapper process of a local machine: it plays the cloud for one instance.

Started detached by the local provider. Takes the boot delay, starts the machine's
program (the guard), enforces the kill after a spot notice, obeys terminate, and writes
the exit record when all is over. It never talks to the controller.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from verlops.providers.folder import BULK, Folder
from verlops.providers.processes import (
    INSTANCE,
    become_subreaper,
    die_with_parent,
    identity,
    kill_all,
    tagged,
)

POLL = 0.1
"""Seconds between two looks at the program, the notice and the terminate order."""


class Wrapper:
    """One machine's life, from boot to exit record."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._launch = folder.launch()
        self._told_to_stop = False

    def run(self) -> None:
        """Live it. Returns when the exit record is written."""
        become_subreaper()
        signal.signal(signal.SIGTERM, self._stop)
        self._folder.write("wrapper", identity() | {"at": time.time()})
        try:
            end = self._boot() or self._work()
        except OSError as error:
            end = {"reason": "boot_failed", "detail": str(error)}
        clean = kill_all(self._programs)
        if not clean:
            end["detail"] = f"{end.get('detail', '')} (some processes would not die)".strip()
        self._folder.write_exit(**end)
        for name in BULK:
            shutil.rmtree(self._folder.path / name, ignore_errors=True)

    def _boot(self) -> dict[str, Any] | None:
        ready_at = self._launch.launched_at + self._launch.boot_delay
        while time.time() < ready_at:
            end = self._ordered()
            if end:
                return end
            time.sleep(min(POLL, max(0.0, ready_at - time.time())))
        return None

    def _work(self) -> dict[str, Any]:
        with self._folder.log() as log:
            child = subprocess.Popen(
                self._launch.command,
                env={**os.environ, **self._launch.env, INSTANCE: self._folder.id},
                cwd=self._folder.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._folder.write("ready", {"at": time.time(), "pid": child.pid})
        while child.poll() is None:
            end = self._ordered()
            if end:
                return end
            time.sleep(POLL)
        return self._verdict(child.returncode)

    def _ordered(self) -> dict[str, Any] | None:
        """What somebody else has decided about this machine."""
        if self._told_to_stop or self._folder.read("terminate"):
            return {"reason": "terminated"}
        notice = self._folder.read("notice")
        if notice and time.time() >= notice["deadline"]:
            return {"reason": "reclaimed", "detail": str(notice.get("reason", ""))}
        return None

    def _verdict(self, code: int) -> dict[str, Any]:
        guard = self._folder.read("guard")
        if guard and code >= 0:
            return {k: guard[k] for k in ("reason", "code", "detail") if k in guard}
        if code < 0:
            name = signal.Signals(-code).name
            reason = "killed" if -code == signal.SIGKILL else "failed"
            return {"reason": reason, "code": code, "detail": f"by {name}"}
        return {"reason": "failed" if code else "done", "code": code}

    def _programs(self) -> list[psutil.Process]:
        below = psutil.Process().children(recursive=True)
        return [p for p in {*below, *tagged(self._folder.id)} if p.pid != os.getpid()]

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._told_to_stop = True


def main(path: Path) -> int:
    """Run the machine in ``path``, unless another wrapper does or it has ended."""
    folder = Folder(path)
    with (path / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        if not folder.read("exit"):
            Wrapper(folder).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
