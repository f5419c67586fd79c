"""The trainer's role on a machine folder: commit, resume, short, fence, crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file

from verlops.artifacts.local import LocalStore
from verlops.config import parse
from verlops.errors import VerlopsError
from verlops.lineage import list_versions, read_version
from verlops.machine import MachineSpec, encode_spec
from verlops.messages import (
    Group,
    Sample,
    Sampling,
    Segment,
    TopicNames,
    encode,
    group_id,
    pack_ids,
    pack_logprobs,
)
from verlops.ports import TopicSpec
from verlops.queues.sqlite import SqliteQueue
from verlops.versions import Version, encode_version, fence_key, version_key
from verlops_workers.host import Host
from verlops_workers.trainer import main as role

pytestmark = pytest.mark.e2e


class Site:
    """A log, a store and trainer machines on them."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.queue, self.store = SqliteQueue(root / "log"), LocalStore(root / "store")
        self.topics = TopicNames("t")
        self.queue.ensure([TopicSpec(n, 1) for n in self.topics.all()])
        zero = Version(run="r", version=0, model=str(model), weights="w0")
        self.store.put_if_absent(version_key("r", 0), encode_version(zero))
        self.machines = 0

    def feed(self, first: int, count: int, version: int = 0) -> None:
        for n in range(first, first + count):
            samples = [
                Sample(
                    index=i,
                    token_ids=pack_ids([2 + (n + i) % 20, 3 + (n * i) % 20, 1][: 1 + (n + i) % 3]),
                    logprobs=pack_logprobs([-3.0] * (1 + (n + i) % 3)),
                    segments=[Segment(length=1 + (n + i) % 3, version=version, weights="w")],
                    finish_reason="stop",
                    reward=float((n + i) % 2),
                    reward_state="scored",
                )
                for i in range(4)
            ]
            group = Group(
                id=group_id("r", str(n), 0),
                attempt=f"a{n}",
                run="r",
                prompt_id=str(n),
                prompt_token_ids=pack_ids([4, 5 + n % 10]),
                samples=samples,
                sampling=Sampling(max_tokens=3),
                worker="w",
                instance="i",
            )
            self.queue.publish(self.topics.samples, [(group.id, encode(group))])

    def machine(self, parent: int, fence: int = 1, **trainer) -> Host:
        self.machines += 1
        folder = self.root / f"m-{self.machines}"
        folder.mkdir()
        settings = {
            "batch": 16,
            "mini_batch": 8,
            "learning_rate": 1e-3,
            "processes": 1,
            "collect_wait": "0s",
            "warmup_steps": 3,
            **trainer,
        }
        config = parse(
            {
                "name": "t",
                "model": {"dtype": "float32"},
                "queue": {"path": str(self.root / "log")},
                "artifacts": {"path": str(self.root / "store")},
                "trainer": settings,
            }
        )
        spec = MachineSpec(
            name="t",
            run="r",
            role="trainer",
            key="k",
            slot=f"trainer-{parent}",
            generation=0,
            fence=1,
            config=config.model_dump(mode="json"),
            parent=parent,
            trainer_fence=fence,
        )
        (folder / "spec.json").write_bytes(encode_spec(spec))
        return Host(folder)

    def weights(self, number: int) -> dict:
        version = read_version(self.store, "r", number)
        prefix = f"store/runs/r/attempts/{number:08d}-{version.attempt}"
        return load_file(self.root / prefix / "model/model.safetensors")


@pytest.fixture
def site(tmp_path: Path, tiny: Path):
    made = Site(tmp_path / "site", tiny)
    yield made
    made.queue.close()


@pytest.fixture(autouse=True)
def keep_signals():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_an_update_is_committed_and_its_samples_are_spent(site) -> None:
    site.feed(0, 6)
    host = site.machine(0)
    assert role.main(host) == 0
    version = read_version(site.store, "r", 1)
    assert (version.parent, version.counts["samples"], version.counts["groups"]) == (0, 16, 4)
    assert version.trained_ids() == [group_id("r", str(n), 0) for n in range(4)]
    names = {entry.path for entry in version.files}
    assert {"model/model.safetensors", "model/config.json", "metrics.jsonl"} <= names
    assert version.metrics["reward_mean"] == pytest.approx(0.5)
    assert version.metrics["kl"] is not None
    assert version.state["optimizer_steps"] == 2
    assert host.status().done
    # What is spent is spent: the rest is too little for another update.
    short = site.machine(1)
    assert role.main(short) == role.SHORT
    assert "8 usable samples, 16 are needed" in short.status().error
    assert list_versions(site.store, "r") == [0, 1]


def test_resuming_goes_on_where_the_parent_stopped_and_is_repeatable(
    site, tiny, tmp_path: Path
) -> None:
    site.feed(0, 8)
    assert role.main(site.machine(0)) == 0
    assert role.main(site.machine(1)) == 0
    one, two = read_version(site.store, "r", 1), read_version(site.store, "r", 2)
    # Warm-up over 3 steps: the second update goes on at step 3, not at 1 (CKP-5).
    assert one.metrics["lr"] == pytest.approx(1e-3 * 2 / 3)
    assert two.metrics["lr"] == pytest.approx(1e-3)
    assert two.state["optimizer_steps"] == 4
    # The same from a copy of version 1's state only: what is in memory does not matter.
    again = Site(tmp_path / "again", tiny)
    again.feed(0, 8)
    assert role.main(again.machine(0)) == 0
    assert role.main(again.machine(1)) == 0
    a, b = site.weights(2), again.weights(2)
    assert all((a[n] - b[n]).abs().max() <= 1e-6 for n in a)
    # And Adam's moments matter: a fresh optimizer would have landed elsewhere.
    state = [e.path for e in two.files if e.path.startswith("state/")]
    assert any(path.endswith(".distcp") for path in state)
    again.queue.close()


def test_a_higher_fence_and_a_committed_version_are_lost_races(site) -> None:
    site.feed(0, 4)
    site.store.put_if_absent(fence_key("r", 9), b"")
    host = site.machine(0, fence=8)
    assert role.main(host) == role.OVERTAKEN
    assert "fence 9" in host.status().error
    assert list_versions(site.store, "r") == [0]


def test_a_group_relative_update_without_a_critic(site) -> None:
    site.feed(0, 4)
    assert role.main(site.machine(0, advantage="grpo")) == 0
    assert read_version(site.store, "r", 1).metrics["value_loss"] == 0.0


def test_a_failing_update_commits_nothing(site, tmp_path: Path) -> None:
    site.feed(0, 4)
    host = site.machine(0, advantage="tests.nowhere:missing")
    assert role.main(host) == 1
    assert "ended with code" in host.status().error
    assert list_versions(site.store, "r") == [0]


def test_a_spec_without_a_parent_is_refused(site) -> None:
    host = site.machine(0)
    host.spec = msgspec.structs.replace(host.spec, parent=None)
    with pytest.raises(VerlopsError, match="parent"):
        role.TrainerRole(host)


@pytest.mark.parametrize("phase", ["collecting", "training", "saving"])
def test_killed_at_any_phase_leaves_the_parent_the_newest(site, phase: str) -> None:
    site.feed(0, 4 if phase != "collecting" else 2)
    host = site.machine(0, collect_wait="60s", epochs=200)
    environment = {**os.environ, "VERLOPS_MACHINE_DIR": str(host.folder)}
    command = [sys.executable, "-m", "verlops_workers.main", "trainer"]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    deadline = time.monotonic() + 60
    seen = ""
    while phase not in seen and process.poll() is None and time.monotonic() < deadline:
        seen = host.status().phase
        progress = host.folder / "work/progress.json"
        if progress.exists():
            seen += json.loads(progress.read_text())["phase"]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert phase in seen
    committed = list_versions(site.store, "r")
    assert committed in ([0], [0, 1])
    if committed == [0]:
        site.feed(100, 4)
        assert role.main(site.machine(0, fence=2)) == 0
    assert read_version(site.store, "r", 1).counts["samples"] == 16
