"""Machines as real processes: whole lives, kills, races, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from verlops.assemble.system import SystemClock
from verlops.config import Config, parse
from verlops.errors import CapacityError, CorruptError
from verlops.machine import MachineSpec
from verlops.model import Instance, Launch
from verlops.providers.local import LISTED, LocalProvider
from verlops.providers.processes import tagged

SLEEP = "import time; time.sleep(600)"
GRANDCHILD = (
    "import subprocess, sys, time; "
    "program = [sys.executable, '-c', 'import time; time.sleep(600)']; "
    "subprocess.Popen(program, start_new_session=True); "
    "time.sleep(600)"
)


def config(program: str, **provider) -> Config:
    offers = [
        {"id": "spot", "gpu": "L20", "market": "spot", "price": "¥10/h", "capacity": 2},
        {"id": "big", "gpu": "A100", "gpus": 2, "market": "on_demand", "price": "¥240/h"},
    ]
    options = {"command": [sys.executable, "-c", program]}
    return parse({"name": "p", "provider": {"offers": offers, "options": options, **provider}})


class Cloud:
    """A provider with helpers to wait for what must come."""

    def __init__(self, root: Path, program: str = SLEEP, **provider) -> None:
        self.config = config(program, **provider)
        self.root = root
        self.provider = LocalProvider(self.config, root, SystemClock())

    def launch(self, key: str = "k" * 32, offer: str = "spot") -> Instance:
        found = next(o for o in self.provider.offers() if o.id == offer)
        launch = Launch(
            key=key, role="rollout", slot="rollout-0", generation=0, offer=found, reason="test"
        )
        spec = MachineSpec(
            name="p",
            run="r",
            role="rollout",
            key=key,
            slot="rollout-0",
            generation=0,
            fence=1,
            config={},
        )
        return self.provider.launch(launch, spec)

    def get(self, instance_id: str) -> Instance:
        return next(i for i in self.provider.instances() if i.id == instance_id)

    def wait(self, instance_id: str, phase: str) -> Instance:
        until(lambda: self.get(instance_id).phase == phase, f"{instance_id} {phase}")
        return self.get(instance_id)

    def fact(self, instance_id: str, name: str) -> dict:
        from verlops.providers.folder import Folder

        found = Folder(self.root / "machines" / instance_id).read(name)
        assert found is not None
        return found


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Callable[..., Cloud]]:
    made: list[Cloud] = []

    def make(*args, **kwargs) -> Cloud:
        made.append(Cloud(tmp_path, *args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        for folder in (one.root / "machines").glob("m-*"):
            one.provider.terminate(folder.name)
    for folder in (tmp_path / "machines").glob("m-*"):
        until(lambda f=folder: not tagged(f.name), f"{folder.name} to be gone")


def test_a_whole_life(cloud) -> None:
    one = cloud("print('hello')", boot_delay="300ms")
    made = one.launch()
    assert made.phase in ("pending", "booting")
    gone = one.wait(made.id, "gone")
    assert gone.ended is not None
    assert (gone.ended.reason, gone.ended.code) == ("done", 0)
    assert gone.ready_at is not None
    assert made.launched_at + 0.3 <= gone.ready_at <= gone.ended.at
    assert "hello" in (one.root / "machines" / made.id / "log.txt").read_text()


def test_a_failing_program_is_a_failed_machine(cloud) -> None:
    one = cloud("raise SystemExit(7)")
    gone = one.wait(one.launch().id, "gone")
    assert gone.ended is not None
    assert (gone.ended.reason, gone.ended.code) == ("failed", 7)


def test_launch_is_idempotent_by_key_even_when_gone(cloud) -> None:
    one = cloud("pass")
    made = one.launch()
    assert one.launch().id == made.id
    one.wait(made.id, "gone")
    again = one.launch()
    assert (again.id, again.phase) == (made.id, "gone")
    assert len(one.provider.instances()) == 1


def test_two_processes_racing_on_one_key_make_one_machine(cloud, tmp_path: Path) -> None:
    one = cloud(SLEEP)
    others = [LocalProvider(one.config, tmp_path, SystemClock()) for _ in range(3)]
    pids = []
    for other in others:
        pid = os.fork()
        if pid == 0:
            one.provider = other
            try:
                one.launch()
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    made = one.launch()
    one.wait(made.id, "ready")
    assert len(one.provider.instances()) == 1
    until(lambda: len(tagged(made.id)) == 1, "exactly one program")


def test_a_claim_without_a_wrapper_is_spawned_by_the_repeated_launch(cloud, monkeypatch) -> None:
    one = cloud(SLEEP)
    monkeypatch.setattr(LocalProvider, "_spawn", lambda self, folder: None)
    made = one.launch()
    assert one.get(made.id).phase == "pending"
    monkeypatch.undo()
    one.launch()
    one.wait(made.id, "ready")


def test_a_claim_never_spawned_has_failed_to_boot(cloud, monkeypatch) -> None:
    one = cloud(SLEEP, boot_timeout="200ms")
    monkeypatch.setattr(LocalProvider, "_spawn", lambda self, folder: None)
    gone = one.wait(one.launch().id, "gone")
    assert gone.ended is not None
    assert gone.ended.reason == "boot_failed"


def test_notice_then_reclaim_at_the_deadline(cloud) -> None:
    one = cloud(SLEEP)
    made = one.wait(one.launch().id, "ready")
    one.provider.notice(made.id, 0.5)
    doomed = one.get(made.id)
    assert doomed.phase == "doomed"
    assert [n.instance_id for n in one.provider.notices()] == [made.id]
    gone = one.wait(made.id, "gone")
    assert gone.ended is not None
    assert gone.ended.reason == "reclaimed"
    assert gone.ended.at >= doomed.notice_deadline
    assert one.provider.notices() == []


def test_kill_is_recorded(cloud) -> None:
    one = cloud(SLEEP)
    made = one.wait(one.launch().id, "ready")
    until(lambda: tagged(made.id) != [], "its program")
    one.provider.kill(made.id)
    gone = one.wait(made.id, "gone")
    assert gone.ended is not None
    assert gone.ended.reason == "killed"


def test_terminate_leaves_no_grandchild_in_another_session(cloud) -> None:
    one = cloud(GRANDCHILD)
    made = one.wait(one.launch().id, "ready")
    until(lambda: len(tagged(made.id)) == 2, "program and grandchild")
    one.provider.terminate(made.id)
    one.provider.terminate(made.id)
    gone = one.wait(made.id, "gone")
    assert gone.ended is not None
    assert gone.ended.reason == "terminated"
    assert tagged(made.id) == []


def test_terminate_during_boot(cloud) -> None:
    one = cloud(SLEEP, boot_delay="1h")
    made = one.wait(one.launch().id, "booting")
    one.provider.terminate(made.id)
    gone = one.wait(made.id, "gone")
    assert gone.ready_at is None


def test_terminate_of_a_missing_machine_succeeds(cloud) -> None:
    cloud().provider.terminate("m-nothing")


def test_a_killed_wrapper_leaves_nothing_and_is_reported(cloud) -> None:
    one = cloud(GRANDCHILD)
    made = one.wait(one.launch().id, "ready")
    until(lambda: len(tagged(made.id)) == 2, "program and grandchild")
    os.kill(int(one.fact(made.id, "wrapper")["pid"]), signal.SIGKILL)
    gone = one.wait(made.id, "gone")
    assert gone.ended is not None
    assert gone.ended.reason == "vanished"
    assert tagged(made.id) == []


def test_a_deaf_wrapper_is_swept(cloud, monkeypatch) -> None:
    one = cloud(SLEEP)
    made = one.wait(one.launch().id, "ready")
    os.kill(int(one.fact(made.id, "wrapper")["pid"]), signal.SIGSTOP)
    monkeypatch.setattr("verlops.providers.local.OBEY", 0.3)
    one.provider.terminate(made.id)
    gone = one.wait(made.id, "gone")
    assert gone.ended is not None
    assert gone.ended.reason == "terminated"
    assert tagged(made.id) == []


def test_a_reused_pid_is_not_the_wrapper(cloud) -> None:
    one = cloud(SLEEP)
    made = one.wait(one.launch().id, "ready")
    wrapper = one.fact(made.id, "wrapper")
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as stranger:
        from verlops.providers.folder import Folder

        folder = Folder(one.root / "machines" / made.id)
        # As if the wrapper had died and its pid had gone to a stranger.
        folder.write("wrapper", {**wrapper, "pid": stranger.pid})
        fresh = LocalProvider(one.config, one.root, SystemClock())
        found = next(i for i in fresh.instances() if i.id == made.id)
        assert found.phase == "gone"
        assert psutil.pid_exists(stranger.pid)
        stranger.kill()
    os.kill(int(wrapper["pid"]), signal.SIGKILL)


def test_capacity(cloud) -> None:
    one = cloud(SLEEP)
    one.launch("a" * 32)
    one.launch("b" * 32)
    assert {o.id: o.available for o in one.provider.offers()} == {"spot": False, "big": True}
    with pytest.raises(CapacityError):
        one.launch("c" * 32)
    assert len(one.provider.instances()) == 2


def test_prices_are_of_the_whole_machine(cloud) -> None:
    big = next(o for o in cloud().provider.offers() if o.id == "big")
    assert (big.price, big.gpus, big.currency) == (240_000_000, 2, "CNY")


def test_an_unreadable_machine_is_reported_not_dropped(cloud) -> None:
    one = cloud("pass")
    made = one.launch()
    one.wait(made.id, "gone")
    (one.root / "machines" / made.id / "launch.json").write_text("{")
    fresh = LocalProvider(one.config, one.root, SystemClock())
    with pytest.raises(CorruptError, match=made.id):
        fresh.instances()


def test_the_long_gone_are_no_longer_listed_but_keep_their_key(cloud) -> None:
    one = cloud("pass")
    made = one.wait(one.launch().id, "gone")

    class Later(SystemClock):
        def now(self) -> float:
            return super().now() + LISTED + 60

    later = Cloud(one.root)
    later.provider = LocalProvider(one.config, one.root, Later())
    assert later.provider.instances() == []
    assert later.launch().id == made.id
    assert later.provider.instances() == []
