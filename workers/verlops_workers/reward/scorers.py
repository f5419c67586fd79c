"""The built-in reward functions, named in ``registry.REWARDS``.

A scorer takes items and returns a score for each, in order (``verlops.ports.Reward``). It
raises ValueError for an item that it cannot judge; the server finds out which one it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from verlops import registry
from verlops.ports import ScoreItem


def exact(items: Sequence[ScoreItem]) -> list[float | None]:
    """1 where response and reference are equal but for white space around them, else 0."""
    return [float(item.response.strip() == _reference(item)) for item in items]


def addition(items: Sequence[ScoreItem], *, partial_credit: bool = False) -> list[float | None]:
    """1 for the exact sum, else 0.

    With ``partial_credit`` a wrong response gets half the share of the reference's places
    that it has right: see ``places``.
    """
    return [_graded(item, partial_credit) for item in items]


def sort_digits(items: Sequence[ScoreItem], *, partial_credit: bool = False) -> list[float | None]:
    """1 for the digits in order, else 0; ``partial_credit`` as for ``addition``."""
    return [_graded(item, partial_credit) for item in items]


class ReasoningGym:
    """The verifiers of the reasoning-gym library: 0 to 1 for each response.

    The reference is what the task ``reasoning_gym`` wrote. Raises ValueError for any other
    and where a verifier chokes on a response, ConfigError for a dataset whose verifier
    would run the response as code, MissingExtraError without the library.
    """

    def __init__(self) -> None:
        self._verifier = registry.load_attr("reasoning_gym:get_score_answer_fn")
        self._check_safe = registry.load_attr("verlops.tasks.gym:check_safe")
        self._verifiers: dict[str, Callable[[str, Any], float]] = {}

    def __call__(self, items: Sequence[ScoreItem]) -> list[float | None]:
        return [self._score(item) for item in items]

    def _score(self, item: ScoreItem) -> float:
        try:
            told = json.loads(item.reference)
            name, entry = str(told["dataset"]), told["entry"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError("the reference is not one of the task 'reasoning_gym'") from error
        return float(self._of(name)(item.response.strip(), entry))

    def _of(self, name: str) -> Callable[[str, Any], float]:
        if name not in self._verifiers:
            self._check_safe(name)
            self._verifiers[name] = self._verifier(name)
        return self._verifiers[name]


def places(response: str, reference: str) -> float:
    """Share of positions with the same character, of the longer of the two texts."""
    same = sum(a == b for a, b in zip(response, reference, strict=False))
    return same / max(len(response), len(reference))


def _graded(item: ScoreItem, partial_credit: bool) -> float:
    response, reference = item.response.strip(), _reference(item)
    if response == reference:
        return 1.0
    return places(response, reference) / 2 if partial_credit else 0.0


def _reference(item: ScoreItem) -> str:
    # An absent reference is unknown: compared as empty it would reward saying nothing.
    if not item.reference.strip():
        raise ValueError("the item has no reference")
    return item.reference.strip()
