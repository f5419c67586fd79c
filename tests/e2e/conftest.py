"""A small environment for whole runs: real processes, a real model, short timings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml

VERLOPS = str(Path(sys.executable).parent / "verlops")
ROOT = Path(__file__).parents[2]


class Environment:
    """One environment in a folder of its own, driven through the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.config = folder / "small.yaml"
        self._variables = {**os.environ, "VERLOPS_STATE": str(self.state), "OMP_NUM_THREADS": "1"}

    def write(self, **sections: dict) -> None:
        """The local template, shrunk further, with these sections changed."""
        data = yaml.safe_load((ROOT / "verlops/templates/local.yaml").read_text())
        small: dict[str, dict] = {
            "model": {"warmup": {**data["model"]["warmup"], "steps": 3, "batch": 32}},
            "task": {"group_size": 4, "keep_backlog": 60},
            "provider": {"boot_delay": "100ms", "notice": "2s"},
            "queue": {"session_timeout": "3s"},
            "rollout": {"options": {"samples_per_s": 60}, "beat": "300ms", "max_in_flight": 8},
            "trainer": {"batch": 160, "mini_batch": 64, "epochs": 1, "grace": "1s"},
            "control": {"period": "300ms"},
        }
        for name, changes in [*small.items(), *sections.items()]:
            data[name] = {**data[name], **changes}
        data["name"] = "small"
        self.config.write_text(yaml.safe_dump(data, allow_unicode=True))

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [VERLOPS, *arguments, "-c", str(self.config)]
        done = subprocess.run(
            command, env=self._variables, capture_output=True, text=True, check=False
        )
        if check:
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        log = (self.folder / "up.log").open("a")
        command = [VERLOPS, *arguments, "-c", str(self.config)]
        started = subprocess.Popen(command, env=self._variables, stdout=log, stderr=log, text=True)
        log.close()
        return started

    def status(self) -> dict:
        return json.loads(self.run("status", "--json").stdout)

    def log(self) -> str:
        return (self.folder / "up.log").read_text()

    def processes(self) -> list[psutil.Process]:
        """Every living process of this environment's machines."""
        found = []
        for process in psutil.process_iter():
            try:
                where = process.environ().get("VERLOPS_MACHINE_DIR", "")
                dead = process.status() == psutil.STATUS_ZOMBIE
            except (psutil.Error, OSError):
                continue
            if where.startswith(str(self.state)) and not dead:
                found.append(process)
        return found


def until(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.2)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Environment]:
    made = Environment(tmp_path)
    made.write()
    yield made
    for process in made.processes():
        process.kill()


@pytest.fixture
def wait() -> Callable[..., None]:
    return until
