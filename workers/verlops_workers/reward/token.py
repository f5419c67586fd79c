"""The token that a caller must show: one line in a file that only its owner may read.

Read by the server on each request, anew whenever the file changes, so that a rotation
needs no restart. Never logged.
"""

from __future__ import annotations

import hmac
import logging
import os
import stat
from pathlib import Path

from verlops.errors import CredentialsError

logger = logging.getLogger(__name__)

SHORTEST = 16
"""Characters: anything shorter could be guessed."""


class Token:
    """The token in a file. Raises CredentialsError when it cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._value = _read(path)
        self._complaint = ""

    def matches(self, shown: bytes) -> bool:
        """Whether ``shown`` is the token; takes the same time wherever they differ."""
        self._follow()
        return hmac.compare_digest(shown, self._value)

    def _follow(self) -> None:
        """Take a new token; keep the old one while the new file is no good."""
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._value = _read(self._path)
        except CredentialsError as error:
            self._complain(error)
            return
        self._stamp, self._complaint = stamp, ""
        logger.info("token rotated")

    def _complain(self, error: CredentialsError) -> None:
        if str(error) != self._complaint:
            logger.error("the old token stays: %s", error)
        self._complaint = str(error)


def _stamp(path: Path) -> tuple[int, ...]:
    """What differs after any replacement or change of the file."""
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            value = file.read().strip()
    except OSError as error:
        raise _unreadable(path, error) from error
    if mode & 0o077:
        raise CredentialsError(
            f"{path} may be read by others (mode {mode:04o})",
            hint=f"chmod 600 {path}, and make a new token with `verlops up --rotate`",
        )
    if len(value) < SHORTEST:
        raise CredentialsError(
            f"{path} holds no token of {SHORTEST} characters or more",
            hint="make one with `verlops up --rotate`",
        )
    return value


def _unreadable(path: Path, error: OSError) -> CredentialsError:
    return CredentialsError(
        f"cannot read the reward token {path}: {error.strerror}", hint="`verlops up` makes it"
    )
