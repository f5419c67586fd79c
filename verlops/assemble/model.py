"""Version 0: the model that a run starts from.

Either what ``model.path`` names, or a small model made by ``verlops-worker warmup`` in a
process of its own (the control side never imports torch).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from verlops.config import Config
from verlops.errors import ConfigError, VerlopsError
from verlops.lineage import sha256_file
from verlops.versions import Version


def first_version(config: Config, run: str, state_dir: Path, say: Callable[[str], None]) -> Version:
    """The version file of version 0. Raises ConfigError when there is no model."""
    if config.model.path:
        path = config.model.path
        return Version(run=run, version=0, model=path, weights=_weights_hash(Path(path)))
    if config.model.warmup is None:
        raise ConfigError("model.path: required, unless model.warmup makes a small model")
    made = _warm_up(config, state_dir, say)
    return Version(run=run, version=0, model=made.model, weights=made.weights)


class _Made(msgspec.Struct):
    model: str
    weights: str


def _weights_hash(folder: Path) -> str:
    """sha256 over the safetensors files of a folder, or of the name of a hub model."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if len(files) == 1:
        return sha256_file(files[0])
    digest = hashlib.sha256("".join(map(sha256_file, files)).encode() or str(folder).encode())
    return digest.hexdigest()


def _warm_up(config: Config, state_dir: Path, say: Callable[[str], None]) -> _Made:
    state_dir.mkdir(parents=True, exist_ok=True)
    spec = state_dir / "warmup.json"
    spec.write_bytes(msgspec.json.encode(config.model_dump(mode="json")))
    command = [sys.executable, "-m", "verlops_workers.main", "warmup"]
    command += ["--config", str(spec), "--out", str(state_dir / "models")]
    last = ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last = line.strip()
            if not last.startswith("{"):
                say(last)
    if process.returncode:
        raise VerlopsError(
            f"warm-up of the starting model failed with exit code {process.returncode}",
            hint="its own message is above; is `verlops-workers[train]` installed?",
        )
    try:
        return msgspec.json.decode(last, type=_Made)
    except msgspec.MsgspecError as error:
        raise VerlopsError(f"warm-up printed no result: {last!r}") from error
