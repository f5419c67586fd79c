"""The version file: the one object whose creation commits an update.

Written by the trainer, read by the controller, the workers and the next trainer. Paths
in the artifact store, for a run R, version V (8 digits) and attempt A:

    runs/R/versions/V.json           created by put-if-absent: this is the commit
    runs/R/attempts/V-A/...          every file of the attempt; no other attempt writes here
    runs/R/fence/<token>             one empty object for each fence given out

Pure: types, paths and encodings only.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from verlops.errors import CorruptError

_VERSION_KEY = re.compile(r"/versions/(\d{8})\.json$")
_FENCE_KEY = re.compile(r"/fence/(\d+)$")


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of an attempt: path below the attempt, sha256 in hex, size in bytes."""

    path: str
    sha256: str
    size: int


class Version(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a committed policy version is made of, and which groups it spent.

    Version 0 is the model that the run starts from: ``model`` names it, it has no files
    of its own unless the run copied them, and no trained groups.
    """

    schema: int = 1
    run: str
    version: int
    parent: int | None = None
    attempt: str = ""
    fence: int = 0
    model: str = ""
    """For version 0: what ``from_pretrained`` is called with."""
    files: list[FileEntry] = []
    weights: str = ""
    """sha256 of the weights (``model/model.safetensors``): stamped into segments."""
    trained: str = ""
    """Ids of the groups spent by this version: base64 of 16 bytes each."""
    next_offsets: dict[str, int] = {}
    """Samples partition → first offset not yet needed; a hint for reading, not a rule."""
    counts: dict[str, int] = {}
    """samples, groups, tokens, stale_groups, superseded_groups, …"""
    metrics: dict[str, float | None] = {}
    """loss, reward_mean, kl, clip_fraction, ess, entropy, grad_norm, lr, …"""
    state: dict[str, Any] = {}
    """LR schedule, optimizer steps done, RNG seeds: what a resume needs beside files."""
    logger: dict[str, str] = {}
    committed_at: float = 0.0
    instance: str = ""

    def trained_ids(self) -> list[str]:
        """Ids of the groups this version spent, in hex."""
        return unpack_trained(self.trained)


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Version)


def encode_version(version: Version) -> bytes:
    """The bytes of a version file."""
    return msgspec.json.format(_encoder.encode(version), indent=1)


def decode_version(data: bytes) -> Version:
    """The version in ``data``. Raises CorruptError."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"not a version file: {error}") from error


def pack_trained(ids: Iterable[str]) -> str:
    """Group ids (32 hex digits each) as one base64 string."""
    return base64.b64encode(b"".join(bytes.fromhex(i) for i in ids)).decode()


def unpack_trained(text: str) -> list[str]:
    """The inverse of pack_trained. Raises CorruptError."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise CorruptError("trained set is not base64") from error
    if len(data) % 16:
        raise CorruptError("trained set is not a multiple of 16 bytes")
    return [data[i : i + 16].hex() for i in range(0, len(data), 16)]


def versions_prefix(run: str) -> str:
    """Where the version files of a run lie."""
    return f"runs/{run}/versions/"


def version_key(run: str, version: int) -> str:
    """The object whose creation commits ``version``."""
    return f"{versions_prefix(run)}{version:08d}.json"


def attempts_prefix(run: str) -> str:
    """Where the attempts of a run lie."""
    return f"runs/{run}/attempts/"


def attempt_prefix(run: str, version: int, attempt: str) -> str:
    """Where one attempt at a version writes its files; ends with a slash."""
    return f"{attempts_prefix(run)}{version:08d}-{attempt}/"


def fence_prefix(run: str) -> str:
    """Where the fences of a run lie."""
    return f"runs/{run}/fence/"


def fence_key(run: str, token: int) -> str:
    """The object that says that ``token`` was given out."""
    return f"{fence_prefix(run)}{token}"


def parse_version_key(key: str) -> int | None:
    """The version number in a key, or None when it is no version file."""
    match = _VERSION_KEY.search(key)
    return int(match.group(1)) if match else None


def parse_fence_key(key: str) -> int | None:
    """The token in a key, or None when it is no fence."""
    match = _FENCE_KEY.search(key)
    return int(match.group(1)) if match else None
