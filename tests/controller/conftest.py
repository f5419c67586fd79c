"""A controller over a world in virtual time: fake provider, memory log, memory state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from verlops.artifacts.local import LocalStore
from verlops.controller import Controller, Ports, Settings
from verlops.messages import (
    Beat,
    Group,
    Prompt,
    Receipt,
    Sample,
    Sampling,
    Segment,
    TopicNames,
    encode,
    group_id,
    pack_ids,
    pack_logprobs,
)
from verlops.model import Budget, Instance, Offer, Pool, TrainerRule
from verlops.plan import PlanSettings
from verlops.ports import TopicSpec
from verlops.queues.memory import MemoryQueue
from verlops.sim.clock import SeededIds, VirtualClock
from verlops.sim.provider import FakeProvider
from verlops.state.memory import MemoryState
from verlops.versions import Version, encode_version, pack_trained, version_key
from verlops_policies import backlog, threshold

RUN = "w-run"
OFFERS = [
    Offer(
        id="l20-a",
        provider="fake",
        zone="a",
        gpu="L20",
        price=10_000_000,
        currency="CNY",
        market="spot",
    ),
    Offer(
        id="l20-b",
        provider="fake",
        zone="b",
        gpu="L20",
        price=11_000_000,
        currency="CNY",
        market="spot",
    ),
    Offer(
        id="l20-od",
        provider="fake",
        zone="a",
        gpu="L20",
        price=25_000_000,
        currency="CNY",
        market="on_demand",
    ),
    Offer(
        id="a100",
        provider="fake",
        zone="a",
        gpu="A100",
        gpus=2,
        price=240_000_000,
        currency="CNY",
        market="on_demand",
    ),
    Offer(
        id="t4",
        provider="fake",
        zone="a",
        gpu="T4",
        price=8_000_000,
        currency="CNY",
        market="on_demand",
    ),
]


@dataclass
class World:
    """One environment whose machines do what the test says."""

    folder: Path
    clock: VirtualClock = field(default_factory=VirtualClock)
    batch: int = 80

    def __post_init__(self) -> None:
        self.topics = TopicNames("w")
        self.queue = MemoryQueue(clock=self.clock.now)
        self.queue.ensure(
            [
                TopicSpec(
                    name,
                    4 if name in (self.topics.prompts, self.topics.samples) else 1,
                    compact=name == self.topics.control,
                )
                for name in self.topics.all()
            ]
        )
        self.provider = FakeProvider(self.clock, OFFERS)
        self.state = MemoryState()
        self.store = LocalStore(self.folder)
        self.ports = Ports(
            clock=self.clock,
            ids=SeededIds(1),
            provider=self.provider,
            queue=self.queue,
            store=self.store,
            state=self.state,
        )
        self.state.save(self.state.load()[0].but(run=RUN))
        self.store.put(version_key(RUN, 0), encode_version(Version(run=RUN, version=0, model="m")))
        self._prompts = 0

    def settings(self, mode: str = "run", budget: Budget | None = None) -> Settings:
        plan = PlanSettings(
            name="w",
            pool=Pool(min=2, max=10, backlog_per_worker=200),
            rule=TrainerRule(batch=self.batch),
            budget=budget or Budget(),
            gpu_order={"rollout": ["L20"], "trainer": ["A100"], "reward": ["T4"]},
            market_order={
                "rollout": ["spot", "on_demand"],
                "trainer": ["on_demand"],
                "reward": ["on_demand"],
            },
            min_gpus={"rollout": 1, "trainer": 2, "reward": 1},
            reward=True,
            mode=mode,
        )
        return Settings(
            name="w",
            plan=plan,
            policy=backlog.decide,
            trigger=threshold.decide,
            machine_config={},
            group_size=8,
            min_scored=2,
            dead_after=60.0,
            lease_ttl=120.0,
        )

    def controller(self, holder: str = "me", **kwargs) -> Controller:
        return Controller(self.ports, self.settings(**kwargs), run=RUN, holder=holder)

    def prompts(self, count: int) -> None:
        records = []
        for number in range(self._prompts, self._prompts + count):
            prompt = Prompt(
                id=f"p{number}", run=RUN, group_size=8, sampling=Sampling(max_tokens=4), text="x"
            )
            records.append((prompt.id, encode(prompt)))
        self._prompts += count
        self.queue.publish(self.topics.prompts, records)

    def beat(self, instance: Instance, **fields) -> None:
        beat = Beat(
            worker=f"{instance.role}-{instance.id}",
            instance=instance.id,
            role=instance.role,
            at=self.clock.now(),
            **{"phase": "serving", **fields},
        )
        self.queue.publish(self.topics.beats, [(beat.worker, encode(beat))])

    def beat_all(self, **fields) -> None:
        for instance in self.provider.instances():
            if instance.phase == "ready":
                url = "http://reward" if instance.role == "reward" else ""
                self.beat(instance, url=url, **fields)

    def work(self, instance: Instance, first: int, count: int, version: int = 0) -> list[str]:
        """Groups and receipts for prompts first..first+count, as a worker would publish."""
        ids = []
        for number in range(first, first + count):
            gid = group_id(RUN, f"p{number}", 0)
            sample = Sample(
                index=0,
                token_ids=pack_ids([1]),
                logprobs=pack_logprobs([-0.5]),
                segments=[Segment(length=1, version=version, weights="w")],
                finish_reason="stop",
                reward=1.0,
                reward_state="scored",
            )
            group = Group(
                id=gid,
                attempt=f"a-{instance.id}-{number}",
                run=RUN,
                prompt_id=f"p{number}",
                prompt_token_ids=pack_ids([1]),
                samples=[sample] * 8,
                sampling=Sampling(max_tokens=4),
                worker="w",
                instance=instance.id,
            )
            (place,) = self.queue.publish(self.topics.samples, [(gid, encode(group))])
            receipt = Receipt(
                group_id=gid,
                attempt=group.attempt,
                prompt_id=f"p{number}",
                prompt_partition=0,
                prompt_offset=number,
                partition=place.partition,
                offset=place.offset,
                oldest_version=version,
                newest_version=version,
                samples=8,
                scored=8,
                response_tokens=8,
                reward_sum=8.0,
                gpu_seconds=1.0,
                worker="w",
                instance=instance.id,
                at=self.clock.now(),
            )
            self.queue.publish(self.topics.receipts, [(gid, encode(receipt))])
            ids.append(gid)
        return ids

    def commit(self, version: int, trained: list[str], instance: str = "") -> None:
        """What a trainer does at its end."""
        found = Version(
            run=RUN,
            version=version,
            parent=version - 1,
            trained=pack_trained(trained),
            counts={
                "samples": 8 * len(trained),
                "groups": len(trained),
                "tokens": 16 * len(trained),
            },
            metrics={"reward_mean": 0.5},
            committed_at=self.clock.now(),
            instance=instance,
        )
        self.store.put_if_absent(version_key(RUN, version), encode_version(found))

    def alive(self, role: str) -> list[Instance]:
        return [i for i in self.provider.instances() if i.role == role and i.phase != "gone"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def make_world(tmp_path: Path) -> Callable[[], World]:
    count = iter(range(1000))
    return lambda: World(tmp_path / str(next(count)))
