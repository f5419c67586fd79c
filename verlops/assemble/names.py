"""Whether the names in a config that stand for code stand for something.

Called by ``verlops.assemble.load`` on the plain mapping, so that a wrong name is reported
beside every other fault. Code of ours is not imported here; a user's own policy, trigger
or task is, because this process will run it. What runs on machines is only looked for.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from typing import Any

from verlops import registry
from verlops.errors import ConfigError, MissingExtraError

NAMES = {
    "provider.kind": ("PROVIDERS", "provider"),
    "queue.kind": ("QUEUES", "queue"),
    "state.kind": ("STATES", "state store"),
    "artifacts.kind": ("ARTIFACTS", "artifact store"),
    "task.generator": ("TASKS", "task"),
    "reward.function": ("REWARDS", "reward"),
    "rollout.engine": ("BACKENDS", "engine"),
    "rollout.pool.policy": ("POLICIES", "policy"),
    "trainer.trigger": ("TRIGGERS", "trigger"),
    "trainer.algorithm": ("LOSSES", "loss"),
    "trainer.advantage": ("ADVANTAGES", "advantage"),
}
"""Path of a key → (table of the registry, word for it)."""
RUN_HERE = ("TASKS", "POLICIES", "TRIGGERS")
_TARGET = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")


def name_faults(data: Any) -> Iterator[tuple[str, str]]:
    """(path, fault) of every name in ``data`` that stands for nothing."""
    for path, (table, word) in NAMES.items():
        name = _at(data, path)
        fault = _fault(table, word, name) if isinstance(name, str) else ""
        if fault:
            yield path, fault


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _fault(table: str, word: str, name: str) -> str:
    known = registry.tables()[table]
    try:
        target = registry.resolve(table, name)
    except ConfigError:
        return registry.unknown(name, list(known), what=word)
    return "" if name in known else _own(table, target)


def _own(table: str, target: str) -> str:
    """The fault in a ``module:attr`` that is not ours, or nothing."""
    if not _TARGET.match(target):
        return f"'{target}' is not of the form module:attr"
    top = target.partition(":")[0].partition(".")[0]
    if not _exists(top):
        return f"no module '{top}' for '{target}'; is its folder on PYTHONPATH?"
    return _loads(target) if table in RUN_HERE else ""


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module without a spec, like __main__
        return False


def _loads(target: str) -> str:
    try:
        registry.load_attr(target)
    except (ConfigError, MissingExtraError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a user's file may fail in any way
        return f"'{target}' fails to import: {type(error).__name__}: {error}"
    return ""
