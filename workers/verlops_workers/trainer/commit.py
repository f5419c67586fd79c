"""Making an update a version: upload, verify, create the version file; retention.

The create is the commit (DATAPLANE rule 6). Whoever loses it gets ConflictError and has
changed nothing that anybody reads.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from verlops.errors import CorruptError, FencedError, NotFoundError
from verlops.lineage import highest_fence, list_versions, read_version, sha256_file
from verlops.ports import ArtifactStore
from verlops.versions import (
    FileEntry,
    Version,
    attempt_prefix,
    encode_version,
    version_key,
)

WEIGHTS = "model/model.safetensors"
STATE = "state/"


def upload(
    store: ArtifactStore, folder: Path, run: str, version: int, attempt: str
) -> list[FileEntry]:
    """Put every file below ``folder`` under the attempt's path, and verify each there.

    Raises CorruptError when the store holds something else than was put.
    """
    prefix = attempt_prefix(run, version, attempt)
    entries = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        store.put_file(prefix + name, path)
        entries.append(FileEntry(path=name, sha256=sha256_file(path), size=path.stat().st_size))
    for entry in entries:
        data = store.get(prefix + entry.path)
        if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise CorruptError(f"{prefix}{entry.path} is not what was put there")
    return entries


def commit(store: ArtifactStore, version: Version) -> None:
    """Create the version file. Raises FencedError or ConflictError: nothing happened then."""
    newest = highest_fence(store, version.run)
    if newest > version.fence:
        raise FencedError(f"a trainer with fence {newest} was launched; ours is {version.fence}")
    store.put_if_absent(version_key(version.run, version.version), encode_version(version))


def digest_of(entries: list[FileEntry], path: str) -> str:
    """The sha256 of one entry. Raises NotFoundError."""
    for entry in entries:
        if entry.path == path:
            return entry.sha256
    raise NotFoundError(f"the update wrote no {path}")


def prune(store: ArtifactStore, run: str, keep: int) -> list[str]:
    """Delete the training state of all but the newest ``keep`` versions; return the keys.

    Decided by listing the store, in numeric order, and only after the newest is committed.
    Weights of versions that a worker may still pull stay as long as their state does; the
    version files stay for ever: they are the trained set.
    """
    gone = []
    for number in list_versions(store, run)[:-keep]:
        version = read_version(store, run, number)
        if not version.attempt:
            continue
        for stat in store.list(attempt_prefix(run, number, version.attempt)):
            store.delete(stat.key)
            gone.append(stat.key)
    return gone
