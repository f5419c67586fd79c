"""Sorting digits: ``52413>`` is answered by ``12345``.

Options: ``digits`` (default 5), how many; there are 10 to that power different prompts.
Named in ``registry.TASKS``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verlops.tasks import TaskPrompt
from verlops.tasks.options import check_range, draw, integer, refuse_unknown


def generate(
    *, seed: int, start: int, count: int, options: Mapping[str, Any]
) -> Iterator[TaskPrompt]:
    """Prompts ``start`` to ``start + count - 1``; raises ConfigError at once."""
    refuse_unknown(options, ["digits"])
    digits = integer(options, "digits", 5, lowest=1, highest=64)
    check_range(start, count)
    return (_prompt(seed, index, digits) for index in range(start, start + count))


def _prompt(seed: int, index: int, digits: int) -> TaskPrompt:
    text = f"{draw('sort_digits', seed, index, 10**digits):0{digits}d}"
    result = "".join(sorted(text))
    return TaskPrompt(index, f"{text}>", result, result)
