"""What the generators share: strict options, and draws that never change.

Called by the generators only. The draws are hashes, not ``random``: a later Python must
not change which prompt has which index, or a resumed run would feed other prompts.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from verlops.errors import ConfigError


def draw(task: str, seed: int, index: int, below: int) -> int:
    """Uniform in [0, below), a function of task, seed and index alone.

    A 64-byte hash modulo ``below``: the bias is under 1e-100 for any bound in use.
    """
    digest = hashlib.blake2b(f"{task}/{seed}/{index}".encode()).digest()
    return int.from_bytes(digest, "little") % below


def integer(
    options: Mapping[str, Any], name: str, default: int, *, lowest: int, highest: int
) -> int:
    """An option that is a whole number within bounds. Raises ConfigError naming it."""
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"task.options.{name}: {value!r} is not a whole number")
    if not lowest <= value <= highest:
        raise ConfigError(f"task.options.{name}: {value} is not within {lowest} to {highest}")
    return value


def refuse_unknown(options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises ConfigError with one line for each option that the task does not have."""
    names = sorted(known)
    strange = [str(name) for name in options if name not in names]
    if strange:
        raise ConfigError([_line(name, names) for name in sorted(strange)])


def check_range(start: int, count: int) -> None:
    """Raises ConfigError unless ``start`` and ``count`` are not negative."""
    if start < 0 or count < 0:
        raise ConfigError(f"prompts {start} to {start + count}: start and count are 0 or more")


def _line(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"; did you mean '{near[0]}'?" if near else f" (known: {', '.join(known)})"
    return f"task.options.{name}: unknown option{guess}"
