"""The machine as the programs on it see it: its spec, its notice, its status.

Used by every role and by the guard. The folder of the machine (``VERLOPS_MACHINE_DIR``)
holds ``spec.json`` (written before boot), ``notice.json`` (written by whoever takes the
machine away: ``{"deadline": epoch seconds}``) and ``status.json`` (written by the role,
read by the guard and the wrapper).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from verlops.config import Config, parse
from verlops.machine import MachineSpec, decode_spec
from verlops.messages import TopicNames

MACHINE_DIR = "VERLOPS_MACHINE_DIR"


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a role last said of itself. ``progress`` grows whenever work gets done."""

    phase: str = "starting"
    progress: int = 0
    at: float = 0.0
    done: bool = False
    """The role has finished what it was rented for: the guard ends the machine."""
    error: str = ""
    pid: int = 0
    control_fence: int = 0


class Host:
    """The machine that a process of ours runs on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec: MachineSpec = decode_spec((folder / "spec.json").read_bytes())
        self.config: Config = parse(dict(self.spec.config), source="machine spec")
        self.topics = TopicNames(self.spec.name)
        self.instance_id = folder.name
        self.worker_id = f"{self.spec.role}-{self.instance_id}"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Host:
        """The machine named by ``VERLOPS_MACHINE_DIR``."""
        return cls(Path(environ[MACHINE_DIR]))

    def notice(self) -> float | None:
        """The deadline of a spot notice, or None."""
        try:
            data = msgspec.json.decode((self.folder / "notice.json").read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return float(data["deadline"])

    def report(self, phase: str, progress: int, **more: Any) -> None:
        """Replace ``status.json`` (atomically)."""
        status = Status(phase=phase, progress=progress, at=time.time(), pid=os.getpid(), **more)
        write_atomic(self.folder / "status.json", msgspec.json.encode(status))

    def status(self) -> Status:
        """What the role last said; the default when it has said nothing yet."""
        try:
            return msgspec.json.decode((self.folder / "status.json").read_bytes(), type=Status)
        except (FileNotFoundError, msgspec.MsgspecError):
            return Status()


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new content, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
