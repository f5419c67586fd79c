"""Reading a run's lineage from an artifact store: which versions exist and what they spent.

Called by the controller, the workers and the trainer. Speaks to the store's port only.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from verlops.errors import CorruptError, NotFoundError
from verlops.ports import ArtifactStore
from verlops.versions import (
    FileEntry,
    Version,
    attempt_prefix,
    decode_version,
    fence_prefix,
    parse_fence_key,
    parse_version_key,
    version_key,
    versions_prefix,
)


def list_versions(store: ArtifactStore, run: str) -> list[int]:
    """The committed version numbers of a run, in numeric order."""
    keys = (stat.key for stat in store.list(versions_prefix(run)))
    return sorted(n for key in keys if (n := parse_version_key(key)) is not None)


def read_version(store: ArtifactStore, run: str, version: int) -> Version:
    """One version file. Raises NotFoundError or CorruptError."""
    found = decode_version(store.get(version_key(run, version)))
    if found.run != run or found.version != version:
        raise CorruptError(f"{version_key(run, version)} says it is {found.run}/{found.version}")
    return found


def newest_version(store: ArtifactStore, run: str) -> int | None:
    """The highest committed version number, or None before version 0."""
    numbers = list_versions(store, run)
    return numbers[-1] if numbers else None


def highest_fence(store: ArtifactStore, run: str) -> int:
    """The highest fence given out in a run; 0 when none was."""
    tokens = (parse_fence_key(stat.key) for stat in store.list(fence_prefix(run)))
    return max((token for token in tokens if token is not None), default=0)


def fetch_files(
    store: ArtifactStore, version: Version, into: Path, *, below: str = ""
) -> list[FileEntry]:
    """Download a version's files (those whose path starts with ``below``), verified.

    A file that is there already with the right checksum is kept. Raises CorruptError
    when a checksum is wrong after the download, NotFoundError when a file is missing.
    """
    prefix = attempt_prefix(version.run, version.version, version.attempt)
    wanted = [entry for entry in version.files if entry.path.startswith(below)]
    for entry in wanted:
        target = into / entry.path
        if target.exists() and sha256_file(target) == entry.sha256:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        store.fetch(prefix + entry.path, target)
        if sha256_file(target) != entry.sha256:
            target.unlink()
            raise CorruptError(f"{prefix}{entry.path}: checksum differs from the version file's")
    return wanted


def newest_good(store: ArtifactStore, run: str) -> Version:
    """The newest version whose file decodes. Raises NotFoundError when there is none."""
    for number in reversed(list_versions(store, run)):
        try:
            return read_version(store, run, number)
        except CorruptError:
            continue
    raise NotFoundError(f"run {run} has no version", hint="run `verlops up` first")


def sha256_file(path: Path) -> str:
    """sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
