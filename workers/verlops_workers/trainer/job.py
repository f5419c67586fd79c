"""What the role process tells the update process, and what it hears back.

Files in the machine's ``work`` folder: ``job.json`` (before the start), ``batch.npz``
(when collected), ``progress.json`` (while it runs), ``result.json`` and ``out/`` (at the
end).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from verlops_workers.host import write_atomic


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One update."""

    model: str
    """Folder (or name) of the parent's model."""
    state: str | None
    """Folder of the parent's training state; None: a fresh optimizer."""
    parent: int
    steps_done: int
    """Optimizer steps of the whole lineage so far."""
    seed: str
    trainer: dict[str, Any]
    """The config's trainer section, durations in seconds."""
    bf16: bool
    trust_remote_code: bool
    dtype: str
    """What the exported weights are cast to."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What an update came to."""

    steps_done: int
    metrics: dict[str, float | None]
    state: dict[str, Any]


class Work:
    """The ``work`` folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = path / "out"
        self.batch = path / "batch.npz"

    def put_job(self, job: Job) -> None:
        """Before the update process is started."""
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path / "job.json", msgspec.json.encode(job))

    def job(self) -> Job:
        """In the update process."""
        return msgspec.json.decode((self.path / "job.json").read_bytes(), type=Job)

    def put_result(self, result: Result) -> None:
        """The last thing that the update process does."""
        write_atomic(self.path / "result.json", msgspec.json.encode(result))

    def result(self) -> Result | None:
        """The result, or None when the update did not get there."""
        try:
            return msgspec.json.decode((self.path / "result.json").read_bytes(), type=Result)
        except FileNotFoundError:
            return None

    def put_progress(self, phase: str, done: int, of: int) -> None:
        """Where the update is."""
        facts = {"phase": phase, "done": done, "of": of}
        write_atomic(self.path / "progress.json", json.dumps(facts).encode())

    def progress(self) -> tuple[str, int, int]:
        """(phase, done, of); ("starting", 0, 0) before any."""
        try:
            found = json.loads((self.path / "progress.json").read_bytes())
        except FileNotFoundError:
            return ("starting", 0, 0)
        return (found["phase"], found["done"], found["of"])
