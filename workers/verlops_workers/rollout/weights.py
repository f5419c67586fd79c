"""Pulling a version's weights to this machine, verified, and forgetting old ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from verlops.lineage import fetch_files, read_version
from verlops.ports import ArtifactStore
from verlops_workers.host import Host


class Weights(NamedTuple):
    """A model folder (or a name for from_pretrained) and the hash to stamp."""

    path: Path
    version: int
    digest: str


class Puller:
    """Pulls versions into ``<machine>/weights``."""

    def __init__(self, store: ArtifactStore, host: Host) -> None:
        self._store = store
        self._run = host.spec.run
        self._folder = host.folder / "weights"

    def pull(self, number: int) -> Weights:
        """The weights of a version. Raises NotFoundError or CorruptError.

        Every file's checksum equals the version file's, or it is not there.
        """
        version = read_version(self._store, self._run, number)
        if not version.files:
            return Weights(Path(version.model), number, version.weights)
        into = self._folder / f"{number:08d}"
        fetch_files(self._store, version, into, below="model/")
        return Weights(into / "model", number, version.weights)

    def forget_before(self, number: int) -> None:
        """Delete the folders of versions older than this one."""
        for folder in self._folder.glob("*"):
            if folder.name.isdigit() and int(folder.name) < number:
                shutil.rmtree(folder, ignore_errors=True)
