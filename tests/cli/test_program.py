"""The program around the commands: help, exit codes, errors, what it imports."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from verlops import __version__, errors
from verlops.cli import main
from verlops.cli.output import paint, to_json, wants_colour

RUNNER = CliRunner()
COMMANDS = ("init", "config", "doctor", "version", "up", "tick", "feed", "down", "status")


def stand_in(monkeypatch: pytest.MonkeyPatch, command: Callable[..., int]) -> None:
    """Let every command's module be one with this command."""
    module = SimpleNamespace(command=command)
    monkeypatch.setattr(main.importlib, "import_module", lambda _: module)


def test_help_lists_commands_by_section_and_the_exit_codes() -> None:
    result = RUNNER.invoke(main.app, ["--help"], terminal_width=100)
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    positions = [text.index(f"{section}:") for section in ("Set up", "Run", "Look")]
    assert positions == sorted(positions)
    assert all(f" {name} " in text for name in (*COMMANDS, "cost-report"))
    assert (
        "Exit codes: 0 ok · 1 error · 2 config or usage · 3 plan has changes · 4 no capacity · "
        "5 quota · 6 credentials · 7 budget reached · 8 lease held · 130 interrupted." in text
    )


@pytest.mark.parametrize("command", [*COMMANDS, "cost-report", "config validate", "config show"])
def test_every_help_has_an_example_of_its_command(command: str) -> None:
    result = RUNNER.invoke(main.app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"Example: verlops {command}" in result.stdout


def test_help_imports_nothing_heavy_and_is_as_quick_as_it_can() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['verlops', '--help']\n"
        "from verlops.cli.main import run\n"
        "try:\n"
        "    run()\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        "heavy = ('pydantic', 'sqlalchemy', 'rich', 'yaml', 'psutil', 'torch')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version() -> None:
    assert RUNNER.invoke(main.app, ["version"]).stdout == f"verlops {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["up", "--no-such-option"],
        ["up", "--updates", "0"],
        ["feed", "--count", "many"],
        ["doctor", "--role", "janitor"],
        ["cost-report", "--by", "mood"],
        ["cost-report", "--since", "yesterday"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    result = RUNNER.invoke(main.app, arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.output


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (errors.VerlopsError("it broke"), 1, "error: it broke\n"),
        (errors.VerlopsError("it broke", hint="mend it"), 1, "error: it broke (mend it)\n"),
        (errors.ConfigError(["a: b", "c: d"]), 2, "a: b\nc: d\n"),
        (
            errors.MissingExtraError("kafka", extra="kafka"),
            2,
            "error: kafka needs a package that is not installed (pip install 'verlops[kafka]')\n",
        ),
        (errors.CapacityError("none left"), 4, "error: none left\n"),
        (errors.QuotaError("limit"), 5, "error: limit\n"),
        (errors.CredentialsError("who?"), 6, "error: who?\n"),
        (errors.BudgetError("spent"), 7, "error: spent\n"),
        (errors.LeaseHeldError("held by x"), 8, "error: held by x\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_a_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: errors.VerlopsError, code: int, text: str
) -> None:
    def command(**_: object) -> int:
        raise error

    stand_in(monkeypatch, command)
    result = RUNNER.invoke(main.app, ["tick"])
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", text)


def test_an_interruption_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(**_: object) -> int:
        raise KeyboardInterrupt

    stand_in(monkeypatch, command)
    result = RUNNER.invoke(main.app, ["up"])
    assert (result.exit_code, result.output) == (130, "")


def test_a_bug_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(**_: object) -> int:
        raise RuntimeError("a bug")

    stand_in(monkeypatch, command)
    result = RUNNER.invoke(main.app, ["tick"])
    assert isinstance(result.exception, RuntimeError)


def test_the_code_of_a_command_is_the_code_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, lambda **_: 3)
    assert RUNNER.invoke(main.app, ["down"]).exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (
            ["up", "-c", "x.yaml", "-y", "--updates", "6", "--chaos", "kill@40s", "--new-run"],
            {
                "config": Path("x.yaml"),
                "yes": True,
                "updates": 6,
                "chaos": "kill@40s",
                "new_run": True,
                "rotate": False,
            },
        ),
        (["tick", "--json"], {"config": None, "json": True}),
        (["status", "--watch"], {"config": None, "json": False, "watch": True}),
        (
            ["feed", "p.jsonl", "--epoch", "1"],
            {"config": None, "file": Path("p.jsonl"), "count": None, "epoch": 1},
        ),
        (["down"], {"config": None}),
        (
            ["cost-report", "--by", "day", "--since", "2026-01-31", "--json"],
            {
                "config": None,
                "by": "day",
                "since": 1_769_817_600.0,
                "until": None,
                "format": "json",
            },
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_options_reach_their_command(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], options: dict[str, object]
) -> None:
    got: dict[str, object] = {}

    def command(**found: object) -> int:
        got.update(found)
        return 0

    monkeypatch.delenv("VERLOPS_CONFIG", raising=False)
    stand_in(monkeypatch, command)
    assert RUNNER.invoke(main.app, arguments).exit_code == 0
    assert got == options


def test_json_is_strict() -> None:
    text = to_json({"a": float("nan"), "b": [float("inf"), 1.5, None], 3: "¥"})
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 1.5, None],
        "3": "¥",
    }
    assert "¥" in text


def test_colour_is_for_terminals_that_want_it() -> None:
    terminal = SimpleNamespace(isatty=lambda: True)
    pipe = SimpleNamespace(isatty=lambda: False)
    assert wants_colour(terminal, {}) is True  # type: ignore[arg-type]
    assert wants_colour(terminal, {"NO_COLOR": "1"}) is False  # type: ignore[arg-type]
    assert wants_colour(terminal, {"TERM": "dumb"}) is False  # type: ignore[arg-type]
    assert wants_colour(pipe, {}) is False  # type: ignore[arg-type]
    assert paint("x", "red", stream=pipe) == "x"  # type: ignore[arg-type]
