"""``verlops doctor``: is this machine fit, and is this environment in order."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from verlops.assemble.load import Loaded, load_config
from verlops.cli.checks import Check
from verlops.cli.environment_checks import environment_checks
from verlops.cli.machine_checks import (
    disk_check,
    memory_check,
    package_checks,
    python_check,
    torch_check,
)
from verlops.cli.output import is_terminal, paint, print_json
from verlops.config import Config
from verlops.errors import ConfigError

SCHEMA_VERSION = 1
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
INDENT = 20
NEEDS_TORCH = ("control", "rollout", "trainer")


def command(*, role: str, config: Path | None, json: bool) -> int:
    """Print a line a check; 1 when any has failed."""
    found: list[Check] = []
    for check in checks(role, config):
        found.append(check)
        if not json:
            print("\n".join(_lines(check)), flush=True)
    failed = any(check.level == "fail" for check in found)
    if json:
        print_json(_data(role, found, ok=not failed))
    else:
        print(_verdict(found))
    return int(failed)


def checks(role: str, config: Path | None) -> Iterator[Check]:
    """The checks of a role, one after the other."""
    yield python_check()
    loaded, faults = _load(config)
    yield from faults
    machines_here = loaded is None or loaded.config.provider.kind == "local"
    workers = role != "control" or machines_here
    packages = list(package_checks(role, workers=workers))
    yield from packages
    if workers and role in NEEDS_TORCH and all(p.level == "ok" for p in packages):
        yield torch_check()
    yield memory_check(_processes(loaded.config) if loaded and role == "control" else 0)
    yield disk_check(loaded.state_dir if loaded else Path.cwd())
    if loaded and role == "control":
        yield from environment_checks(loaded)


def _load(path: Path | None) -> tuple[Loaded | None, list[Check]]:
    try:
        loaded = load_config(path)
    except ConfigError as error:
        remedy = "mend it, then: verlops config validate"
        return None, [Check("config", "fail", fault, remedy) for fault in error.faults]
    return loaded, [Check("config", "ok", f"{loaded.source}: '{loaded.config.name}'")]


def _processes(config: Config) -> int:
    """Processes with torch that an environment runs on this machine at most."""
    if config.provider.kind != "local":
        return 0
    return config.rollout.pool.max + (config.trainer.processes or config.trainer.gpus)


def _lines(check: Check) -> list[str]:
    level = paint(f"{check.level:<4}", COLOURS[check.level])
    first, *more = _folded(check.detail)
    if check.level != "ok" and check.remedy:
        more += _folded(check.remedy)
    return [f"{level}  {check.name:<12}  {first}", *(f"{'':{INDENT}}{line}" for line in more)]


def _folded(text: str) -> list[str]:
    """Lines as wide as the terminal; elsewhere one line, for programs to search."""
    if not is_terminal():
        return [text]
    width = max(40, shutil.get_terminal_size().columns - INDENT)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _verdict(found: Sequence[Check]) -> str:
    counts = {level: sum(c.level == level for c in found) for level in COLOURS}
    return ", ".join(f"{count} {level}" for level, count in counts.items() if count)


def _data(role: str, found: Sequence[Check], *, ok: bool) -> dict[str, object]:
    lines = [
        {
            "name": check.name,
            "level": check.level,
            "detail": check.detail,
            "remedy": check.remedy if check.level != "ok" else None,
        }
        for check in found
    ]
    return {"schema_version": SCHEMA_VERSION, "role": role, "ok": ok, "checks": lines}
