"""Where a config comes from, and where its state, queue, artifacts and model lie."""

import re
from pathlib import Path
from typing import Any

import pytest

from verlops.assemble.load import MAX_BYTES, load_config, template
from verlops.assemble.strict_yaml import read_yaml
from verlops.config import parse
from verlops.config.units import format_duration, parse_duration
from verlops.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_without_a_file_the_embedded_default_is_loaded(files: Any) -> None:
    loaded = load_config(None, {})
    assert loaded.source == "embedded default"
    assert loaded.config.name == "demo"
    assert loaded.state_dir == files.here / ".verlops" / "demo"


def test_the_embedded_default_is_the_file_in_configs() -> None:
    assert (ROOT / "configs" / "local.yaml").read_text(encoding="utf-8") == template("local")


def test_the_embedded_default_is_explained_line_by_line() -> None:
    lines = template("local").splitlines()
    values = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    explained = [line for line in values if "  # " in line or " # " in line]
    assert len(explained) > 0.7 * len(values)
    assert max(map(len, lines)) <= 96


def test_shrunk_times_are_marked_with_the_true_default() -> None:
    marked = dict(re.findall(r"^ *(\w+): .*# demo value \[(.*?)\]", template("local"), re.M))
    assert len(marked) > 20
    defaults = parse({"name": "x"}).model_dump(mode="json")
    values = read_yaml(template("local"), "template").data
    names = ("provider", "queue", "reward", "rollout", "trainer", "control")
    sections = [(defaults[name], values[name]) for name in names]
    sections.append((defaults["rollout"]["pool"], values["rollout"]["pool"]))
    for ours, theirs in sections:
        for key, value in theirs.items():
            if re.fullmatch(r"\d+(ms|s|m|h|d)", str(value)):
                shrunk = parse_duration(value) != parse_duration(ours[key])
                assert shrunk == (key in marked), key
                assert not shrunk or format_duration(parse_duration(marked[key])) == ours[key]


def test_the_file_named_by_the_environment_and_the_option_before_it(files: Any) -> None:
    files.write(files.good(name="from-env"), "env.yaml")
    files.write(files.good(name="from-option"), "option.yaml")
    environ = {"VERLOPS_CONFIG": "env.yaml"}
    assert load_config(None, environ).config.name == "from-env"
    assert load_config(Path("option.yaml"), environ).config.name == "from-option"
    assert load_config(None, {"VERLOPS_CONFIG": ""}).source == "embedded default"


def test_paths_are_absolute_and_below_the_state_folder(files: Any) -> None:
    config = load_config(None, {}).config
    state = files.here / ".verlops" / "demo"
    assert config.state.path == str(state)
    assert config.queue.path == str(state / "queue")
    assert config.artifacts.path == str(state / "artifacts")
    assert config.model.path == ""


def test_verlops_state_moves_everything(files: Any) -> None:
    files.write(files.good(state__path="own"))
    loaded = load_config(Path("c.yaml"), {"VERLOPS_STATE": "elsewhere"})
    assert loaded.state_dir == files.here / "elsewhere"
    assert loaded.config.state.path == str(files.here / "elsewhere")
    assert loaded.config.queue.path == str(files.here / "elsewhere" / "queue")


def test_given_paths_are_relative_to_the_file(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"state__path": "s", "queue__path": "../q", "artifacts__path": "/a"}
    files.write(files.good(**given, model__path="./model"), "deep/c.yaml")
    (files.here / "other").mkdir()
    monkeypatch.chdir(files.here / "other")
    loaded = load_config(Path("../deep/c.yaml"), {})
    assert loaded.source == "../deep/c.yaml"
    assert loaded.state_dir == files.here / "deep" / "s"
    assert loaded.config.queue.path == str(files.here / "q")
    assert loaded.config.artifacts.path == "/a"
    assert loaded.config.model.path == str(files.here / "deep" / "model")


def test_a_model_is_a_folder_here_or_a_name_on_a_hub(files: Any) -> None:
    text = files.good(model__path="some/model")
    assert files.load(text).config.model.path == "some/model"
    (files.here / "some" / "model").mkdir(parents=True)
    assert files.load(text).config.model.path == str(files.here / "some" / "model")


def test_a_loaded_config_survives_the_trip_to_a_machine(files: Any) -> None:
    config = load_config(None, {}).config
    assert parse(config.model_dump(mode="json")) == config


def test_a_minimal_file_gets_the_documented_defaults(files: Any) -> None:
    pool = files.load("""
name: mini
provider:
  offers:
    - {id: a, gpu: L20, market: owned, price: ¥1/h}
    - {id: b, gpu: A100, gpus: 4, market: owned, price: ¥1/h}
    - {id: c, gpu: T4, market: owned, price: ¥1/h}
model: {path: some/model}
rollout:
  pool: {min: 3}
""").config.rollout.pool
    assert (pool.min, pool.max, pool.policy) == (3, 10, "backlog")


def test_numbers_are_read_as_people_write_them(files: Any) -> None:
    text = template("local").replace("learning_rate: 0.0006 ", "learning_rate: 6e-4 ")
    text = text.replace("seed: 0 ", "seed: 010 ").replace('version: "1"', 'version: "1e-3"')
    config = files.load(text).config
    assert (config.trainer.learning_rate, config.task.seed) == (0.0006, 10)
    assert config.reward.version == "1e-3"


def test_aliases_and_merges_are_read(files: Any) -> None:
    text = template("local").replace("- id: l20-spot-a", "- &spot\n      id: l20-spot-a")
    text = text.replace("- id: l20-spot-b", "- <<: *spot\n      id: l20-spot-b")
    text = text.replace("gamma: 1.0", "gamma: &one 1.0").replace("lam: 0.95", "lam: *one ")
    config = files.load(text).config
    assert config.trainer.lam == 1.0
    assert [o.id for o in config.provider.offers[:2]] == ["l20-spot-a", "l20-spot-b"]


def test_a_byte_order_mark_is_no_fault(files: Any) -> None:
    (files.here / "c.yaml").write_bytes(b"\xef\xbb\xbf" + template("local").encode())
    assert load_config(Path("c.yaml"), {}).config.name == "demo"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.yaml", "none.yaml: no such file (`verlops init` writes one)"),
        ("folder.yaml", "folder.yaml: cannot be read: Is a directory"),
        ("binary.yaml", "binary.yaml: not UTF-8 text at byte 6"),
        ("huge.yaml", "huge.yaml: larger than 1,048,576 bytes: not a config"),
        ("huge.yaml/x", "huge.yaml/x: cannot be read: Not a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_one_line(
    files: Any, name: str, message: str
) -> None:
    (files.here / "binary.yaml").write_bytes(b"name: \xff\xfe\n")
    (files.here / "huge.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    (files.here / "folder.yaml").mkdir()
    with pytest.raises(ConfigError) as caught:
        load_config(Path(name), {})
    assert str(caught.value) == message


def test_nothing_is_made_by_loading(files: Any) -> None:
    load_config(None, {})
    with pytest.raises(ConfigError):
        load_config(Path("none.yaml"), {})
    assert list(files.here.iterdir()) == []
