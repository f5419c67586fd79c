"""``verlops config`` and ``verlops init``: exact output, exit codes, nothing started."""

# ruff: noqa: E501 - one row a case; a broken row cannot be compared with its neighbours

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from verlops.assemble.load import load_config, template
from verlops.cli.main import app

ROOT = Path(__file__).parents[2]
RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERLOPS_CONFIG", raising=False)
    monkeypatch.delenv("VERLOPS_STATE", raising=False)
    return tmp_path


BAD = """\
name: demo
rolout: {}
as_if_rented: yes
rollout:
  pool:
    min: 5
    max: 2
    policy: backlgo
    backlog_per_worker: 0
    cooldown: 180
budget:
  per_hour: 100
provider:
  offers:
    - {id: a, gpu: L20, market: spot, price: ¥10}
"""

FAULTS = """\
bad.yaml: as_if_rented: 'yes' is unclear: write true or false, or put it in quotes (line 3)
bad.yaml: budget.per_hour: 100 is not an amount of money; write it like ¥15/h or 3.2 USD/h
bad.yaml: provider.offers.0.price: '¥10' needs its unit; write it like ¥15/h or 3.2 USD/h
bad.yaml: rollout.pool.backlog_per_worker: input should be greater than 0, got 0
bad.yaml: rollout.pool.cooldown: 180 is not a duration; give a unit, like 30s, 10m or 1h30m
bad.yaml: rollout.pool.max: min is 5, max is 2: raise max or lower min
bad.yaml: rollout.pool.policy: unknown policy 'backlgo'; did you mean 'backlog'? \
(known: backlog, fixed)
bad.yaml: rolout: unknown key; did you mean 'rollout'?
"""


@pytest.mark.parametrize(
    "command",
    [
        ["config", "validate"],
        ["config", "show"],
        ["config", "show", "--json"],
    ],
    ids=" ".join,
)
def test_a_bad_config_is_told_whole_and_nothing_is_started(here: Path, command: list[str]) -> None:
    Path("bad.yaml").write_text(BAD, encoding="utf-8")
    result = RUNNER.invoke(app, [*command, "-c", "bad.yaml"])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", FAULTS)
    assert [p.name for p in here.iterdir()] == ["bad.yaml"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("rollout:\n  pool: {min: 5, max: 2}", "rollout.pool.max: min is 5, max is 2: raise max or lower min"),
        ("rollout:\n  pool: {min: 12}", "rollout.pool.max: min is 12, max is 10: raise max or lower min"),
        ('rollout:\n  pool: {min: "2"}', "rollout.pool.min: input should be a valid integer, got '2'"),
        ("rollout:\n  pool: {max: 10.5}", "rollout.pool.max: input should be a valid integer, got 10.5"),
        ("trainer: {batch: 0}", "trainer.batch: input should be greater than 0, got 0"),
        ("control: {period: 30}", "control.period: 30 is not a duration; give a unit, like 30s, 10m or 1h30m"),
        ("traner: {}", "traner: unknown key; did you mean 'trainer'?"),
        ("trainer: {bach: 7}", "trainer.bach: unknown key; did you mean 'batch'?"),
    ],
)  # fmt: skip
def test_one_fault_one_line(change: str, fault: str) -> None:
    Path("one.yaml").write_text(f"name: one\n{change}\n", encoding="utf-8")
    result = RUNNER.invoke(app, ["config", "validate", "--config", "one.yaml"])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"one.yaml: {fault}\n")


def test_a_config_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "none.yaml: no such file (`verlops init` writes one)\n"
    result = RUNNER.invoke(app, ["config", "validate", "-c", "none.yaml"])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", message)
    monkeypatch.setenv("VERLOPS_CONFIG", "none.yaml")
    result = RUNNER.invoke(app, ["config", "show"])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", message)


def test_validate_says_what_was_checked(here: Path) -> None:
    result = RUNNER.invoke(app, ["config", "validate"])
    state = here / ".verlops" / "demo"
    assert result.stdout == f"embedded default: ok ('demo', state in {state})\n"
    assert (result.exit_code, result.stderr) == (0, "")
    result = RUNNER.invoke(app, ["config", "validate", "-c", str(ROOT / "configs" / "local.yaml")])
    assert result.exit_code == 0


def test_show_prints_every_value_and_reads_back_the_same(here: Path) -> None:
    text = template("local").replace('version: "1"', 'version: "1e-3"')
    options = '{a: "on", b: "1.5", c: [x, "null"], d: 0.5}'
    text = text.replace("options: {}               # of the function", f"options: {options} #")
    Path("c.yaml").write_text(text, encoding="utf-8")
    result = RUNNER.invoke(app, ["config", "show", "-c", "c.yaml"])
    assert result.exit_code == 0
    assert result.stdout.startswith(
        "# c.yaml, with every default and every path resolved\nname: demo\n"
    )
    assert "  clip_low: 0.2\n" in result.stdout  # a default that the file does not name
    assert f"  path: {here}/.verlops/demo/queue\n" in result.stdout
    assert "price: 960 CNY/h\n" in result.stdout
    Path("again.yaml").write_text(result.stdout, encoding="utf-8")
    first = load_config(Path("c.yaml"), {}).config
    assert load_config(Path("again.yaml"), {}).config == first
    assert first.reward.version == "1e-3"
    assert first.reward.options == {"a": "on", "b": "1.5", "c": ["x", "null"], "d": 0.5}


def test_show_as_json_is_strict() -> None:
    result = RUNNER.invoke(app, ["config", "show", "--json"])
    data = json.loads(result.stdout, parse_constant=pytest.fail)
    assert (data["schema_version"], data["source"]) == (1, "embedded default")
    assert data["config"] == load_config(None, {}).config.model_dump(mode="json")


def test_the_schema_in_configs_is_the_present_one() -> None:
    result = RUNNER.invoke(app, ["config", "schema"])
    text = (ROOT / "configs" / "schema.json").read_text(encoding="utf-8")
    assert result.stdout == text, "run: verlops config schema > configs/schema.json"


def test_the_schema_refuses_unknown_keys_and_writes_defaults_with_units() -> None:
    schema = json.loads(RUNNER.invoke(app, ["config", "schema"]).stdout)
    assert schema["required"] == ["name"]
    sections = [schema, *schema["$defs"].values()]
    assert all(s["additionalProperties"] is False for s in sections if s["type"] == "object")
    control = schema["$defs"]["ControlConfig"]["properties"]
    assert control["period"]["default"] == "30s"
    assert re.match(control["period"]["pattern"], "1h30m")
    assert schema["$defs"]["Baseline"]["properties"]["price"]["default"] == "960 CNY/h"


def test_the_template_has_no_key_that_its_schema_lacks() -> None:
    schema = json.loads((ROOT / "configs" / "schema.json").read_text(encoding="utf-8"))

    def check(value: object, section: dict[str, object], path: str) -> None:
        if not isinstance(value, dict):
            return
        found = section
        for part in section.get("anyOf", []):  # type: ignore[attr-defined]
            found = part if "$ref" in part else found
        if "$ref" in found:
            found = schema["$defs"][str(found["$ref"]).rpartition("/")[2]]
        for key, child in value.items():
            properties = found.get("properties")
            if properties is not None:
                assert key in properties, f"{path}.{key}"  # type: ignore[operator]
                check(child, properties[key], f"{path}.{key}")  # type: ignore[index]

    check(yaml.safe_load(template("local")), schema, "")


def test_init_writes_a_commented_config_that_is_valid(here: Path) -> None:
    result = RUNNER.invoke(app, ["init"])
    assert result.exit_code == 0
    assert result.stdout == (
        "wrote verlops.yaml; check it with: verlops config validate -c verlops.yaml\n"
    )
    lines = Path("verlops.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# yaml-language-server: $schema=.verlops/schema.json"
    assert lines[1:] == template("local").splitlines()[1:]
    schema = (here / ".verlops" / "schema.json").read_text(encoding="utf-8")
    assert schema == (ROOT / "configs" / "schema.json").read_text(encoding="utf-8")
    assert RUNNER.invoke(app, ["config", "validate", "-c", "verlops.yaml"]).exit_code == 0


def test_init_does_not_overwrite_unless_forced(here: Path) -> None:
    Path("mine.yaml").write_text("precious")
    result = RUNNER.invoke(app, ["init", "--path", "mine.yaml"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "mine.yaml exists already (--force overwrites it)\n"
    assert Path("mine.yaml").read_text() == "precious"
    assert [p.name for p in here.iterdir()] == ["mine.yaml"]
    assert RUNNER.invoke(app, ["init", "--path", "mine.yaml", "--force"]).exit_code == 0
    assert "name: demo" in Path("mine.yaml").read_text(encoding="utf-8")


def test_init_beside_nothing_and_with_an_unknown_template() -> None:
    result = RUNNER.invoke(app, ["init", "--path", "no/where.yaml"])
    assert result.exit_code == 1
    assert result.stderr == "error: cannot write no/where.yaml: No such file or directory\n"
    result = RUNNER.invoke(app, ["init", "--template", "loacl"])
    assert result.exit_code == 2
    assert result.stderr == "unknown template 'loacl'; did you mean 'local'? (known: local)\n"
