"""``verlops doctor``: what it finds, what it advises, and that it leaves no trace."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from verlops.assemble.load import load_config, template
from verlops.assemble.objects import open_state
from verlops.assemble.system import holder
from verlops.cli import doctor, environment_checks, machine_checks
from verlops.cli.main import app
from verlops.errors import ConflictError, VerlopsError

RUNNER = CliRunner()
TORCH = ("2.13.0+cpu", None, [])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERLOPS_CONFIG", raising=False)
    monkeypatch.delenv("VERLOPS_STATE", raising=False)
    # Importing torch takes seconds; one test below really asks it.
    monkeypatch.setattr(machine_checks, "_ask_torch", lambda: TORCH)
    return tmp_path


def run(*arguments: str) -> Result:
    return RUNNER.invoke(app, ["doctor", *arguments])


def lines(*arguments: str) -> dict[str, dict[str, Any]]:
    """The checks by name, of the JSON."""
    data = json.loads(run(*arguments, "--json").stdout)
    return {check["name"]: check for check in data["checks"]}


def test_all_is_well_with_the_embedded_default_and_no_trace_is_left(here: Path) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    names = [line[6:20].strip() for line in result.stdout.splitlines()[:-1] if line[:4].strip()]
    assert names == [
        *("python", "config", "packages", "packages", "torch", "memory", "disk"),
        *("state folder", "state store", "queue", "partitions", "artifacts", "machines"),
    ]
    assert "fail" not in result.stdout
    assert list(here.iterdir()) == []


def test_json_has_the_same_checks() -> None:
    result = run("--json")
    data = json.loads(result.stdout)
    assert (data["schema_version"], data["role"], data["ok"]) == (1, "control", True)
    assert {c["level"] for c in data["checks"]} <= {"ok", "warn"}
    assert all(set(c) == {"name", "level", "detail", "remedy"} for c in data["checks"])
    assert all(c["remedy"] is None for c in data["checks"] if c["level"] == "ok")


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("rollout", ["python", "config", "packages", "packages", "torch", "memory", "disk"]),
        ("trainer", ["python", "config", "packages", "packages", "torch", "memory", "disk"]),
        ("reward", ["python", "config", "packages", "packages", "memory", "disk"]),
    ],
)
def test_a_worker_machine_is_checked_for_its_role(role: str, names: list[str]) -> None:
    data = json.loads(run("--role", role, "--json").stdout)
    assert [check["name"] for check in data["checks"]] == names


def test_a_bad_config_is_one_failure_and_the_machine_is_checked_all_the_same() -> None:
    Path("bad.yaml").write_text("name: x\nbogus: 1\n")
    result = run("-c", "bad.yaml")
    assert result.exit_code == 1
    assert "fail  config        bad.yaml: bogus: unknown key" in result.stdout
    assert f"{'':20}mend it, then: verlops config validate" in result.stdout
    assert "  memory  " in result.stdout
    assert "  queue  " not in result.stdout


def test_an_environment_that_has_run_is_checked_in_place(here: Path) -> None:
    loaded = load_config(None, {})
    store = open_state(loaded.config)
    store.save(store.load()[0].but(run="demo-1"))
    store.close()
    before = sorted(p for p in here.rglob("*") if not p.name.startswith("state.db"))
    found = lines()
    assert found["state store"]["detail"] == "sqlite: demo-1, 0 open intents"
    assert found["machines"]["level"] == "ok"
    after = sorted(p for p in here.rglob("*") if not p.name.startswith("state.db"))
    assert [p for p in after if "doctor" in p.name] == []
    assert set(before) <= set(after)


def test_a_damaged_state_store_is_told_with_its_remedy(here: Path) -> None:
    folder = here / ".verlops" / "demo"
    folder.mkdir(parents=True)
    (folder / "state.db").write_bytes(b"not a database at all " * 1000)
    found = lines()["state store"]
    assert found["level"] == "fail"
    assert found["detail"] == f"{folder}/state.db is damaged: file is not a database"
    assert found["remedy"].startswith("restore a copy of it")


def test_a_state_folder_that_cannot_be_made(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file").touch()
    monkeypatch.setenv("VERLOPS_STATE", str(here / "file" / "state"))
    result = run("--json")
    assert result.exit_code == 1
    found = {c["name"]: c for c in json.loads(result.stdout)["checks"]}
    assert found["state folder"]["level"] == "fail"
    assert found["state folder"]["detail"].startswith("Not a directory")
    assert found["artifacts"]["level"] == "fail"


class Store:
    """An artifact store whose put-if-absent is as told."""

    def __init__(self, put: Callable[[dict[str, bytes], str, bytes], None]) -> None:
        self._put = put
        self.objects: dict[str, bytes] = {}

    def put_if_absent(self, key: str, data: bytes) -> None:
        self._put(self.objects, key, data)

    def get(self, key: str) -> bytes:
        return self.objects[key]

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


def overwrite(objects: dict[str, bytes], key: str, data: bytes) -> None:
    objects[key] = data


def overwrite_and_complain(objects: dict[str, bytes], key: str, data: bytes) -> None:
    before = key in objects
    objects[key] = data
    if before:
        raise ConflictError(key)


@pytest.mark.parametrize("put", [overwrite, overwrite_and_complain])
def test_a_store_that_overwrites_is_refused(
    monkeypatch: pytest.MonkeyPatch, put: Callable[[dict[str, bytes], str, bytes], None]
) -> None:
    store = Store(put)
    monkeypatch.setattr(environment_checks, "open_store", lambda _: store)
    found = lines()["artifacts"]
    assert found["level"] == "fail"
    assert found["detail"] == "local: put-if-absent overwrote an object"
    assert store.objects == {}


def test_what_cannot_be_opened_is_told_with_its_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise VerlopsError("the broker does not answer", hint="start it")

    monkeypatch.setattr(environment_checks, "open_queue", refuse)
    result = run()
    assert result.exit_code == 1
    assert "fail  queue         the broker does not answer\n" in result.stdout
    assert f"\n{'':20}start it\n" in result.stdout


@pytest.fixture
def machines(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An environment whose provider lists two living machines and one that is gone."""
    listed = [
        SimpleNamespace(id=i, phase=p)
        for i, p in zip("abc", ("ready", "gone", "booting"), strict=True)
    ]
    provider = SimpleNamespace(instances=lambda: listed)
    monkeypatch.setattr(environment_checks, "open_provider", lambda *_: provider)
    with contextlib.closing(open_state(load_config(None, {}).config)) as store:
        yield store


def test_machines_without_a_controller_are_strays(machines: Any) -> None:
    found = lines()["machines"]
    assert (found["level"], found["detail"]) == ("warn", "2 alive, no controller acts: a, c")
    assert "`verlops down` ends them" in found["remedy"]


@pytest.mark.parametrize(
    ("who", "ttl", "level"),
    [
        (holder(), 60.0, "ok"),
        (holder(), -1.0, "warn"),  # its time is up
        (holder().replace("/", "/9", 1), 60.0, "warn"),  # another process, which is no more
    ],
)
def test_machines_are_no_strays_while_their_controller_lives(
    machines: Any, who: str, ttl: float, level: str
) -> None:
    now = environment_checks.SystemClock().now()
    machines.acquire("controller", who, 60.0, now - 60.0 + ttl)
    assert lines()["machines"]["level"] == level


@pytest.mark.parametrize(
    ("partitions", "level"), [(2, "fail"), (3, "warn"), (5, "warn"), (6, "ok"), (12, "ok")]
)
def test_partitions_for_every_worker(partitions: int, level: str) -> None:
    text = template("local").replace("partitions: null", f"partitions: {partitions}")
    Path("c.yaml").write_text(text, encoding="utf-8")
    assert lines("-c", "c.yaml")["partitions"]["level"] == level


@pytest.mark.parametrize(
    ("version", "specifiers", "good"),
    [
        ("2.14.4", "<3,>=2.12", True),
        ("2.9", "<3,>=2.12", False),
        ("3.0.0", "<3,>=2.12", False),
        ("2.13.0+cpu", "<3,>=2.11", True),
        ("2.12", ">=2.12.0", True),
        ("5.0rc1", "!=5.0", False),
        ("1.0", "==1", True),
        ("1.0.1", "<=1.0", False),
        ("1.0.1", ">1.0", True),
        ("7", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, specifiers: str, good: bool) -> None:
    assert machine_checks.satisfies(version, specifiers) is good


def test_what_is_missing_or_too_old_is_named_with_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = machine_checks._installed
    fake = {"torch": None, "transformers": "4.1"}
    monkeypatch.setattr(
        machine_checks, "_installed", lambda name: fake[name] if name in fake else real(name)
    )
    result = run("--role", "trainer")
    assert result.exit_code == 1
    assert "torch is missing, transformers 4.1 is not " in result.stdout
    assert "pip install 'verlops-workers[train]'" in result.stdout
    assert "  torch  " not in result.stdout  # no second line about what is missing anyway


def test_a_distribution_that_is_not_installed() -> None:
    check = machine_checks._packages("no-such-distribution", ())
    assert (check.level, check.remedy) == ("fail", "pip install 'no-such-distribution'")


def test_extras_of_other_roles_are_not_asked_for() -> None:
    trainer = dict(machine_checks.requirements("verlops-workers", ("train",)))
    reward = dict(machine_checks.requirements("verlops-workers", ("reward",)))
    assert "torch" in trainer
    assert "torch" not in reward
    assert "fastapi" in reward
    assert "httpx" in trainer
    assert trainer["torch"] == "<3,>=2.11"


def test_torch_with_and_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "_has_nvidia", lambda: False)
    assert machine_checks.torch_check().detail == "2.13.0+cpu, no GPU: computes on the CPU"
    monkeypatch.setattr(machine_checks, "_has_nvidia", lambda: True)
    check = machine_checks.torch_check()
    assert (check.level, check.detail) == (
        "warn",
        "2.13.0+cpu sees no GPU, but this machine has one",
    )
    monkeypatch.setattr(machine_checks, "_ask_torch", lambda: ("2.13.0", "13.0", ["L20", "L20"]))
    check = machine_checks.torch_check()
    assert (check.level, check.detail) == ("ok", "2.13.0, CUDA 13.0: L20, L20")


def test_a_torch_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        code = "raise ImportError('libcudart.so.13 not found')"
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    monkeypatch.setattr(machine_checks, "_ask_torch", broken)
    check = machine_checks.torch_check()
    assert (check.level, check.detail) == (
        "fail",
        "does not import: ImportError: libcudart.so.13 not found",
    )


@pytest.mark.e2e
def test_the_torch_of_this_machine_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    check = machine_checks.torch_check()
    assert check.level in ("ok", "warn")
    assert check.detail[0].isdigit()
    assert "torch" not in sys.modules or sys.modules["torch"].__version__ in check.detail


@pytest.mark.parametrize(
    ("free", "level"), [(100 << 20, "fail"), (2 << 30, "warn"), (50 << 30, "ok")]
)
def test_disk(monkeypatch: pytest.MonkeyPatch, here: Path, free: int, level: str) -> None:
    usage = SimpleNamespace(free=free)
    monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda _: usage)
    check = machine_checks.disk_check(here / "not" / "there" / "yet")
    assert (check.level, check.detail) == (level, f"{free / (1 << 30):.1f} GiB free at {here}")


def test_memory_for_the_processes_of_the_local_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(available=1 << 30)
    monkeypatch.setattr(machine_checks.psutil, "virtual_memory", lambda: memory)
    check = machine_checks.memory_check(4)
    assert check.level == "warn"
    assert check.detail.endswith("4 processes want about 2.0 GiB")
    assert machine_checks.memory_check(0).name == "memory"


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "MIN_PYTHON", (99, 0))
    check = machine_checks.python_check()
    assert (check.level, check.remedy) == ("fail", "install Python 99.0 or newer")
    assert doctor.command(role="reward", config=None, json=False) == 1
