"""The prompt generators: right, deterministic, resumable, strict about options."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verlops import registry
from verlops.errors import ConfigError, MissingExtraError
from verlops.tasks import TaskPrompt, addition, gym, sort_digits
from verlops.tasks.options import draw

SHORT_SUMS = {"dataset": "chain_sum", "min_terms": 2, "max_terms": 3}
TASKS = [(addition, {}), (addition, {"max": 99}), (sort_digits, {}), (gym, SHORT_SUMS)]


def test_the_registry_names_them() -> None:
    for name, module in (("addition", addition), ("sort_digits", sort_digits)):
        assert registry.load("TASKS", name) is module.generate
    assert registry.load("TASKS", "reasoning_gym") is gym.generate


def test_prompts_never_change() -> None:
    """Pinned: another draw would feed a resumed run other prompts under the same indices."""
    assert list(addition.generate(seed=0, start=5, count=3, options={})) == [
        TaskPrompt(5, "4+0=", "4", "4"),
        TaskPrompt(6, "5+1=", "6", "6"),
        TaskPrompt(7, "8+7=", "15", "15"),
    ]
    assert list(sort_digits.generate(seed=0, start=5, count=2, options={"digits": 4})) == [
        TaskPrompt(5, "2974>", "2479", "2479"),
        TaskPrompt(6, "0549>", "0459", "0459"),
    ]


@given(
    st.sampled_from(TASKS),
    st.integers(0, 50),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 9),
)
def test_feeding_goes_on_where_it_stopped(
    task: Any, start: int, first: int, second: int, seed: int
) -> None:
    module, options = task

    def some(start: int, count: int) -> list[TaskPrompt]:
        return list(module.generate(seed=seed, start=start, count=count, options=options))

    whole = some(start, first + second)
    assert whole == some(start, first) + some(start + first, second)
    assert [p.index for p in whole] == list(range(start, start + first + second))


@given(st.integers(0, 2**40), st.integers(0, 1000), st.integers(0, 10**6))
def test_sums_are_right_and_within_the_option(index: int, seed: int, largest: int) -> None:
    options = {"max": largest}
    (prompt,) = addition.generate(seed=seed, start=index, count=1, options=options)
    left, right = map(int, prompt.text.removesuffix("=").split("+"))
    assert 0 <= left <= largest
    assert 0 <= right <= largest
    assert prompt.reference == prompt.answer == str(left + right)


@given(st.integers(0, 2**40), st.integers(0, 1000), st.integers(1, 64))
def test_digits_are_sorted_and_as_many_as_asked(index: int, seed: int, digits: int) -> None:
    options = {"digits": digits}
    (prompt,) = sort_digits.generate(seed=seed, start=index, count=1, options=options)
    text = prompt.text.removesuffix(">")
    assert len(text) == digits
    assert Counter(text) == Counter(prompt.answer)
    assert list(prompt.answer) == sorted(prompt.answer)
    assert prompt.reference == prompt.answer


def test_all_sums_occur_about_equally_often() -> None:
    found = Counter(p.text for p in addition.generate(seed=1, start=0, count=20_000, options={}))
    assert len(found) == 100
    # Binomial(20000, 1/100): standard deviation 14; 5 of them.
    assert all(130 < count < 270 for count in found.values())


def test_seeds_and_tasks_draw_apart() -> None:
    first = [draw("a", 0, i, 10**9) for i in range(50)]
    assert not set(first) & {draw("a", 1, i, 10**9) for i in range(50)}
    assert not set(first) & {draw("b", 0, i, 10**9) for i in range(50)}


def test_neighbouring_seeds_of_the_library_share_no_entries() -> None:
    texts = [
        {p.text for p in gym.generate(seed=s, start=0, count=50, options={"dataset": "lcm"})}
        for s in (0, 1)
    ]
    assert not texts[0] & texts[1]


def test_the_librarys_reference_is_what_its_verifier_needs() -> None:
    (prompt,) = gym.generate(seed=0, start=9, count=1, options=SHORT_SUMS)
    told = json.loads(prompt.reference)
    assert told["dataset"] == "chain_sum"
    assert told["entry"]["question"] == prompt.text
    assert told["entry"]["answer"] == prompt.answer
    terms = told["entry"]["metadata"]["expression"].split()
    assert 3 <= len(terms) <= 5  # two or three terms and the signs between them


@pytest.mark.parametrize(
    ("module", "options", "line"),
    [
        (addition, {"maximum": 3}, "task.options.maximum: unknown option; did you mean 'max'?"),
        (addition, {"x": 3}, "task.options.x: unknown option (known: max)"),
        (addition, {"max": -1}, "task.options.max: -1 is not within 0 to 1000000000"),
        (addition, {"max": "9"}, "task.options.max: '9' is not a whole number"),
        (addition, {"max": True}, "task.options.max: True is not a whole number"),
        (addition, {"max": 9.0}, "task.options.max: 9.0 is not a whole number"),
        (sort_digits, {"digits": 0}, "task.options.digits: 0 is not within 1 to 64"),
        (sort_digits, {"digit": 5}, "task.options.digit: unknown option; did you mean 'digits'?"),
        (gym, {}, "task.options.dataset: required, the name of a reasoning-gym dataset"),
        (
            gym,
            {"dataset": "chainsum"},
            "task.options.dataset: no reasoning-gym dataset 'chainsum'; did you mean 'chain_sum'?",
        ),
        (gym, {"dataset": "chain_sum", "terms": 2}, "task.options: dataset 'chain_sum' refuses"),
        (gym, {"dataset": "chain_sum", "min_terms": 0}, "min_terms must be positive"),
        (gym, {"dataset": "puzzle24"}, "'puzzle24' runs the response as Python code"),
    ],
)
def test_bad_options_are_refused_before_the_first_prompt(
    module: Any, options: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        module.generate(seed=0, start=0, count=1, options=options)
    assert line in str(caught.value)


@pytest.mark.filterwarnings("ignore")  # this dataset leaves a file open
def test_entries_that_json_cannot_carry_are_refused() -> None:
    with pytest.raises(ConfigError, match="'arc_agi' do not survive as JSON"):
        gym.generate(seed=0, start=0, count=1, options={"dataset": "arc_agi"})


@dataclass
class OddConfig:
    seed: int = 0


class OddDataset:
    def __init__(self, config: OddConfig) -> None:
        self.config = config

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"question": "q", "answer": "a", "metadata": {"when": date(2026, 1, 1)}}


def test_entries_that_are_no_json_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from reasoning_gym.factory import DATASETS

    monkeypatch.setitem(DATASETS, "odd", (OddDataset, OddConfig))
    with pytest.raises(ConfigError, match="'odd' do not survive as JSON"):
        gym.generate(seed=0, start=0, count=1, options={"dataset": "odd"})


def test_all_unknown_options_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        addition.generate(seed=0, start=0, count=1, options={"b": 1, "a": 2})
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "task.options.a",
        "task.options.b",
    ]


@pytest.mark.parametrize("module", [addition, sort_digits])
def test_negative_ranges_are_refused(module: Any) -> None:
    for start, count in ((-1, 1), (0, -1)):
        with pytest.raises(ConfigError, match="0 or more"):
            module.generate(seed=0, start=start, count=count, options={})


def test_a_dataset_of_limited_size_says_so() -> None:
    options = {"dataset": "acre", "size": 4}
    assert len(list(gym.generate(seed=0, start=0, count=4, options=options))) == 4
    with pytest.raises(ConfigError, match="at 4, dataset 'acre' has no entry 16"):
        list(gym.generate(seed=0, start=0, count=50, options=options))


def test_a_dataset_without_a_known_answer_has_none() -> None:
    (prompt,) = gym.generate(seed=0, start=0, count=1, options={"dataset": "rush_hour"})
    assert prompt.answer == ""


def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingExtraError, match=r"verlops-workers\[gym\]"):
        gym.generate(seed=0, start=0, count=1, options={"dataset": "lcm"})


PROBES = [
    "MARK()",
    "__import__('builtins').MARK()",
    "[MARK()]",
    "[[MARK()]]",
    "(MARK())",
    "{'a': MARK()}",
    "1 + MARK()",
    "x = MARK()",
    "f(MARK())",
    "MARK() = 1",
    "<answer>MARK()</answer>",
]


@pytest.mark.filterwarnings("ignore")
def test_no_verifier_that_is_served_runs_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all datasets of the library that is installed: also of a later one."""
    import builtins

    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    ran: set[str] = set()
    now = [""]
    monkeypatch.setattr(builtins, "MARK", lambda *_: ran.add(now[0]) or 1, raising=False)
    for name in sorted(set(DATASETS) - {"composite"}):
        now[0] = name
        dataset = reasoning_gym.create_dataset(name, seed=1, size=1)
        entry = dataset[0]
        for probe in PROBES:
            try:
                dataset.score_answer(probe, entry)
            except Exception:  # noqa: BLE001 - verifiers choke on junk in every way
                continue
    assert ran == gym.EXECUTES_ANSWERS
