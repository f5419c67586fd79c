"""Any dataset of the reasoning-gym library, with its own verifier's data as reference.

Options: ``dataset`` (its name, required), ``size`` (entries of a dataset that makes them
all at once; others go on without end), and whatever the dataset's own config has. Named
in ``registry.TASKS``; the reward ``reasoning_gym`` scores what is made here.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from verlops import registry
from verlops.errors import ConfigError
from verlops.tasks import TaskPrompt
from verlops.tasks.options import check_range

EXECUTES_ANSWERS = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Datasets whose verifier passes the response to ``eval``: model text would run as code."""

SEED_STRIDE = 1_000_003
"""Entry i of seed s is drawn from s + i by the library: without a stride, neighbouring
seeds would share all entries but one."""


def generate(
    *, seed: int, start: int, count: int, options: Mapping[str, Any]
) -> Iterator[TaskPrompt]:
    """Prompts ``start`` to ``start + count - 1``; raises ConfigError at once.

    The reference is the JSON of ``{"dataset", "entry"}``. Raises MissingExtraError
    without the library.
    """
    check_range(start, count)
    name, dataset = _open(seed, options)
    if count:
        _check_carries(name, dataset, start)
    return (_prompt(name, dataset, index) for index in range(start, start + count))


def check_safe(name: str) -> None:
    """Raises ConfigError for a dataset whose verifier runs the response as code."""
    if name in EXECUTES_ANSWERS:
        raise ConfigError(
            f"task.options.dataset: the verifier of '{name}' runs the response as Python code",
            hint="it is refused, since scorers are not isolated; take another dataset",
        )


def _open(seed: int, options: Mapping[str, Any]) -> tuple[str, Any]:
    create = registry.load_attr("reasoning_gym:create_dataset")
    datasets = registry.load_attr("reasoning_gym.factory:DATASETS")
    name = str(options.get("dataset", ""))
    if name not in datasets:
        raise ConfigError(_unknown(name, sorted(datasets)))
    check_safe(name)
    rest = {key: value for key, value in options.items() if key != "dataset"}
    try:
        return name, create(name, seed=seed * SEED_STRIDE % 2**31, **rest)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"task.options: dataset '{name}' refuses {rest}: {error}") from error


def _unknown(name: str, known: list[str]) -> str:
    if not name:
        return "task.options.dataset: required, the name of a reasoning-gym dataset"
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"; did you mean '{near[0]}'?" if near else f" ({len(known)} are known)"
    return f"task.options.dataset: no reasoning-gym dataset '{name}'{guess}"


def _check_carries(name: str, dataset: Any, index: int) -> None:
    """Some entries hold what JSON cannot carry: their verifier would misjudge them."""
    entry = _entry(name, dataset, index)
    answer = entry["answer"]
    carried = json.loads(_reference(name, entry))["entry"]
    if answer and dataset.score_answer(answer, entry) != dataset.score_answer(answer, carried):
        raise _not_carried(name)


def _prompt(name: str, dataset: Any, index: int) -> TaskPrompt:
    entry = _entry(name, dataset, index)
    return TaskPrompt(index, entry["question"], _reference(name, entry), entry["answer"] or "")


def _entry(name: str, dataset: Any, index: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = dataset[index]
    except IndexError as error:
        raise ConfigError(
            f"task.options.size: at {len(dataset)}, dataset '{name}' has no entry {index}",
            hint="raise it for a new run: it changes the entries",
        ) from error
    return found


def _reference(name: str, entry: Mapping[str, Any]) -> str:
    try:
        return json.dumps({"dataset": name, "entry": entry}, sort_keys=True)
    except TypeError as error:
        raise _not_carried(name) from error


def _not_carried(name: str) -> ConfigError:
    return ConfigError(
        f"task.options.dataset: the entries of '{name}' do not survive as JSON",
        hint="take another dataset",
    )
