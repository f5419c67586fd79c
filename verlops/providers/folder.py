"""The folder of a local machine: one small JSON file a fact, each written atomically.

``launch`` what was rented · ``spec`` what the machine is told · ``wrapper`` who runs it ·
``ready`` since when its program runs · ``notice``, ``terminate`` orders · ``guard`` the
guard's verdict · ``exit`` how it ended. Written and read by provider and wrapper.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO, Any

import msgspec

from verlops.errors import CorruptError
from verlops.model import Exit, Offer, Role

BULK = ("weights", "work")
"""Subfolders that go with the machine: a volume deleted on termination."""


class LaunchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was rented, and how its program is started."""

    key: str
    role: Role
    offer: Offer
    tags: dict[str, str]
    launched_at: float
    boot_delay: float
    command: list[str]
    env: dict[str, str]


class Folder:
    """One machine's folder; its name is the instance id."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    def launch(self) -> LaunchRecord:
        """What was rented. Raises CorruptError, naming the folder."""
        try:
            return msgspec.json.decode((self.path / "launch.json").read_bytes(), type=LaunchRecord)
        except (OSError, msgspec.MsgspecError) as error:
            raise CorruptError(
                f"machine {self.id}: its launch record does not read: {error}",
                hint=f"see {self.path}; its processes carry VERLOPS_INSTANCE={self.id}",
            ) from error

    def read(self, name: str) -> dict[str, Any] | None:
        """One fact, or None when it is not there (or not whole)."""
        try:
            found: dict[str, Any] = json.loads((self.path / f"{name}.json").read_bytes())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return found

    def write(self, name: str, facts: dict[str, Any]) -> None:
        """Replace one fact."""
        temporary = self.path / f".{name}.{os.getpid()}"
        temporary.write_text(json.dumps(facts))
        temporary.replace(self.path / f"{name}.json")

    def write_exit(
        self, *, reason: str, code: int | None = None, detail: str = "", at: float | None = None
    ) -> None:
        """Write the exit record, unless there is one: the first holds."""
        end = {"at": time.time() if at is None else at, "reason": reason, "code": code}
        temporary = self.path / f".exit.{os.getpid()}"
        temporary.write_text(json.dumps(end | {"detail": detail}))
        try:
            os.link(temporary, self.path / "exit.json")
        except FileExistsError:
            return
        finally:
            temporary.unlink()

    def exit(self) -> Exit | None:
        """How the machine ended, or None while it lives."""
        found = self.read("exit")
        return Exit(**found) if found else None

    def log(self) -> IO[bytes]:
        """The file that the machine's programs write to."""
        return (self.path / "log.txt").open("ab")
