"""The starting model: its tokenizer, what it learns, and that it is made once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verlops.config import Config, parse
from verlops.errors import ConfigError, MissingExtraError, VerlopsError
from verlops.lineage import sha256_file
from verlops_workers import chars, warmup

TINY = {"hidden": 32, "layers": 1, "heads": 1, "steps": 4, "batch": 16}


def config(task: dict[str, Any] | None = None, **shape: Any) -> Config:
    return parse(
        {
            "name": "w",
            "model": {"warmup": {**TINY, **shape}},
            "task": {
                "generator": "addition",
                "max_prompt_tokens": 16,
                "max_response_tokens": 4,
                **(task or {}),
            },
        }
    )


def make(config: Config, out: Path) -> tuple[Path, list[str]]:
    lines: list[str] = []
    return warmup.make_model(config, out, lines.append), lines


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(config(), tmp_path_factory.mktemp("models"))[0]


# the tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return chars.build_tokenizer(chars.alphabet(["3+5=", " \n\té中"]))


@given(st.text("3+5= \n\té中"))
def test_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text


def test_special_tokens_differ_and_are_not_added(tokenizer: Any) -> None:
    special = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert special == (0, 1, 2)
    assert tokenizer.bos_token_id is None
    assert not set(tokenizer("3+5=").input_ids) & set(special)
    assert tokenizer("3x").input_ids[1] == tokenizer.unk_token_id


def test_the_chat_template_is_the_contents(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "3+"}, {"role": "user", "content": "5="}]
    found = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
    ids = found["input_ids"] if not isinstance(found, list) else found
    assert ids == tokenizer("3+5=").input_ids


def test_a_closed_task_gets_its_characters_and_prose_gets_ascii() -> None:
    assert chars.alphabet(["3+5=", "8", "0"]) == "+0358="
    assert len(chars.alphabet(["the quick brown fox jumps over the lazy dog, 0123456789"])) == 100


def test_auto_classes_load_what_was_saved(made: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made)
    model = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
    assert tokenizer.decode(tokenizer("12+7=").input_ids) == "12+7="
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.pad_token_id == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.head_dim >= 32
    assert not [p for p in made.iterdir() if p.suffix not in (".json", ".jinja", ".safetensors")]


# the model


def test_the_same_inputs_give_the_same_weights(made: Path, tmp_path: Path) -> None:
    again, _ = make(config(), tmp_path)
    assert again.name == made.name
    for file in sorted(made.iterdir()):
        assert sha256_file(again / file.name) == sha256_file(file), file.name


def test_the_callers_random_state_is_left_alone(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    make(config(), tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_a_second_call_finds_it_and_says_so(tmp_path: Path) -> None:
    folder, lines = make(config(), tmp_path)
    assert any("% right greedily" in line for line in lines)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    again, more = make(config(), tmp_path)
    assert again == folder
    assert more == [f"warm-up: {folder.name} was made before, nothing to do"]
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    "other",
    [
        config(steps=5),
        config(learning_rate=1e-3),
        config({"seed": 1}),
        config({"options": {"max": 8}}),
        config({"max_response_tokens": 200}),
        config({"generator": "sort_digits"}),
    ],
    ids=["steps", "rate", "seed", "options", "positions", "task"],
)
def test_whatever_changes_the_model_changes_its_folder(made: Path, other: Config) -> None:
    assert warmup.folder_name(other) != made.name


def test_what_does_not_change_the_model_does_not(made: Path) -> None:
    assert warmup.folder_name(config({"keep_backlog": 7, "group_size": 4})) == made.name


def test_more_steps_answer_better(tmp_path: Path) -> None:
    folder, lines = make(config({"options": {"max": 2}}, steps=60, batch=64), tmp_path)
    losses = [float(x.split("loss ")[1].split(",")[0]) for x in lines if "loss" in x]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2
    assert all("steps/s" in x and "s left" in x for x in lines if "loss" in x)
    assert (folder / "model.safetensors").exists()


def test_no_step_at_all_is_a_random_model(tmp_path: Path) -> None:
    _, lines = make(config(steps=0), tmp_path)
    assert lines[-1].startswith("warm-up: 0.")


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verlops_workers.supervised.fit", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make(config(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_rubbish_in_its_place_is_said_plainly(tmp_path: Path) -> None:
    place = tmp_path / warmup.folder_name(config())
    (place / "rubbish").mkdir(parents=True)
    with pytest.raises(VerlopsError, match="remove what lies there"):
        make(config(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [place.name]


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(MissingExtraError, match=r"verlops-workers\[train\]"):
        warmup.folder_name(config())


def test_of_two_makers_at_once_one_result_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verlops_workers import supervised

    real = supervised.measure

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(supervised, "measure", real)
        make(config(), tmp_path)
        return real(*args)

    monkeypatch.setattr(supervised, "measure", overtaken)
    folder, _ = make(config(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (config(heads=2), "model.warmup.heads: 2 heads do not divide a hidden size of 32"),
        (
            config(hidden=48, heads=1).model_copy(update={"model": parse({"name": "w"}).model}),
            "model.warmup: required",
        ),
        (config({"generator": None}), "task.generator: required"),
        (config({"generator": "adition"}), "did you mean 'addition'"),
        (config({"options": {"maxi": 1}}), "did you mean 'max'"),
        (config({"max_prompt_tokens": 3}), "task.max_prompt_tokens: 3, but the task has prompts"),
    ],
)
def test_faults(tmp_path: Path, bad: Config, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(bad, tmp_path)
    assert line in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_named_needs_no_warm_up(tmp_path: Path) -> None:
    named = parse(
        {"name": "w", "model": {"path": "x", "warmup": TINY}, "task": {"generator": "addition"}}
    )
    with pytest.raises(ConfigError, match=r"model\.path names a model already"):
        make(named, tmp_path)


def test_an_answer_nobody_knows_cannot_be_taught(tmp_path: Path) -> None:
    task = {
        "generator": "reasoning_gym",
        "options": {"dataset": "rush_hour"},
        "max_prompt_tokens": 4096,
    }
    with pytest.raises(ConfigError, match="no known answer"):
        make(config(task), tmp_path)


# the program


def test_the_last_line_says_where_and_what(tmp_path: Path) -> None:
    spec = tmp_path / "config.json"
    spec.write_text(json.dumps(config().model_dump(mode="json")))
    command = [sys.executable, "-W", "error", "-m", "verlops_workers.warmup"]
    command += ["--config", str(spec), "--out", str(tmp_path / "models")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ}, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout.splitlines()[-1])
    assert set(told) == {"model", "weights"}
    assert told["weights"] == sha256_file(Path(told["model"]) / "model.safetensors")
    assert Path(told["model"]).parent == tmp_path / "models"


@pytest.mark.parametrize("text", [None, "{", '{"name": 3}'])
def test_an_unreadable_config_is_said_plainly(tmp_path: Path, text: str | None) -> None:
    spec = tmp_path / "config.json"
    if text is not None:
        spec.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        warmup.main(["--config", str(spec), "--out", str(tmp_path)])
