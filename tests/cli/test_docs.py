"""The README, the help and the commands agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verlops.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
HELP = CliRunner().invoke(app, ["--help"]).output
COMMANDS = sorted(
    {
        c.name or (c.callback.__name__.replace("_", "-") if c.callback else "")
        for c in app.registered_commands
    }
    | {g.name for g in app.registered_groups}
)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_on_a_page_exists(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"(?:`|\$ )verlops ([a-z][a-z-]+)", text))
    assert named <= set(COMMANDS)


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    missing = [c for c in COMMANDS if f"verlops {c}" not in text and c not in ("version",)]
    assert missing == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"verlops {command}" in result.output
    assert command in HELP


def test_options_on_a_page_exist() -> None:
    for page in PAGES:
        for command, option in re.findall(
            r"verlops ([a-z][a-z-]+)[^`\n]*? (--[a-z-]+)", page.read_text()
        ):
            output = CliRunner().invoke(app, [command, "--help"]).output
            assert option in output, f"{page.name}: verlops {command} {option}"


def test_make_targets_in_the_readme_exist() -> None:
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\$ make ([a-z]+)", (ROOT / "README.md").read_text()))
    assert named <= made
    assert {"demo", "test"} <= named
