"""What a controller is made of: its ports, and the settings of its environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from verlops.messages import TopicNames
from verlops.model import Desired, Memory, Observation, Pool, TrainerRule, TrainerWish
from verlops.plan import PlanSettings
from verlops.ports import ArtifactStore, Clock, Ids, Provider, Queue, StateStore


@dataclass(frozen=True)
class Ports:
    """The world, as seven small protocols."""

    clock: Clock
    ids: Ids
    provider: Provider
    queue: Queue
    store: ArtifactStore
    state: StateStore


@dataclass(frozen=True)
class Settings:
    """The parts of a config that a step needs, resolved. Durations in seconds."""

    name: str
    plan: PlanSettings
    policy: Callable[[Observation, Memory, Pool], Desired]
    trigger: Callable[[Observation, Memory, TrainerRule], TrainerWish]
    machine_config: dict[str, Any]
    """What every machine gets as ``MachineSpec.config``."""
    group_size: int
    min_scored: int
    dead_after: float
    lease_ttl: float
    minimum_billed_s: int = 0
    updates: int | None = None
    """Stop triggering once this policy version is committed; None: never."""

    @property
    def topics(self) -> TopicNames:
        """The names of the environment's topics."""
        return TopicNames(self.name)
