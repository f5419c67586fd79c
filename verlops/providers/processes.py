"""Finding and ending the processes of a local machine; safe against reused pids.

A machine's processes carry ``VERLOPS_INSTANCE`` in their environment, so that they are
found whatever session or parent they have moved to.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable

import psutil

INSTANCE = "VERLOPS_INSTANCE"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SAME_START = 0.02
"""Seconds by which two readings of one process's start may differ."""


def identity(pid: int | None = None) -> dict[str, float]:
    """A pid with the start of its process: together they are never used twice."""
    process = psutil.Process(pid)
    return {"pid": process.pid, "created": process.create_time()}


def alive(who: dict[str, float]) -> bool:
    """Whether exactly this process still runs (a zombie does not)."""
    try:
        process = psutil.Process(int(who["pid"]))
        same = abs(process.create_time() - who["created"]) <= SAME_START
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def tagged(instance_id: str) -> list[psutil.Process]:
    """Every living process of a machine, wherever it hangs in the process tree."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(INSTANCE) == instance_id:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # gone meanwhile, or somebody else's
    return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def kill_all(find: Callable[[], Iterable[psutil.Process]], patience: float = 5.0) -> bool:
    """SIGKILL what ``find`` finds until it finds nothing; whether that was reached.

    Repeated, because a process may fork between being found and being killed.
    """
    deadline = time.monotonic() + patience
    while True:
        victims = [p for p in find() if p.pid != os.getpid()]
        if not victims:
            return True
        if time.monotonic() > deadline:
            return False
        for victim in victims:
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(victims, timeout=0.5)


def become_subreaper() -> None:
    """Orphans below us become our children instead of init's (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """In a child, before exec: SIGKILL when the parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
