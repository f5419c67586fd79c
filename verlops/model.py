"""The frozen types that the control side thinks in: facts in, decisions out.

Pure data. Times are seconds since the epoch, UTC, as floats; durations are seconds;
prices are integer micro-units of their currency per hour (¥10/h = 10_000_000).
Nothing here reads a clock, a file or the environment.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec

Market = Literal["spot", "on_demand", "owned"]
Role = Literal["rollout", "trainer", "reward"]
Phase = Literal["pending", "booting", "ready", "draining", "doomed", "gone"]

MICRO = 1_000_000
"""Micro-units in one unit of currency."""


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all: frozen, keyword-only, defaults omitted on the wire."""

    def but(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return msgspec.structs.replace(self, **changes)


class Offer(Struct, frozen=True, kw_only=True):
    """Something that a provider would rent out at a price."""

    id: str
    provider: str
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    gpu: str = ""
    gpus: int = 1
    price: int
    """Micro-units per hour for the whole machine, never per GPU."""
    currency: str
    market: Market
    available: bool = True


class Notice(Struct, frozen=True, kw_only=True):
    """A warning that an instance will be taken away at ``deadline``."""

    instance_id: str
    deadline: float
    reason: str = "reclaim"


class Exit(Struct, frozen=True, kw_only=True):
    """How a machine ended, as its own record or the provider's says."""

    at: float
    reason: str
    """done | failed | killed | reclaimed | guard:<rule> | terminated | vanished | boot_failed"""
    code: int | None = None
    detail: str = ""


class Instance(Struct, frozen=True, kw_only=True):
    """A rented machine as the provider sees it, joined with what its beats say."""

    id: str
    key: str
    """``hash(name, role, slot, generation)``: the idempotency key of its launch."""
    offer: Offer
    role: Role
    phase: Phase
    launched_at: float
    ready_at: float | None = None
    notice_deadline: float | None = None
    ended: Exit | None = None
    tags: dict[str, str] = {}
    policy_version: int | None = None
    in_flight: int | None = None
    """Unfinished prompts (groups) it holds; None when no fresh beat says."""
    drained: bool = False
    """It has beaten ``drained``: it holds nothing and takes nothing."""
    beat_at: float | None = None


class QueueStats(Struct, frozen=True, kw_only=True):
    """One reading of the prompt backlog. ``ok`` False means: the numbers say nothing."""

    lag: int = 0
    oldest_age_s: float | None = None
    in_per_s: float | None = None
    out_per_s: float | None = None
    partitions: int = 0
    end: int = 0
    """Sum over partitions of the end offsets: every prompt ever fed."""
    ok: bool = True
    age_s: float = 0.0


class SampleStats(Struct, frozen=True, kw_only=True):
    """Counts of samples (not groups), except where a name says groups or prompts."""

    usable: int = 0
    outstanding: int = 0
    stale: int = 0
    superseded: int = 0
    failed: int = 0
    rejected: int = 0
    trained: int = 0
    usable_groups: int = 0
    attempts: int = 0
    usable_by_version: dict[int, int] = {}


class PromptStates(Struct, frozen=True, kw_only=True):
    """Every prompt fed is in exactly one of these (DATAPLANE rule 14)."""

    waiting: int = 0
    leased: int = 0
    resume: int = 0
    usable: int = 0
    trained: int = 0
    stale: int = 0
    failed: int = 0
    rejected: int = 0
    dead: int = 0
    duplicate: int = 0
    """Fed again under an id that has a group already; counted apart."""

    def total(self) -> int:
        """The number of prompts fed."""
        return sum(getattr(self, name) for name in self.__struct_fields__)


class TrainerStats(Struct, frozen=True, kw_only=True):
    """The trainer as the controller sees it."""

    state: Literal["none", "launching", "running", "warm", "ending"] = "none"
    instance_id: str | None = None
    launches: int = 0
    failures: int = 0
    """Failed trainers in a row on the present parent version."""
    progress: str = ""


class Observation(Struct, frozen=True, kw_only=True):
    """All that a step knows about the world, at one moment.

    ``missing`` names the sources that failed this round: their part of the
    observation is the last one known, or empty, and never means zero.
    """

    now: float
    instances: tuple[Instance, ...] = ()
    offers: tuple[Offer, ...] = ()
    queue: QueueStats = QueueStats()
    samples: SampleStats = SampleStats()
    prompts: PromptStates = PromptStates()
    trainer: TrainerStats = TrainerStats()
    version: int = 0
    """The newest committed policy version."""
    spent: int = 0
    """Micro-units spent so far by the ledger's reckoning."""
    missing: frozenset[str] = frozenset()
    """Any of: instances, offers, queue, samples, versions, beats."""
    groups_per_s: float | None = None
    """Measured finished groups per second per ready worker (EWMA), if any."""

    def of_role(self, role: Role) -> tuple[Instance, ...]:
        """The instances of one role that are not gone."""
        return tuple(i for i in self.instances if i.role == role and i.phase != "gone")


class Pool(Struct, frozen=True, kw_only=True):
    """What a policy and the plan need to know of one pool's configuration.

    Durations in seconds. ``max`` is already capped by the partition count.
    """

    role: Role = "rollout"
    min: int = 2
    max: int = 10
    backlog_per_worker: int = 200
    fixed: int | None = None
    options: dict[str, Any] = {}
    cooldown: float = 180.0
    drain_timeout: float = 600.0
    boot_deadline: float = 1200.0
    dead_after: float = 60.0
    min_life: float = 900.0
    window: float = 600.0
    """Scale-in needs the largest recommendation of this many seconds below the count."""
    hold: float = 900.0
    """A failed or stale reading holds the count this long, then down to min."""
    blind: float = 3600.0
    """After this long without readings: drain to min regardless."""
    bar: float = 180.0
    """A pool (offer) that failed is barred this long; its score recovers over ``recover``."""
    recover: float = 600.0
    on_demand_after_failures: int = 3
    on_demand_after: float = 600.0


class TrainerRule(Struct, frozen=True, kw_only=True):
    """What the trigger needs: N samples, staleness cap, failures allowed, retry wait."""

    batch: int = 5000
    staleness: int = 2
    max_failures: int = 3
    trigger: str = "threshold"
    options: dict[str, Any] = {}
    boot_deadline: float = 1200.0
    forecast_s: float = 1800.0
    """How long one trainer launch is expected to be billed, for the budget."""


class Budget(Struct, frozen=True, kw_only=True):
    """Limits in micro-units; None is no limit."""

    per_hour: int | None = None
    per_day: int | None = None
    total: int | None = None


class Desired(Struct, frozen=True, kw_only=True):
    """What a policy wants of its pool, and why, in words for a person."""

    count: int
    reason: str


class TrainerWish(Struct, frozen=True, kw_only=True):
    """What a trigger wants of the trainer."""

    action: Literal["start", "keep", "stop", "none"]
    reason: str


class Launch(Struct, frozen=True, kw_only=True, tag="launch"):
    """Rent one machine."""

    key: str
    role: Role
    slot: str
    generation: int
    offer: Offer
    reason: str


class Drain(Struct, frozen=True, kw_only=True, tag="drain"):
    """Tell one machine to finish what it holds and take nothing more."""

    instance_id: str
    key: str
    reason: str
    replace: bool = False


class Terminate(Struct, frozen=True, kw_only=True, tag="terminate"):
    """End one machine now."""

    instance_id: str
    key: str
    reason: str


class Tell(Struct, frozen=True, kw_only=True, tag="tell"):
    """Put a control record on the control topic."""

    target: str
    command: str
    quota: int | None = None
    reason: str = ""


Action = Launch | Drain | Terminate | Tell


class Intent(Struct, frozen=True, kw_only=True):
    """An action that was decided and saved before it was tried.

    It stays open until its outcome is definite.
    """

    id: str
    action: Action
    at: float
    fence: int
    tries: int = 0


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of an intent. ``unknown``: it may or may not have happened."""

    intent_id: str
    status: Literal["ok", "refused", "failed", "unknown"]
    error: str = ""
    """Name of the error class: CapacityError, QuotaError, …; empty when ok."""
    detail: str = ""
    instance_id: str | None = None


class Bar(Struct, frozen=True, kw_only=True):
    """An offer that failed: not to be tried before ``until``."""

    until: float
    failures: int
    failed_at: float


class Memory(Struct, frozen=True, kw_only=True):
    """Everything that a step must remember; saved whole with the intents.

    A restarted controller continues from here and never restarts at the minimum.
    """

    run: str = ""
    desired: dict[str, int] = {}
    """Role → count wanted after the last step."""
    desired_at: dict[str, float] = {}
    """Role → when ``desired`` last changed: the start of the cooldown."""
    recommendations: dict[str, list[tuple[float, int]]] = {}
    """Role → (time, count) of the policy within the scale-in window."""
    fresh_up: dict[str, int] = {}
    """Role → consecutive fresh readings that asked for more."""
    generations: dict[str, int] = {}
    """Slot → generation of its next launch."""
    bars: dict[str, Bar] = {}
    """Offer id → bar."""
    reading_at: float | None = None
    """When the queue was last read well."""
    blind_since: float | None = None
    draining: dict[str, float] = {}
    """Instance id → when its drain began."""
    seen: dict[str, Phase] = {}
    """Instance id → last phase recorded in the journal."""
    trainer_parent: int | None = None
    trainer_launches: int = 0
    trainer_failures: int = 0
    trainer_failed_on: int | None = None
    version: int = 0
    rate: float | None = None
    stopped: str = ""
    """Why launches stopped (quota, credentials, budget), or empty."""
    spot_failures: int = 0
    spot_failing_since: float | None = None
    on_demand_at: float | None = None
    extra: dict[str, Any] = {}
    """For policies that keep something of their own (JSON-like values)."""


class Event(Struct, frozen=True, kw_only=True):
    """One line of the journal, append-only. ``data`` is JSON-like.

    The ledger is a fold over the kinds ``launched``, ``ready``, ``price``, ``phase``,
    ``ended`` and ``disk``; the others are for people and tests.
    """

    at: float
    kind: str
    instance_id: str = ""
    reason: str = ""
    data: dict[str, Any] = {}
    seq: int = 0


class Step(Struct, frozen=True, kw_only=True):
    """What one step saw, decided, did and learnt."""

    observation: Observation
    desired: Desired
    wish: TrainerWish
    actions: tuple[Action, ...]
    outcomes: tuple[Outcome, ...]
    events: tuple[Event, ...] = ()
    alarms: tuple[str, ...] = ()
