"""A clock that tests move, and the embedded log by it."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from verlops.queues.sqlite import SqliteQueue

PATIENCE = 60.0
PROGRAM = Path(__file__).with_name("log_program.py")


@dataclass
class Time:
    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def log(tmp_path: Path, clock: Time) -> Iterator[SqliteQueue]:
    queue = SqliteQueue(tmp_path / "log", clock)
    yield queue
    queue.close()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for a condition; fail when it has not come true after a minute."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.005)

    return wait


@pytest.fixture
def program() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``log_program.py`` with arguments; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
