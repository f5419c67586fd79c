"""The whole loop on this machine, with its parts killed: the accounting closes."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from verlops.assemble.load import load_config
from verlops.assemble.session import Session
from verlops.lineage import list_versions, read_version
from verlops.messages import Dead, Group, Prompt, TopicNames, decode, group_id

pytestmark = pytest.mark.e2e


class Books:
    """Everything that was fed, made and spent, read from the log and the store alone."""

    def __init__(self, small) -> None:
        environment = {"VERLOPS_STATE": str(small.state)}
        self.session = Session(load_config(small.config, environment))
        self.topics = TopicNames("small")
        self.run = self.session.run
        ports = self.session.ports
        self.versions = [
            read_version(ports.store, self.run, n) for n in list_versions(ports.store, self.run)
        ]
        self.prompts = [r for r in self._all(self.topics.prompts) if isinstance(r, Prompt)]
        self.groups = [r for r in self._all(self.topics.samples) if isinstance(r, Group)]
        self.receipts = self._all(self.topics.receipts)
        self.dead = [r for r in self._all(self.topics.dead) if isinstance(r, Dead)]
        self.lease = ports.state.lease("controller")
        self.events = list(ports.state.events())
        self.session.close()

    def _all(self, topic: str) -> list:
        queue, found = self.session.ports.queue, []
        for partition, end in queue.end_offsets(topic).items():
            records = queue.read(topic, partition, 0, max(1, end))
            found += [decode(r.value) for r in records if r.value is not None]
        return found

    def states(self, staleness: int) -> Counter[str]:
        """The state of every prompt, judged here and not by the tally."""
        spent = {g for v in self.versions for g in v.trained_ids()}
        newest = self.versions[-1].version
        best: dict[str, int] = {}
        for receipt in self.receipts:
            known = best.get(receipt.group_id, -1)
            best[receipt.group_id] = max(known, receipt.oldest_version)
        counts: Counter[str] = Counter()
        for prompt in self.prompts:
            own = group_id(self.run, prompt.id, prompt.epoch)
            if own in spent:
                counts["trained"] += 1
            elif own not in best:
                counts["waiting"] += 1
            else:
                counts["usable" if newest - best[own] <= staleness else "stale"] += 1
        return counts


def closes(books: Books, status: dict, staleness: int = 2) -> None:
    """Rule 14, and nothing twice."""
    spent = [g for v in books.versions for g in v.trained_ids()]
    assert len(spent) == len(set(spent)), "a group was trained twice"
    made = {g.id for g in books.groups}
    assert set(spent) <= made
    states = {k: v for k, v in status["prompts"]["states"].items() if v}
    assert states == dict(books.states(staleness))
    assert sum(states.values()) == len(books.prompts) == status["prompts"]["fed"]
    attempts = {r.attempt for r in books.receipts}
    assert status["samples"]["group_attempts"] == len(attempts)
    done = len({r.group_id for r in books.receipts})
    assert status["samples"]["superseded"] == len(attempts) - done
    trained = sum(v.counts.get("samples", 0) for v in books.versions)
    assert status["samples"]["trained"] == trained
    assert status["policy_version"] == books.versions[-1].version
    by_version = {v.version: v.counts["samples"] for v in books.versions if v.version}
    assert {v["version"]: v["samples"] for v in status["versions"]} == by_version


def test_one_worker_the_trainer_and_the_controller_are_killed(small, wait) -> None:
    up = small.start("up", "--yes", "--updates", "4", "--chaos", "kill@1s,kill-trainer@2s")
    # Both machines are killed and one update is through: now the controller itself.
    wait(lambda: small.log().count("chaos: ") == 2, "both injected kills")
    wait(lambda: "version 1 committed" in small.log(), "the first update")
    os.kill(up.pid, signal.SIGKILL)
    up.wait()
    assert small.status()["policy_version"] >= 1
    small.run("up", "--yes", "--updates", "2")

    books, status = Books(small), small.status()
    closes(books, status)
    assert books.versions[-1].version >= 3
    ended = [(e.data["role"], e.reason) for e in books.events if e.kind == "ended"]
    assert ("rollout", "killed") in ended
    assert ("trainer", "killed") in ended
    chaos = [e for e in books.events if e.kind == "chaos"]
    assert any(e.data["what"] == "kill" and e.data["in_flight"] > 0 for e in chaos)
    assert status["instances"] == []
    assert small.processes() == []
    assert books.lease is None or books.lease.holder == ""


def test_ticks_do_what_up_does_and_only_one_acts(small, wait) -> None:
    first = small.run("tick")
    assert "launch" in first.stderr
    racing = [small.start("tick") for _ in range(3)]
    codes = sorted(process.wait() for process in racing)
    assert set(codes) <= {0, 8}
    assert 0 in codes

    def booted() -> bool:
        small.run("tick")
        return small.status()["rollout"]["ready"] >= 2

    wait(booted, "the workers of earlier ticks to serve")
    small.run("down")
    assert small.status()["instances"] == []
    assert small.processes() == []
    assert "nothing is running" in small.run("down").stdout


def test_tick_beside_a_holder_exits_8_and_leaves_the_lease_alone(small) -> None:
    small.run("tick")
    session = Session(load_config(small.config, {"VERLOPS_STATE": str(small.state)}))
    lease = session.ports.state.acquire(
        "controller", "elsewhere/1/0", 60.0, session.ports.clock.now()
    )
    done = small.run("tick", check=False)
    assert done.returncode == 8
    assert "elsewhere/1/0" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert session.ports.state.lease("controller") == lease
    session.ports.state.release(lease)
    session.close()
    small.run("down")


def test_interrupted_once_it_drains_and_leaves_nothing(small, wait) -> None:
    up = small.start("up", "--yes")
    wait(lambda: "launch rollout" in small.log(), "the first launches")
    wait(lambda: small.status()["rollout"]["ready"] >= 1, "a worker to serve")
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 0
    assert "draining" in small.log()
    assert small.processes() == []
    closes(Books(small), small.status())


def test_interrupted_twice_it_stops_at_once_and_says_what_still_runs(small, wait) -> None:
    up = small.start("up", "--yes")
    wait(lambda: "launch rollout" in small.log(), "the first launches")
    wait(lambda: small.status()["rollout"]["ready"] >= 1, "a worker to serve")
    running = {i["id"] for i in small.status()["instances"]}
    up.send_signal(signal.SIGINT)
    wait(lambda: "draining" in small.log(), "the first to be heard")
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 130
    said = small.log().partition("stopped at once; still running: ")[2].split()[0].rstrip(",")
    assert said in running
    small.run("down")
    assert small.processes() == []


def test_feeding_a_file_twice_adds_nothing(small) -> None:
    small.write(task={"keep_backlog": 0, "group_size": 4})
    small.run("tick")
    path = small.folder / "prompts.jsonl"
    lines = [f'{{"prompt": "{n}+1=", "reference": "{n + 1}"}}' for n in range(9)]
    path.write_text("\n".join(lines) + "\n")
    assert "fed 9 prompts" in small.run("feed", str(path)).stdout
    again = small.run("feed", str(path)).stdout
    assert "fed 0 prompts; 9 were known already" in again
    assert small.status()["prompts"]["fed"] == 9
    path.write_text('{"prompt": "1+1="}\nnot json\n{"prompts": "x"}\n')
    bad = small.run("feed", str(path), check=False)
    assert bad.returncode == 2
    assert [line.split(": ")[0].split("/")[-1] for line in bad.stderr.strip().splitlines()] == [
        "prompts.jsonl:2",
        "prompts.jsonl:3",
    ]
    assert small.status()["prompts"]["fed"] == 9
    small.run("down")


def test_a_new_run_starts_from_nothing_of_the_old(small, wait) -> None:
    small.run("up", "--yes", "--updates", "1")
    old = small.status()
    small.run("up", "--yes", "--updates", "1", "--new-run")
    new = small.status()
    assert new["run"] != old["run"]
    assert new["policy_version"] == 1
    states = new["prompts"]["states"]
    assert sum(states.values()) == new["prompts"]["fed"]
    assert states["trained"] * 4 == new["samples"]["trained"]


def test_a_new_run_is_refused_while_machines_are_alive(small) -> None:
    small.run("tick")
    done = small.run("up", "--yes", "--new-run", check=False)
    assert done.returncode == 2
    assert "verlops down" in done.stderr
    small.run("down")


def test_cost_report_sums_and_stays_the_same_after_the_end(small) -> None:
    import json

    small.run("up", "--yes", "--updates", "1")
    first = json.loads(small.run("cost-report", "--json").stdout)
    again = json.loads(small.run("cost-report", "--json").stdout)
    assert first == again
    assert first["totals"]["spent"] > 0
    assert sum(first["split"].values()) == pytest.approx(first["totals"]["spent"], abs=1e-6)
    assert first["totals"]["samples"] == small.status()["samples"]["trained"]
    for key in ("instance", "day", "update", "pool"):
        other = json.loads(small.run("cost-report", "--json", "--by", key).stdout)
        assert other["totals"]["spent"] == first["totals"]["spent"]
        total = sum(row["spent"] for row in other["rows"])
        assert total == pytest.approx(first["totals"]["spent"], abs=1e-6)
    table = small.run("cost-report").stdout
    assert "as if rented" in table
    assert Path(small.state).exists()
