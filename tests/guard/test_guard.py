"""The guard around real role processes: every way out, and nobody survives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from verlops.artifacts.local import LocalStore
from verlops.config import parse
from verlops.machine import MachineSpec, encode_spec
from verlops.messages import Control, TopicNames, encode
from verlops.ports import TopicSpec
from verlops.queues.sqlite import SqliteQueue
from verlops.versions import fence_key

ROLE = """
import json, os, subprocess, sys, time
from pathlib import Path
folder = Path(os.environ["VERLOPS_MACHINE_DIR"])
def report(**facts):
    base = {"phase": "x", "progress": 1, "at": time.time(), "pid": os.getpid()}
    (folder / "draft").write_text(json.dumps(base | facts))
    (folder / "draft").replace(folder / "status.json")
def grow(seconds):
    until = time.time() + seconds
    while time.time() < until:
        report(progress=time.time_ns())
        time.sleep(0.05)
"""


class Machine:
    """A machine folder with a queue and a store, whose role is a script."""

    def __init__(self, root: Path, role: str, script: str, **trainer) -> None:
        self.folder = root / "m-1"
        self.folder.mkdir()
        self.queue = SqliteQueue(root / "log")
        self.store = LocalStore(root / "store")
        self.topics = TopicNames("g")
        self.queue.ensure([TopicSpec(self.topics.control, 1, compact=True)])
        data = {
            "name": "g",
            "queue": {"path": str(root / "log")},
            "artifacts": {"path": str(root / "store")},
            "control": {"ttl": trainer.pop("ttl", "60s")},
            "trainer": {"grace": "500ms", **trainer},
        }
        config = parse(data)
        spec = MachineSpec(
            name="g",
            run="r",
            role=role,
            key="k",
            slot=f"{role}-0",
            generation=0,
            fence=1,
            config=config.model_dump(mode="json"),
            parent=0,
            trainer_fence=5,
        )
        (self.folder / "spec.json").write_bytes(encode_spec(spec))
        self.script = root / "role.py"
        self.script.write_text(ROLE + script)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        code = (
            "import sys, verlops_workers.guard.guard as g\n"
            f"g.role_command = lambda role: [sys.executable, {str(self.script)!r}]\n"
            "from verlops_workers.main import main\n"
            "sys.exit(main(['guard']))"
        )
        environment = {**os.environ, "VERLOPS_MACHINE_DIR": str(self.folder)}
        self.process = subprocess.Popen([sys.executable, "-c", code], env=environment)

    def tell(self, command: str = "serve") -> None:
        control = Control(target="*", command=command, fence=1, at=time.time())
        self.queue.publish(self.topics.control, [("*", encode(control))])

    def wait(self, seconds: float = 30.0) -> tuple[int, dict]:
        assert self.process is not None
        code = self.process.wait(seconds)
        return code, json.loads((self.folder / "guard.json").read_text())

    def role_pid(self) -> int:
        path = self.folder / "status.json"
        until(path.exists, "the role's first report")
        return int(json.loads(path.read_text())["pid"])


def until(condition, what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as file:
        return file.read().split()[2] == "Z"


@pytest.fixture
def machine(tmp_path: Path):
    made: list[Machine] = []

    def make(script: str, role: str = "trainer", **options) -> Machine:
        made.append(Machine(tmp_path, role, script, **options))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.queue.close()
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_a_role_that_is_done(machine) -> None:
    assert machine("report(done=True)").wait() == (0, {"reason": "done", "code": 0, "detail": ""})


def test_trn_1a_a_role_that_fails(machine) -> None:
    one = machine("report(error='ValueError: step 3'); sys.exit(1)")
    assert one.wait() == (1, {"reason": "failed", "code": 1, "detail": "ValueError: step 3"})


def test_trn_1b_a_full_disk(machine) -> None:
    code, verdict = machine("raise OSError(28, 'No space left on device')").wait()
    assert (code, verdict["reason"]) == (1, "failed")


def test_trn_1c_the_oom_killer(machine) -> None:
    one = machine("grow(60)")
    os.kill(one.role_pid(), signal.SIGKILL)
    code, verdict = one.wait()
    assert (code, verdict["reason"], verdict["code"]) == (1, "killed", -9)


def test_done_but_hanging(machine) -> None:
    one = machine("report(done=True); time.sleep(600)")
    pid = one.role_pid()
    code, verdict = one.wait()
    assert (code, verdict["reason"]) == (0, "done")
    assert gone(pid)


def test_hard_deadline(machine) -> None:
    code, verdict = machine("grow(60)", deadline="1s").wait()
    assert (code, verdict["reason"]) == (3, "guard:deadline")


def test_no_progress(machine) -> None:
    code, verdict = machine("report(); time.sleep(600)", no_progress="1s").wait()
    assert (code, verdict["reason"]) == (3, "guard:no_progress")


def test_a_higher_fence_ends_a_trainer(machine) -> None:
    one = machine("grow(60)")
    one.role_pid()
    one.store.put_if_absent(fence_key("r", 5), b"")
    one.store.put_if_absent(fence_key("r", 6), b"")
    code, verdict = one.wait()
    assert (code, verdict["reason"]) == (3, "guard:fence")


def test_a_dead_controller_ends_a_worker_after_the_ttl(machine) -> None:
    script = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\ngrow(60)"
    one = machine(script, role="rollout", ttl="1s")
    code, verdict = one.wait()
    assert (code, verdict["reason"]) == (3, "guard:no_control")


def test_stop_asks_gently_first(machine) -> None:
    script = (
        "import signal\n"
        "def leave(*_):\n    (folder / 'left').write_text('gently'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\ngrow(60)"
    )
    one = machine(script, role="rollout")
    one.role_pid()
    one.tell("stop")
    code, verdict = one.wait()
    assert (code, verdict["reason"]) == (3, "guard:stop")
    assert (one.folder / "left").read_text() == "gently"


def test_a_grandchild_in_another_session_dies_with_the_role(machine) -> None:
    script = (
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True)\n"
        "(folder / 'child').write_text(str(child.pid))\nreport(); time.sleep(600)"
    )
    one = machine(script, no_progress="1s")
    one.wait()
    assert gone(int((one.folder / "child").read_text()))


def test_a_killed_guard_takes_the_role_along(machine) -> None:
    one = machine("grow(60)")
    pid = one.role_pid()
    one.process.kill()
    one.process.wait()
    until(lambda: gone(pid), "the role's end")


def test_an_unreadable_log_counts_as_silence_not_as_a_crash(machine, tmp_path: Path) -> None:
    one = machine("report(); time.sleep(1.5); report(done=True)", role="rollout")
    for path in (tmp_path / "log").glob("*.db"):
        path.write_bytes(b"not a database")
    assert one.wait()[1]["reason"] == "done"
