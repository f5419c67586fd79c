"""From ``config.reward`` to the scorer that the server calls.

Called once at the server's start, so that a wrong name or option stops it there. Names
come from the local config only, never from a record.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from verlops import registry
from verlops.config.schema import Reward as RewardConfig
from verlops.errors import ConfigError
from verlops.ports import Reward


class Scorer(NamedTuple):
    """A reward function with what identifies its scores."""

    name: str
    version: str
    function: Reward
    options: str = ""
    """Digest of its options: they change scores, so they are part of the cache key."""
    concurrency: int = 1
    """Calls at a time; more than 1 only where the function says so."""

    @property
    def label(self) -> str:
        """What answers and samples say: name@version."""
        return f"{self.name}@{self.version}"


def load_scorer(config: RewardConfig) -> Scorer:
    """The scorer of a config: a function, or an instance of a class.

    Options go to the class's constructor, or to the function as keywords. An attribute
    ``concurrency`` says how many calls it bears at a time. Raises ConfigError or
    MissingExtraError.
    """
    found = registry.load("REWARDS", config.function)
    function = _with_options(found, config.options, config.function)
    concurrency = getattr(found, "concurrency", 1)
    if not isinstance(concurrency, int) or concurrency < 1:
        raise ConfigError(
            f"reward.function: 'concurrency' of {config.function} is no number above 0"
        )
    options = json.dumps(config.options, sort_keys=True, default=str)
    digest = hashlib.sha256(options.encode()).hexdigest() if config.options else ""
    return Scorer(config.function, config.version, function, digest, concurrency)


def _with_options(found: Any, options: Mapping[str, Any], name: str) -> Reward:
    if not callable(found):
        raise ConfigError(f"reward.function: {name} is neither a function nor a class")
    if inspect.isclass(found):
        _check(found, [], options)
        made = found(**options)
        if not callable(made):
            raise ConfigError(f"reward.function: {name} has no __call__")
        _check(made, [()], {})
        return made
    _check(found, [()], options)
    return functools.partial(found, **options) if options else found


def _check(found: Callable[..., Any], positional: list[Any], options: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(found)
    except ValueError:  # some built-ins have none: the first call will tell
        return
    try:
        signature.bind(*positional, **options)
    except TypeError as error:
        known = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_POSITIONAL]
        raise ConfigError(
            f"reward.options: {error}", hint=f"it takes {', '.join(known)}"
        ) from error
