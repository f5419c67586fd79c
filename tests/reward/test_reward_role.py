"""The reward server as a program on a machine: beats, control, signals, start-up faults."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from verlops.config import parse
from verlops.machine import MachineSpec, encode_spec
from verlops.messages import Beat, Control, decode, encode
from verlops_workers.host import Status

PROGRAM = """
import sys
from verlops.errors import VerlopsError
from verlops_workers.host import Host
from verlops_workers.reward.server import main
try:
    code = main(Host.from_env())
except VerlopsError as error:
    sys.exit(f"{type(error).__name__}: {error}")
assert not {"torch", "transformers", "sqlalchemy"} & set(sys.modules)
sys.exit(code)
"""
SECONDS = 30.0


class Machine:
    """A machine folder, a log, and the program that runs there."""

    def __init__(self, folder: Path, token_file: Path, **reward: Any) -> None:
        self.folder = folder / "reward-1"
        self.log = folder / "log"
        self.folder.mkdir()
        self.log.mkdir()
        config = {
            "name": "w",
            "queue": {"kind": "filelog:FileLog", "path": str(self.log)},
            "state": {"path": str(token_file.parent)},
            "reward": {"function": "addition", **reward},
            "rollout": {"beat": "200ms"},
        }
        spec = MachineSpec(
            name="w",
            run="r",
            role="reward",
            key="k",
            slot="reward-0",
            generation=0,
            fence=3,
            config=parse(config).model_dump(mode="json"),
        )
        (self.folder / "spec.json").write_bytes(encode_spec(spec))

    def start(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PROGRAM],
            env={
                **os.environ,
                "VERLOPS_MACHINE_DIR": str(self.folder),
                "PYTHONPATH": str(Path(__file__).parent),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def beats(self) -> list[Beat]:
        path = self.log / "published"
        rows = [json.loads(r) for r in path.read_text().splitlines()] if path.exists() else []
        assert all(topic == "w.beats" and key == "reward-reward-1" for topic, key, _ in rows)
        return [b for _, _, v in rows if isinstance(b := decode(bytes.fromhex(v)), Beat)]

    def status(self) -> Status:
        return msgspec.json.decode((self.folder / "status.json").read_bytes(), type=Status)

    def wait_turns(self, turns: int) -> None:
        """Until the role has gone round its loop so many times more."""
        for _ in range(turns):
            last = self.status().at
            self.until(lambda last=last: self.status().at > last)

    def order(self, command: Any, target: str = "reward", fence: int = 3) -> None:
        record = encode(Control(target=target, command=command, fence=fence, at=0.0))
        with (self.log / "control").open("a") as file:
            file.write(json.dumps([target, record.hex()]) + "\n")

    def until(self, true: Callable[[], Any]) -> Any:
        """What ``true`` returns once it is true; fails when the program ends before."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if found := true():
                return found
            if self.process.poll() is not None:
                pytest.fail(f"ended with {self.process.returncode}: {self.process.stderr.read()}")
            time.sleep(0.01)
        return pytest.fail("waited in vain")

    def url(self) -> str:
        serving = self.until(lambda: [b for b in self.beats() if b.phase == "serving"])
        return str(serving[0].url)


@pytest.fixture
def machine(tmp_path: Path, token_file: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, token_file)
    yield made
    made.process.kill()
    made.process.communicate()


def ask(url: str, token: str) -> httpx.Response:
    items = [{"prompt": "3+5=", "response": r, "reference": "8", "task": "addition"} for r in "89"]
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post(f"{url}/score", json={"items": items}, headers=headers, timeout=30)


def test_it_announces_where_it_listens_and_ends_cleanly_on_sigterm(
    machine: Machine, token: str
) -> None:
    machine.start()
    url = machine.url()
    assert url.startswith("http://127.0.0.1:")
    assert [s["reward"] for s in ask(url, token).json()["scores"]] == [1.0, 0.0]
    machine.until(lambda: machine.status().progress == 2)
    machine.until(lambda: machine.beats()[-1].progress == "2 scores given")
    machine.process.send_signal(signal.SIGTERM)
    _, errors = machine.process.communicate(timeout=SECONDS)
    assert machine.process.returncode == 0, errors
    assert (machine.status().phase, machine.status().done) == ("done", True)
    assert machine.beats()[-1].phase == "done"
    assert (machine.log / "closed").exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_beats_go_on_while_nothing_happens(machine: Machine) -> None:
    machine.start()
    machine.until(lambda: len(machine.beats()) >= 3)
    beats = machine.beats()
    assert {b.phase for b in beats} == {"serving"}
    assert {b.role for b in beats} == {"reward"}
    assert len({b.url for b in beats}) == 1


def test_the_command_stop_ends_it(machine: Machine) -> None:
    machine.start()
    machine.url()
    machine.order("stop", fence=2)  # of a controller that was overtaken: ignored
    machine.order("stop", target="rollout")  # for others
    machine.wait_turns(3)
    machine.order("stop", fence=4)
    _, errors = machine.process.communicate(timeout=SECONDS)
    assert machine.process.returncode == 0, errors
    assert machine.status().control_fence == machine.beats()[-1].control_fence == 4


def test_drained_it_still_answers(machine: Machine, token: str) -> None:
    machine.start()
    url = machine.url()
    machine.order("drain")
    machine.until(lambda: machine.beats()[-1].phase == "drained")
    assert ask(url, token).status_code == 200
    machine.order("serve")
    machine.until(lambda: machine.beats()[-1].phase == "serving")


def test_it_serves_on_while_the_log_is_down(machine: Machine, token: str) -> None:
    machine.start()
    url = machine.url()
    (machine.log / "down").touch()
    machine.wait_turns(2)
    before = len(machine.beats())
    assert ask(url, token).status_code == 200
    machine.until(lambda: machine.status().progress == 2)
    assert len(machine.beats()) == before
    (machine.log / "down").unlink()
    machine.until(lambda: len(machine.beats()) > before)
    machine.order("stop")
    _, errors = machine.process.communicate(timeout=SECONDS)
    assert machine.process.returncode == 0
    assert errors.count("serving on without the message engine") == 1


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.unlink(), "cannot read the reward token"),
        (lambda path: path.chmod(0o644), "may be read by others"),
        (lambda path: path.write_text("x"), "holds no token"),
    ],
    ids=["missing", "readable", "short"],
)
def test_it_refuses_to_start_without_a_good_token(
    machine: Machine, token_file: Path, spoil: Callable[[Path], Any], says: str
) -> None:
    spoil(token_file)
    _, errors = machine.start().communicate(timeout=SECONDS)
    assert machine.process.returncode == 1
    assert errors.startswith("CredentialsError: ")
    assert says in errors
    assert machine.beats() == []


def test_a_taken_port_is_said_plainly(tmp_path: Path, token_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = Machine(tmp_path, token_file, port=port).start()
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in errors
    assert "reward.port" in errors


def test_an_unknown_reward_is_said_plainly(tmp_path: Path, token_file: Path) -> None:
    _, errors = Machine(tmp_path, token_file, function="adition").start().communicate()
    assert "did you mean 'addition'" in errors
