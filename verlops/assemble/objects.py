"""From a config to objects: the only place that picks implementations.

Called by the command line. Everything below it meets as ports.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verlops import registry
from verlops.assemble.system import SystemClock, SystemIds
from verlops.config import Config
from verlops.controller import Ports, Settings
from verlops.messages import TopicNames
from verlops.model import Budget, Pool, TrainerRule
from verlops.plan import PlanSettings
from verlops.ports import ArtifactStore, Provider, Queue, StateStore, TopicSpec

RECORD_OVERHEAD = 1.5
BYTES_PER_TOKEN = 8
"""An int32 id and a float32 log-probability."""


def open_ports(config: Config, state_dir: Path) -> Ports:
    """Every port of an environment."""
    clock = SystemClock()
    return Ports(
        clock=clock,
        ids=SystemIds(),
        provider=open_provider(config, state_dir),
        queue=open_queue(config),
        store=open_store(config),
        state=open_state(config),
    )


def open_provider(config: Config, state_dir: Path) -> Provider:
    """Where machines come from."""
    kind = registry.load("PROVIDERS", config.provider.kind)
    provider: Provider = kind.open(config, root=state_dir, clock=SystemClock())
    return provider


def open_queue(config: Config) -> Queue:
    """The message engine."""
    queue: Queue = registry.load("QUEUES", config.queue.kind).open(config)
    return queue


def open_store(config: Config) -> ArtifactStore:
    """The artifact store."""
    store: ArtifactStore = registry.load("ARTIFACTS", config.artifacts.kind).open(config)
    return store


def open_state(config: Config) -> StateStore:
    """The state store."""
    state: StateStore = registry.load("STATES", config.state.kind).open(config)
    return state


def settings(config: Config, *, fence: int = 0, updates: int | None = None) -> Settings:
    """The settings of a controller in mode "run"."""
    return Settings(
        name=config.name,
        plan=plan_settings(config, fence=fence),
        policy=registry.load("POLICIES", config.rollout.pool.policy),
        trigger=registry.load("TRIGGERS", config.trainer.trigger),
        machine_config=config.model_dump(mode="json"),
        group_size=config.task.group_size,
        min_scored=config.reward.min_scored,
        dead_after=config.rollout.pool.dead_after,
        lease_ttl=config.control.lease,
        updates=updates,
    )


def plan_settings(config: Config, *, fence: int = 0) -> PlanSettings:
    """What the plan needs of a config."""
    pool, trainer = config.rollout.pool, config.trainer
    return PlanSettings(
        name=config.name,
        pool=_pool(config),
        rule=_rule(config),
        budget=_budget(config),
        gpu_order={"rollout": pool.gpu, "trainer": trainer.gpu, "reward": config.reward.gpu},
        market_order={
            "rollout": pool.market,
            "trainer": trainer.market,
            "reward": ["on_demand", "owned"],
        },
        min_gpus={"rollout": 1, "trainer": trainer.gpus, "reward": 1},
        reward=True,
        fence=fence,
    )


def topic_specs(config: Config) -> list[TopicSpec]:
    """How the topics of an environment should be."""
    names = TopicNames(config.name)
    wide = config.partitions()
    task = config.task
    tokens = task.max_prompt_tokens + task.max_response_tokens
    biggest = int(task.group_size * tokens * BYTES_PER_TOKEN * RECORD_OVERHEAD)
    return [
        TopicSpec(names.prompts, wide),
        TopicSpec(names.samples, wide, max_bytes=max(biggest, 1 << 20)),
        TopicSpec(names.receipts, 1),
        TopicSpec(names.beats, 1),
        TopicSpec(names.control, 1, compact=True),
        TopicSpec(names.resume, 1, max_bytes=max(biggest, 1 << 20)),
        TopicSpec(names.dead, 1),
    ]


def _pool(config: Config) -> Pool:
    given: dict[str, Any] = config.rollout.pool.model_dump()
    names = set(Pool.__struct_fields__)
    fields = {name: value for name, value in given.items() if name in names}
    fields["max"] = min(given["max"], config.partitions())
    return Pool(**fields)


def _rule(config: Config) -> TrainerRule:
    trainer = config.trainer
    return TrainerRule(
        batch=trainer.batch,
        staleness=trainer.staleness,
        max_failures=trainer.max_failures,
        trigger=trainer.trigger,
        options=trainer.options,
        boot_deadline=trainer.boot_deadline,
        forecast_s=trainer.forecast,
    )


def _budget(config: Config) -> Budget:
    limits = config.budget
    return Budget(
        per_hour=limits.per_hour.micro if limits.per_hour else None,
        per_day=limits.per_day.micro if limits.per_day else None,
        total=limits.total.micro if limits.total else None,
    )
