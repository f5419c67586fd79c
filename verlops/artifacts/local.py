"""The artifact store in a local folder: checkpoints and weights of one machine.

Named ``local`` in the registry; used by every program of the machine at once. An object
is written under ``.tmp``, made durable, then given its name in one step: rename(2), or
link(2) where only the first may win. A process killed in between leaves a file under
``.tmp`` that nobody lists and the next writer removes. Never writes outside its folder
(``fetch`` excepted), never lists what lies behind a symbolic link.
"""

from __future__ import annotations

import builtins
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

from verlops.artifacts.drafts import Drafts, flush, sync_folder
from verlops.config import Config
from verlops.errors import (
    ConfigError,
    ConflictError,
    NotFoundError,
    UnknownOutcomeError,
    VerlopsError,
)
from verlops.ports import Stat

DRAFTS = ".tmp"
ATTEMPTS = 100
"""Times to name a file whose folder another process removes just then, as empty."""

BUFFER = 1 << 20
"""Bytes that are copied at a time."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class LocalStore:
    """The ArtifactStore port over ``folder``, which the first write makes.

    Keys are names joined by '/'. Unlike in an object store 'a' and 'a/b' cannot both
    exist: the second raises VerlopsError.
    """

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._drafts = Drafts(folder / DRAFTS)

    @classmethod
    def open(cls, config: Config) -> Self:
        """The store at ``artifacts.path``. Raises ConfigError without one."""
        if config.artifacts.path is None:
            raise ConfigError("artifacts.path: the local store needs a folder")
        return cls(Path(config.artifacts.path))

    def put(self, key: str, data: bytes) -> None:
        """Store or replace; durable on return."""
        self._store(key, lambda file: _write(file, data), os.replace)

    def put_file(self, key: str, path: Path) -> None:
        """Store a copy of a file. Raises NotFoundError when it is not there."""
        with _reading(path, f"file {path}") as source:
            self._store(key, lambda file: shutil.copyfileobj(source, file, BUFFER), os.replace)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Store unless the key exists. Raises ConflictError; then nothing has changed."""
        self._store(key, lambda file: _write(file, data), os.link)

    def get(self, key: str) -> bytes:
        """The object's bytes. Raises NotFoundError."""
        with _reading(self._path(key), f"object '{key}'") as file:
            return file.read()

    def fetch(self, key: str, path: Path) -> None:
        """Copy an object to ``path``, whole or not at all. Raises NotFoundError."""
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with _reading(self._path(key), f"object '{key}'") as source, _translated(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with draft.open("xb") as file:
                    shutil.copyfileobj(source, file, BUFFER)
                    flush(file)
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)

    def list(self, prefix: str) -> builtins.list[Stat]:
        """Objects whose key begins with ``prefix`` (any string), sorted by key."""
        folder = prefix.rpartition("/")[0]
        start = self._path(folder) if "/" in prefix else self._root
        with _translated(f"'{prefix}' in {self._root}"):
            return sorted(_walk(start, f"{folder}/" if folder else "", prefix))

    def delete(self, key: str) -> None:
        """Remove an object, and the folders that are empty then. Missing is fine."""
        path = self._path(key)
        with _translated(f"'{key}' in {self._root}"):
            if path.is_file() or path.is_symlink():
                path.unlink(missing_ok=True)
                self._prune(path.parent)

    def _store(
        self,
        key: str,
        write: Callable[[BinaryIO], None],
        name: Callable[[Path, Path], None],
    ) -> None:
        target = self._path(key)
        with _translated(f"'{key}' in {self._root}"), self._drafts.new() as (draft, file):
            write(file)
            flush(file)
            for _ in range(ATTEMPTS):
                try:
                    self._make_folders(target.parent)
                    _give_name(draft, target, key, name)
                except FileNotFoundError:
                    continue  # the folder was empty, and a delete removed it just then
                _settle(target.parent, key)
                return
            raise VerlopsError(f"cannot store '{key}': its folder is removed again and again")

    def _make_folders(self, folder: Path) -> None:
        """Make folders down to this one, durably. FileNotFoundError: one was removed again."""
        if folder.is_dir():
            return
        self._make_folders(folder.parent)
        try:
            folder.mkdir()
        except FileExistsError:
            # Not mkdir(exist_ok=True): that fails when the folder is removed just then.
            if not stat.S_ISDIR(folder.stat().st_mode):
                raise
        sync_folder(folder.parent)

    def _prune(self, folder: Path) -> None:
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
                return
            folder = folder.parent

    def _path(self, key: str) -> Path:
        """The file of a key. Raises VerlopsError for what is no key."""
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts) or parts[0] == DRAFTS or "\0" in key:
            raise VerlopsError(
                f"{key!r} is no key of an artifact", hint="names joined by '/', without '..'"
            )
        return self._root.joinpath(*parts)


def _give_name(draft: Path, target: Path, key: str, name: Callable[[Path, Path], None]) -> None:
    try:
        name(draft, target)
    except (FileExistsError, IsADirectoryError):
        if target.is_dir():
            raise VerlopsError(f"cannot store '{key}': it is a folder of other objects") from None
        raise ConflictError(f"object '{key}' exists already") from None


def _settle(folder: Path, key: str) -> None:
    """Make an object's name last. It is visible already, so a failure is no refusal."""
    try:
        sync_folder(folder)
    except OSError as error:
        raise UnknownOutcomeError(
            f"object '{key}' is stored, but may be gone after a power loss: {error.strerror}"
        ) from error


def _walk(folder: Path, base: str, prefix: str) -> Iterator[Stat]:
    """Objects below a folder whose keys begin with ``base``; what vanishes is left out."""
    try:
        entries = list(os.scandir(folder))
    except _ABSENT:
        return
    for entry in entries:
        key = base + entry.name
        if entry.is_dir(follow_symlinks=False):
            inside = f"{key}/"
            if key != DRAFTS and (inside.startswith(prefix) or prefix.startswith(inside)):
                yield from _walk(folder / entry.name, inside, prefix)
        elif key.startswith(prefix) and entry.is_file(follow_symlinks=False):
            try:
                yield Stat(key, entry.stat(follow_symlinks=False).st_size)
            except FileNotFoundError:
                continue


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)


@contextmanager
def _reading(path: Path, what: str) -> Iterator[BinaryIO]:
    """An open file. Raises NotFoundError when there is none."""
    try:
        file = path.open("rb")
    except _ABSENT:
        raise NotFoundError(f"{what} does not exist") from None
    except OSError as error:
        raise _ours(error, what) from error
    with file, _translated(what):
        yield file


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _ours(error, what) from error


def _ours(error: OSError, what: str) -> VerlopsError:
    if error.errno in _NO_SPACE:
        return VerlopsError(
            f"no space left for {what}: {error.strerror}",
            hint="nothing of it was stored; free some space or set artifacts.path elsewhere",
        )
    return VerlopsError(
        f"cannot use {what}: {error.strerror or error}",
        hint="check the rights of the folder; the store needs a file system with hard links",
    )
