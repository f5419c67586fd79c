"""The built-in scorers."""

from __future__ import annotations

import importlib
import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verlops.errors import ConfigError
from verlops.ports import ScoreItem
from verlops.tasks import addition as addition_task
from verlops.tasks import gym as gym_task
from verlops.tasks import sort_digits as sort_task
from verlops_workers.reward.scorers import (
    ReasoningGym,
    addition,
    exact,
    places,
    sort_digits,
)


def of(response: str, reference: str) -> list[ScoreItem]:
    return [ScoreItem("p", response, reference, "t")]


@pytest.mark.parametrize("scorer", [exact, addition, sort_digits])
@pytest.mark.parametrize(
    ("response", "reference", "score"),
    [
        ("8", "8", 1.0),
        (" 8\n", "8", 1.0),
        ("08", "8", 0.0),
        ("88", "8", 0.0),
        ("", "8", 0.0),
        ("12345", "12345", 1.0),
        ("12354", "12345", 0.0),
    ],
)
def test_exact_scores(scorer: Any, response: str, reference: str, score: float) -> None:
    assert scorer(of(response, reference)) == [score]


@pytest.mark.parametrize("scorer", [exact, addition, sort_digits])
def test_without_a_reference_there_is_no_score(scorer: Any) -> None:
    for reference in ("", "  "):
        with pytest.raises(ValueError, match="no reference"):
            scorer(of("", reference))


@pytest.mark.parametrize("scorer", [addition, sort_digits])
@pytest.mark.parametrize(
    ("response", "credit"),
    [("12345", 1.0), ("12354", 0.3), ("1234", 0.4), ("123456", 5 / 12), ("", 0.0), ("99999", 0.0)],
)
def test_partial_credit_is_half_the_right_places(scorer: Any, response: str, credit: float) -> None:
    assert scorer(of(response, "12345"), partial_credit=True) == [pytest.approx(credit)]


@given(st.text("012", max_size=6), st.text("012", min_size=1, max_size=6))
def test_places_are_a_share_and_one_only_when_equal(response: str, reference: str) -> None:
    share = places(response, reference)
    assert 0.0 <= share <= 1.0
    assert (share == 1.0) == (response == reference)


@pytest.mark.parametrize(
    ("task", "scorer"), [(addition_task, addition), (sort_task, sort_digits), (sort_task, exact)]
)
def test_a_tasks_answers_score_one(task: Any, scorer: Any) -> None:
    prompts = list(task.generate(seed=3, start=0, count=50, options={}))
    items = [ScoreItem(p.text, p.answer, p.reference, "t") for p in prompts]
    assert scorer(items) == [1.0] * 50
    assert scorer([i._replace(response="?") for i in items]) == [0.0] * 50


# the library's verifiers


@pytest.fixture(scope="module", autouse=True)
def gym_library() -> None:
    with warnings.catch_warnings():  # importing it leaves a file open
        warnings.simplefilter("ignore")
        importlib.import_module("reasoning_gym")


def gym_items(dataset: str, count: int = 5) -> list[ScoreItem]:
    prompts = gym_task.generate(seed=1, start=0, count=count, options={"dataset": dataset})
    return [ScoreItem(p.text, p.answer, p.reference, "reasoning_gym") for p in prompts]


@pytest.mark.parametrize("dataset", ["chain_sum", "spell_backward", "number_sequence", "lcm"])
def test_verifiers_take_their_own_answers_and_no_others(dataset: str) -> None:
    scorer = ReasoningGym()
    items = gym_items(dataset)
    assert scorer(items) == [1.0] * 5
    wrong = scorer([i._replace(response="@") for i in items])
    assert all(score is not None and score < 0.5 for score in wrong)


def test_a_verifier_that_chokes_on_junk_raises() -> None:
    junk = gym_items("prime_factorization", 1)[0]._replace(response="no number")
    with pytest.raises(ValueError, match="no number"):
        ReasoningGym()([junk])


@pytest.mark.parametrize("reference", ["", "8", "[1]", "{}", '{"dataset": "lcm"}'])
def test_a_foreign_reference_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="not one of the task"):
        ReasoningGym()(of("8", reference))


def test_a_verifier_that_would_run_the_response_is_refused() -> None:
    reference = json.dumps({"dataset": "puzzle24", "entry": {"answer": "1", "metadata": {}}})
    with pytest.raises(ConfigError, match="runs the response"):
        ReasoningGym()(of("__import__('os').getpid()", reference))
