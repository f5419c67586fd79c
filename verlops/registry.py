"""Where names in a config become code: tables of "module:attr", loaded when asked for.

A stranger's plug-in registers under the entry-point group ``verlops.<table>``; a user's
own file is named ``module:attr`` in the config. Nothing is imported before it is used.
"""

from __future__ import annotations

import difflib
import importlib
from importlib import metadata
from typing import Any

from verlops.errors import ConfigError, MissingExtraError

PROVIDERS = {
    "local": "verlops.providers.local:LocalProvider",
}
QUEUES = {
    "memory": "verlops.queues.memory:MemoryQueue",
    "sqlite": "verlops.queues.sqlite:SqliteQueue",
}
ARTIFACTS = {
    "local": "verlops.artifacts.local:LocalStore",
}
STATES = {
    "sqlite": "verlops.state.sql:SqlState",
}
POLICIES = {
    "backlog": "verlops_policies.backlog:decide",
    "fixed": "verlops_policies.fixed:decide",
}
TRIGGERS = {
    "threshold": "verlops_policies.threshold:decide",
}
BACKENDS = {
    "scripted": "verlops_workers.rollout.scripted:ScriptedBackend",
    "hf": "verlops_workers.rollout.hf:HfBackend",
}
REWARDS = {
    "exact": "verlops_workers.reward.scorers:exact",
    "addition": "verlops_workers.reward.scorers:addition",
    "sort_digits": "verlops_workers.reward.scorers:sort_digits",
    "reasoning_gym": "verlops_workers.reward.scorers:ReasoningGym",
}
TASKS = {
    "addition": "verlops.tasks.addition:generate",
    "sort_digits": "verlops.tasks.sort_digits:generate",
    "reasoning_gym": "verlops.tasks.gym:generate",
}
ADVANTAGES = {
    "gae": "verlops_workers.trainer.advantages:gae",
    "grpo": "verlops_workers.trainer.advantages:grpo",
}
LOSSES = {
    "ppo": "verlops_workers.trainer.losses:ppo",
}

EXTRAS = {
    "torch": ("train", "verlops-workers"),
    "transformers": ("train", "verlops-workers"),
    "fastapi": ("reward", "verlops-workers"),
    "uvicorn": ("reward", "verlops-workers"),
    "reasoning_gym": ("gym", "verlops-workers"),
    "kafka": ("kafka", "verlops"),
    "boto3": ("aws", "verlops"),
    "kubernetes": ("kubernetes", "verlops"),
}
"""Top-level import → (extra, distribution) that installs it."""


WORDS = {"POLICIES": "policy", "LOSSES": "loss", "ARTIFACTS": "artifact store"}
"""What one entry of a table is called, where dropping an s does not say it."""


def load(table: str, name: str) -> Any:
    """The object that ``name`` stands for in a table, or at ``module:attr``.

    Raises ConfigError for an unknown name, MissingExtraError when its package is missing.
    """
    return load_attr(resolve(table, name))


def resolve(table: str, name: str) -> str:
    """The "module:attr" of a name. Raises ConfigError with the nearest known name."""
    known = tables()[table]
    if name in known:
        return known[name]
    if ":" in name:
        return name
    for point in metadata.entry_points(group=f"verlops.{table.lower()}"):
        if point.name == name:
            return point.value
    raise ConfigError(unknown(name, list(known), what=WORDS.get(table, table.lower()[:-1])))


def tables() -> dict[str, dict[str, str]]:
    """All tables by name."""
    return {
        key: value
        for key, value in globals().items()
        if key.isupper() and key not in ("EXTRAS", "WORDS")
    }


def unknown(name: str, known: list[str], *, what: str) -> str:
    """A line for an unknown name, with a suggestion where one is near."""
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"; did you mean '{near[0]}'?" if near else ""
    return f"unknown {what} '{name}'{guess} (known: {', '.join(sorted(known))})"


def load_attr(target: str) -> Any:
    """The object at "module:attr". Raises ConfigError or MissingExtraError."""
    module, _, attr = target.partition(":")
    if not attr:
        raise ConfigError(f"'{target}' is not of the form module:attr")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in EXTRAS:
            extra, distribution = EXTRAS[missing]
            raise MissingExtraError(
                f"'{target}'", extra=extra, distribution=distribution
            ) from error
        raise ConfigError(f"cannot import '{module}' for '{target}': {error}") from error
    for part in attr.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ConfigError(f"module '{module}' has no attribute '{attr}'") from error
    return found
