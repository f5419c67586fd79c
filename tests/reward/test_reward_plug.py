"""From the config to a scorer: names, classes, options, and one clear line for each fault."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from verlops.config.schema import Reward as RewardConfig
from verlops.errors import ConfigError, MissingExtraError
from verlops.ports import ScoreItem
from verlops_workers.reward import scorers
from verlops_workers.reward.plug import load_scorer

HERE = "tests_reward_plug_target"
ITEMS = [ScoreItem("p", "abc", "r", "t")]


def lengths(items: Sequence[ScoreItem], *, scale: float = 1.0) -> list[float]:
    return [scale * len(i.response) for i in items]


class Scaled:
    concurrency = 4

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, items: Sequence[ScoreItem]) -> list[float]:
        return lengths(items, scale=self.scale)


class NotCallable:
    pass


class TakesNothing:
    def __call__(self) -> list[float]:
        return []


class Hasty:
    concurrency = 0

    def __call__(self, items: Sequence[ScoreItem]) -> list[float]:
        return []


NUMBER = 3


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])


def config(function: str, **options: Any) -> RewardConfig:
    return RewardConfig(function=function, version="7", options=options)


def test_a_registered_function() -> None:
    scorer = load_scorer(config("addition"))
    assert scorer.function is scorers.addition
    assert (scorer.label, scorer.concurrency, scorer.options) == ("addition@7", 1, "")


def test_a_users_function_with_and_without_options() -> None:
    assert load_scorer(config(f"{HERE}:lengths")).function(ITEMS) == [3.0]
    assert load_scorer(config(f"{HERE}:lengths", scale=2.0)).function(ITEMS) == [6.0]


def test_a_class_is_made_with_the_options() -> None:
    scorer = load_scorer(config(f"{HERE}:Scaled", scale=0.5))
    assert scorer.function(ITEMS) == [1.5]
    assert scorer.concurrency == 4
    assert scorer.label == f"{HERE}:Scaled@7"


def test_options_are_part_of_the_identity_whatever_their_order() -> None:
    one = load_scorer(config(f"{HERE}:lengths", scale=2.0))
    other = load_scorer(config(f"{HERE}:lengths", scale=3.0))
    assert one.options != other.options
    a = RewardConfig(function="addition", options={"partial_credit": True})
    assert load_scorer(a).options == load_scorer(a).options != ""


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        ("adition", {}, ["unknown reward 'adition'", "did you mean 'addition'"]),
        ("no_such_module_xyz:f", {}, ["cannot import 'no_such_module_xyz'"]),
        (f"{HERE}:absent", {}, ["has no attribute 'absent'"]),
        (f"{HERE}:NUMBER", {}, ["neither a function nor a class"]),
        (f"{HERE}:lengths", {"scal": 1}, ["reward.options", "'scal'", "scale"]),
        (f"{HERE}:Scaled", {}, ["reward.options", "'scale'"]),
        (f"{HERE}:NotCallable", {}, ["has no __call__"]),
        (f"{HERE}:TakesNothing", {}, ["reward.options", "too many positional"]),
        (f"{HERE}:Hasty", {}, ["concurrency"]),
        ("reasoning_gym", {"dataset": "chain_sum"}, ["reward.options", "'dataset'"]),
    ],
)
def test_faults(function: str, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_scorer(config(function, **options))
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingExtraError, match=r"verlops-workers\[gym\]"):
        load_scorer(config("reasoning_gym"))
