"""Files that appear whole or not at all: drafts, and what makes them durable.

Used by ``LocalStore``. A draft is locked while its writer lives, so that what a killed
writer left is told apart from work in progress without clocks or process ids.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


class Drafts:
    """The folder of drafts of one store; on the same file system as the objects."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._swept = False

    @contextmanager
    def new(self) -> Iterator[tuple[Path, BinaryIO]]:
        """A new file to write; whatever its name holds at the end is removed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._swept:
            self._swept = True
            self.sweep()
        path, file = self._locked()
        try:
            with file:
                yield path, file
        finally:
            path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove the drafts whose writers are dead."""
        for path in self._folder.iterdir():
            # Locked: in use. Gone: finished. Not ours to open: nor to remove.
            missing_or_held = suppress(BlockingIOError, FileNotFoundError, PermissionError)
            with missing_or_held, path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

    def _locked(self) -> tuple[Path, BinaryIO]:
        while True:
            path = self._folder / uuid.uuid4().hex
            file = path.open("xb")
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.fstat(file.fileno()).st_nlink:
                    return path, file
            except BaseException:
                file.close()
                raise
            file.close()  # a sweep came between making and locking it: once more


def flush(file: BinaryIO) -> None:
    """Bring a file's contents to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
