"""What is refused in a config: one line a fault, all faults at once."""

# ruff: noqa: E501 - one row a case; a broken row cannot be compared with its neighbours

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from verlops.assemble.load import template

GOOD = yaml.safe_load(template("local"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty (`verlops init` writes a commented config)"),
        ("# nothing but a comment\n", "empty (`verlops init` writes a commented config)"),
        ("- a\n- b\n", "not a mapping of keys to values"),
        ("just words\n", "not a mapping of keys to values"),
        ("name: demo: x\n", "not YAML: mapping values are not allowed here (line 1)"),
        ("name: demo\n\tqueue: 1\n", "not YAML: found character '\\t' that cannot start any token (line 2)"),
        ("name: demo\n---\nname: two\n", "not YAML: but found another document (line 2)"),
        ("name: \x01\n", 'not YAML: unacceptable character #x0001: special characters are not allowed in "<unicode string>", position 6'),
        ("name: !!python/object/apply:os.getcwd []\n", "tag '!!python/object/apply:os.getcwd' is not allowed: give the plain value (line 1)"),
        ("name: !own x\n", "tag '!own' is not allowed: give the plain value (line 1)"),
        ("a: &a [*a]\n", "a.0: refers to itself (line 1)"),
        ("? [a, b]\n: c\n", "?: a key must be a word (line 1)"),
        ("[" * 3000, "not a config: nested too deeply"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_config_is_told_in_one_line(files: Any, text: str, fault: str) -> None:
    assert files.faults(text) == [fault]


def test_aliases_cannot_blow_a_small_file_up(files: Any) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for name, below in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join(['*' + below] * 9)}]")
    found = files.faults("\n".join(lines))
    assert len(found) == 1
    assert "over 20,000 values once aliases are expanded" in found[0]


def test_a_key_given_twice_is_refused_with_its_lines(files: Any) -> None:
    found = files.faults(
        "name: demo\nrollout:\n  pool:\n    min: 1\n    min: 2\nname: again\nmodel: {path: x}\n"
    )
    assert found[:2] == [
        "name: given twice, on lines 1 and 6",
        "provider.offers: none fits reward: it needs 1 or more of T4, L4 or A10G, on_demand or owned",
    ]
    assert "rollout.pool.min: given twice, on lines 4 and 5" in found


@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "On", "NO"])
def test_words_that_some_yaml_takes_for_booleans_are_refused(files: Any, word: str) -> None:
    text = template("local").replace("as_if_rented: true", f"as_if_rented: {word}")
    (line,) = (n for n, x in enumerate(text.splitlines(), 1) if x.startswith("as_if_rented"))
    assert files.faults(text) == [
        f"as_if_rented: '{word}' is unclear: write true or false, or put it in quotes (line {line})"
    ]


def test_quoted_words_are_text(files: Any) -> None:
    text = template("local").replace('version: "1"', 'version: "on"')
    assert files.load(text).config.reward.version == "on"


def test_nothing_is_substituted_from_the_environment(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    found = files.faults(files.good(task__options={"key": "${SECRET}"}, queue__path="${HOME}/q"))
    assert [line.partition(":")[0] for line in found] == ["queue.path", "task.options.key"]
    assert all("nothing is substituted in this version" in line for line in found)
    assert "hunter2" not in "".join(found)


def test_keys_must_be_text_and_numbers_finite(files: Any) -> None:
    found = files.faults("name: demo\n1: x\ntrue: y\ntrainer: {lam: 1e999, gamma: .nan}\n")
    assert found == [
        "1: key 1 is not text: put it in quotes (line 2)",
        "trainer.gamma: input should be a valid number, got '.nan'",
        "trainer.lam: too large a number (line 4)",
        "true: key true is not text: put it in quotes (line 3)",
    ]


@pytest.mark.parametrize("digits", ["9" * 19, "9" * 5000, "-" + "1" * 30, "0x" + "f" * 20])
def test_a_number_beyond_all_measure(files: Any, digits: str) -> None:
    text = template("local").replace("batch: 4000 ", f"batch: {digits} ")
    (fault,) = files.faults(text)
    assert fault.startswith("trainer.batch: too large a number (line ")


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("rollout.pool.policy", "backlgo", "unknown policy 'backlgo'; did you mean 'backlog'? (known: backlog, fixed)"),
        ("trainer.trigger", "thresold", "unknown trigger 'thresold'; did you mean 'threshold'? (known: threshold)"),
        ("trainer.advantage", "gea", "unknown advantage 'gea'; did you mean 'gae'? (known: gae, grpo)"),
        ("trainer.algorithm", "ppoo", "unknown loss 'ppoo'; did you mean 'ppo'? (known: ppo)"),
        ("rollout.engine", "vlm", "unknown engine 'vlm' (known: hf, scripted)"),
        ("reward.function", "adition", "unknown reward 'adition'; did you mean 'addition'? (known: addition, exact, reasoning_gym, sort_digits)"),
        ("task.generator", "sort-digits", "unknown task 'sort-digits'; did you mean 'sort_digits'? (known: addition, reasoning_gym, sort_digits)"),
        ("queue.kind", "kafak", "unknown queue 'kafak' (known: memory, sqlite)"),
        ("state.kind", "sqlit", "unknown state store 'sqlit'; did you mean 'sqlite'? (known: sqlite)"),
        ("artifacts.kind", "locla", "unknown artifact store 'locla'; did you mean 'local'? (known: local)"),
        ("provider.kind", "locl", "unknown provider 'locl'; did you mean 'local'? (known: local)"),
        ("rollout.pool.policy", "a:b:c", "'a:b:c' is not of the form module:attr"),
        ("rollout.pool.policy", "no_such_module:f", "no module 'no_such_module' for 'no_such_module:f'; is its folder on PYTHONPATH?"),
        ("rollout.pool.policy", "json:decide", "module 'json' has no attribute 'decide'"),
        ("trainer.batch", 7, "7 is less than one group of 8 (task.group_size)"),
        ("reward.min_scored", 9, "9 of a group of 8 (task.group_size) can never be scored"),
        ("queue.partitions", 1, "1 partitions feed no more workers than that, rollout.pool.min is 2"),
        ("queue.kind", "memory", "'memory' ends at the border of a process: machines need 'sqlite'"),
        ("control.period", "0s", "must be more than 0s"),
        ("control.lease", "1s", "must be longer than control.period, or the lease ends between two steps"),
        ("rollout.pool.dead_after", "500ms", "must be longer than rollout.beat, or every worker counts as dead"),
    ],
)  # fmt: skip
def test_one_fault_is_one_line(files: Any, path: str, value: object, fault: str) -> None:
    text = files.good(**{path.replace(".", "__"): value})
    assert files.faults(text) == [f"{path}: {fault}"]


def test_a_run_needs_a_model_and_topping_up_needs_a_generator(files: Any) -> None:
    assert files.faults(files.good(model__warmup=None, task__generator=None)) == [
        "model.path: required, unless model.warmup makes a small model",
        "task.keep_backlog: needs task.generator; without one, set 0 and use `verlops feed`",
    ]
    files.load(files.good(task__generator=None, task__keep_backlog=0))


def test_a_users_own_policy_is_loaded_and_its_faults_are_told(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(files.here))
    files.write("def decide(observation, memory, pool): ...\n", "mine_good.py")
    files.write("1 / 0\n", "mine_bad.py")
    loaded = files.load(files.good(rollout__pool__policy="mine_good:decide"))
    assert loaded.config.rollout.pool.policy == "mine_good:decide"
    assert files.faults(files.good(rollout__pool__policy="mine_bad:f")) == [
        "rollout.pool.policy: 'mine_bad:f' fails to import: ZeroDivisionError: division by zero"
    ]


def test_what_runs_on_machines_is_looked_for_but_not_imported(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(files.here))
    files.write("raise SystemExit('imported')\n", "mine_reward.py")
    assert files.load(files.good(reward__function="mine_reward:score"))
    assert "mine_reward" not in sys.modules


def test_a_module_without_a_spec_is_no_module_to_name(
    files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "made_by_hand", ModuleType("made_by_hand"))
    assert files.faults(files.good(reward__function="made_by_hand:f")) == [
        "reward.function: no module 'made_by_hand' for 'made_by_hand:f'; is its folder on PYTHONPATH?"
    ]


def test_group_relative_advantages_need_groups(files: Any) -> None:
    text = files.good(trainer__advantage="grpo", task__group_size=1, reward__min_scored=1)
    assert files.faults(text) == [
        "trainer.advantage: 'grpo' compares samples of a group: "
        "task.group_size and reward.min_scored must be at least 2"
    ]


def test_heads_must_split_the_width(files: Any) -> None:
    warmup = {**GOOD["model"]["warmup"], "heads": 3}
    assert files.faults(files.good(model__warmup=warmup)) == [
        "model.warmup.heads: hidden 64 does not split into 3 heads of even size"
    ]


def test_every_role_needs_an_offer(files: Any) -> None:
    assert files.faults(files.good(provider__offers=[])) == [
        "provider.offers: none fits reward: it needs 1 or more of T4, L4 or A10G, on_demand or owned",
        "provider.offers: none fits rollout: it needs 1 or more of L20, L40S, L4 or A10G, spot, on_demand or owned",
        "provider.offers: none fits trainer: it needs 2 or more of A100, A100-80GB or H100, on_demand or owned",
    ]


@pytest.mark.parametrize("wrong", [{"gpus": 1}, {"market": "spot"}, {"gpu": "V100"}])
def test_an_offer_must_fit_in_kind_market_and_size(files: Any, wrong: dict[str, object]) -> None:
    rollout, _, _, trainer, reward = GOOD["provider"]["offers"]
    files.load(files.good(provider__offers=[rollout, {**trainer, "gpus": 8}, reward]))
    found = files.faults(files.good(provider__offers=[rollout, {**trainer, **wrong}, reward]))
    assert len(found) == 1
    assert found[0].startswith("provider.offers: none fits trainer: it needs 2 or more of A100")


def test_offers_are_told_apart_and_hold_the_least_pool(files: Any) -> None:
    rest = GOOD["provider"]["offers"][3:]
    one = {**GOOD["provider"]["offers"][0], "capacity": 1}
    assert files.faults(files.good(provider__offers=[one, *rest])) == [
        "provider.offers: hold 1 rollout machines at most, rollout.pool.min is 2"
    ]
    assert files.faults(files.good(provider__offers=[one, one, *rest])) == [
        "provider.offers: id 'l20-spot-a' is given 2 times"
    ]


def test_faults_of_every_kind_come_at_once_and_sorted(files: Any) -> None:
    text = files.good(
        rollout__pool__min=5,
        rollout__pool__max=2,
        rollout__pool__backlog_per_worker=0,
        rollout__pool__cooldown="180",
        rollout__pool__policy="backlgo",
        queue__path="${HOME}",
        trainer__advantage="gea",
        as_if_rented=None,
    )
    found = files.faults(text.replace("as_if_rented: null", "bogus: 1\nas_if_rented: yes"))
    assert [line.partition(": ")[0] for line in found] == [
        "as_if_rented",
        "bogus",
        "queue.path",
        "rollout.pool.backlog_per_worker",
        "rollout.pool.cooldown",
        "rollout.pool.max",
        "rollout.pool.policy",
        "trainer.advantage",
    ]


def test_faults_of_two_values_together_come_beside_wrong_names(files: Any) -> None:
    text = files.good(trainer__batch=1, rollout__engine="vlm", control__ttl="0s")
    assert [line.partition(": ")[0] for line in files.faults(text)] == [
        "control.ttl",
        "rollout.engine",
        "trainer.batch",
    ]


def test_a_path_outside_the_file_is_no_way_around(files: Any) -> None:
    assert Path("c.yaml").exists() is False
    assert files.faults("name: ../up\n")[0].startswith("name: '../up' must be 1 to 40 of a-z")
