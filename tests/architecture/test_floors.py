"""The promises of ARCHITECTURE.md that a program can check."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [p for top in ("verlops", "policies", "workers") for p in (ROOT / top).rglob("*.py")]


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from verlops.cli.main import app\n"
        "result = CliRunner().invoke(app, ['--help'])\n"
        "assert result.exit_code == 0, result.output\n"
        "heavy = ('pydantic', 'sqlalchemy', 'torch', 'rich.live', 'transformers', 'fastapi')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    assert run(code) == "[]"


def test_control_side_imports_no_torch() -> None:
    code = (
        "import sys, pkgutil, importlib, verlops, verlops_policies\n"
        "for package in (verlops, verlops_policies):\n"
        "    for m in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not m.name.endswith('__main__'):\n"
        "            importlib.import_module(m.name)\n"
        "print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])"
    )
    assert run(code) == "[]"


def test_every_registered_name_loads() -> None:
    from verlops import registry

    missing = []
    for table, names in registry.tables().items():
        for name in names:
            try:
                registry.load(table, name)
            except Exception as error:  # noqa: BLE001 - the list of all faults is the point
                missing.append(f"{table}.{name}: {error}")
    assert missing == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_small_and_say_what_they_are(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(text)), "a module docstring says what it is"


def test_nothing_names_this_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    suffixes = {".py", ".md", ".yaml", ".toml", ".sh", ".txt"}
    paths = [ROOT / name for name in listed]
    texts = [p for p in paths if p.is_file() and p.suffix in suffixes]
    home = f"{ROOT.parent}/"
    assert [p.name for p in texts if home in p.read_text(errors="replace")] == []
