"""From a file and the environment to a checked config with absolute paths.

Called by every command. Reports all faults at once, one line each; starts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from verlops.assemble.names import name_faults
from verlops.assemble.sanity import sanity_faults
from verlops.assemble.strict_yaml import Document, read_yaml
from verlops.config import Config, parse
from verlops.errors import ConfigError

CONFIG_VARIABLE = "VERLOPS_CONFIG"
STATE_VARIABLE = "VERLOPS_STATE"
EMBEDDED = "embedded default"
MAX_BYTES = 1 << 20
"""Longest config that is read."""


@dataclass(frozen=True)
class Loaded:
    """A config that is ready for use, and where it came from."""

    config: Config
    source: str
    """The file as it was named, or "embedded default"."""
    state_dir: Path
    """Absolute; equal to ``config.state.path``. It may not exist yet."""


def load_config(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> Loaded:
    """The config at ``path``, else at VERLOPS_CONFIG, else the embedded default.

    Relative paths in a file are relative to the file's folder. State lies in
    VERLOPS_STATE, else in ``state.path``, else in ``./.verlops/<name>``; queue and
    artifacts below it unless they have paths of their own. Raises ConfigError.
    """
    path = path or _named(environ, CONFIG_VARIABLE)
    source = EMBEDDED if path is None else str(path)
    text = template("local") if path is None else _read(path)
    config = _checked(read_yaml(text, source), source)
    folder = Path.cwd() if path is None else path.absolute().parent
    resolved = _resolved(config, folder, _named(environ, STATE_VARIABLE))
    assert resolved.state.path is not None
    return Loaded(resolved, source, Path(resolved.state.path))


def templates() -> list[str]:
    """The names of the templates that come with verlops."""
    folder = resources.files("verlops") / "templates"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name[-5:] == ".yaml")


def template(name: str) -> str:
    """The text of a template."""
    return (resources.files("verlops") / "templates" / f"{name}.yaml").read_text(encoding="utf-8")


def _named(environ: Mapping[str, str], variable: str) -> Path | None:
    value = environ.get(variable, "")
    return Path(value).expanduser() if value else None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_BYTES:,} bytes: not a config")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", hint="`verlops init` writes one") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}") from None


def _checked(document: Document, source: str) -> Config:
    """The config in a document. Raises ConfigError with the faults of every kind."""
    known = [(fault.path, fault.message) for fault in document.faults]
    known += name_faults(document.data)
    lines = [f"{source}: {path}: {message}" for path, message in known]
    told = tuple(f"{source}: {path}: " for path, _ in known)
    try:
        config = parse(document.data, source=source)
        more = [f"{source}: {path}: {message}" for path, message in sanity_faults(config)]
    except ConfigError as error:
        more = error.faults
    # One fault a value: what is no number has no need to be told that it is too small.
    lines += [line for line in more if not line.startswith(told)]
    if lines:
        raise ConfigError(sorted(set(lines)))
    return config


def _resolved(config: Config, folder: Path, state: Path | None) -> Config:
    """The config with every path absolute."""
    own = _absolute(config.state.path, folder) or Path.cwd() / ".verlops" / config.name
    state_dir = state.absolute() if state else own
    paths: dict[str, Path] = {
        "state": state_dir,
        "queue": _absolute(config.queue.path, folder) or state_dir / "queue",
        "artifacts": _absolute(config.artifacts.path, folder) or state_dir / "artifacts",
    }
    changed: dict[str, Any] = {
        key: getattr(config, key).model_copy(update={"path": str(path)})
        for key, path in paths.items()
    }
    model = config.model.model_copy(update={"path": _model_path(config.model.path, folder)})
    return config.model_copy(update={**changed, "model": model})


def _absolute(path: str | None, folder: Path) -> Path | None:
    return Path(os.path.abspath(folder / Path(path).expanduser())) if path else None


def _model_path(path: str, folder: Path) -> str:
    """A model on this disk by its absolute path; a name on a hub as it is."""
    local = _absolute(path, folder)
    if local is None:
        return path
    return str(local) if path.startswith((".", "/", "~")) or local.is_dir() else path
