"""Adding two numbers: ``3+5=`` is answered by ``8``.

Options: ``max`` (default 9), the largest summand; there are (max + 1)² different prompts.
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
    refuse_unknown(options, ["max"])
    numbers = integer(options, "max", 9, lowest=0, highest=10**9) + 1
    check_range(start, count)
    return (_prompt(seed, index, numbers) for index in range(start, start + count))


def _prompt(seed: int, index: int, numbers: int) -> TaskPrompt:
    left, right = divmod(draw("addition", seed, index, numbers * numbers), numbers)
    result = str(left + right)
    return TaskPrompt(index, f"{left}+{right}=", result, result)
