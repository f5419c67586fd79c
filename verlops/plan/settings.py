"""What the plan is told, and what it answers. Types only; made by assemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from verlops.model import Action, Budget, Memory, Pool, Struct, TrainerRule


class PlanSettings(Struct, frozen=True, kw_only=True):
    """The parts of a config that the plan needs. Durations in seconds."""

    name: str
    pool: Pool = Pool()
    rule: TrainerRule = TrainerRule()
    budget: Budget = Budget()
    gpu_order: Mapping[str, Sequence[str]] = {}
    """Role → GPU kinds, the most wanted first; a kind not named is not taken."""
    market_order: Mapping[str, Sequence[str]] = {}
    """Role → markets, the most wanted first; one not named is not taken."""
    min_gpus: Mapping[str, int] = {}
    """Role → GPUs that its machine has at least."""
    reward: bool = True
    """Whether one reward server is wanted."""
    mode: Literal["run", "down"] = "run"
    fence: int = 0


class PlanResult(Struct, frozen=True, kw_only=True):
    """Actions in order, the memory after deciding, and what a person must be told."""

    memory: Memory
    actions: tuple[Action, ...] = ()
    alarms: tuple[str, ...] = ()
    stopped: str = ""
    """Why no work should be taken (``budget``, ``going down``), or empty."""
