"""The real clock, ids and process identity: the ports that the operating system gives."""

from __future__ import annotations

import os
import random
import secrets
import socket
import time

import psutil


class SystemClock:
    """Wall-clock time."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SystemIds:
    """Ids from the system's randomness."""

    def new(self) -> str:
        return secrets.token_hex(8)

    def random(self) -> float:
        return random.SystemRandom().random()


def holder() -> str:
    """Who we are to a lease: ``host/pid/start time``, unique even when pids are reused."""
    started = psutil.Process().create_time()
    return f"{socket.gethostname()}/{os.getpid()}/{started:.2f}"


def holder_is_dead(who: str) -> bool:
    """Whether a holder is certainly gone: it was a process of this machine and ended.

    A holder on another machine is never called dead; its lease must expire.
    """
    host, _, rest = who.partition("/")
    pid, _, started = rest.partition("/")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        return abs(psutil.Process(int(pid)).create_time() - float(started)) > 1.0
    except (psutil.NoSuchProcess, ValueError):
        return True
