"""The sections of the config and their defaults. The one module that holds defaults.

Every default that a user may ask about stands here; ``verlops config show`` prints them.
"""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from verlops.config.units import (
    Amount,
    AmountPerDay,
    AmountPerHour,
    Duration,
    Money,
    PricePerHour,
)

_NAME = re.compile(r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")


class Section(BaseModel):
    """Base of the sections: strict types, no unknown keys, frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=False)


class OfferConfig(Section):
    """A machine that the local provider pretends to rent out ("as if rented")."""

    id: str
    gpu: str
    gpus: int = Field(default=1, gt=0)
    market: Literal["spot", "on_demand", "owned"]
    price: PricePerHour
    zone: str = "local-a"
    capacity: int | None = Field(default=None, ge=0)
    """Machines of this offer at one time; null: as many as asked."""


class Provider(Section):
    """Where machines come from."""

    kind: str = "local"
    boot_delay: Duration = 0.0
    boot_timeout: Duration = 120.0
    """Local: a machine whose program does not start within this time has failed to boot."""
    notice: Duration = 120.0
    """Between a spot notice and the kill."""
    offers: list[OfferConfig] = []
    options: dict[str, Any] = {}


class Queue(Section):
    """Where prompts, samples and control records travel."""

    kind: str = "sqlite"
    path: str | None = None
    partitions: int | None = Field(default=None, gt=0)
    """Of prompts and samples; null: 2 × rollout.pool.max."""
    session_timeout: Duration = 30.0
    options: dict[str, Any] = {}


class State(Section):
    """What the controller must not forget."""

    kind: str = "sqlite"
    path: str | None = None


class Artifacts(Section):
    """Checkpoints and weights."""

    kind: str = "local"
    path: str | None = None
    keep: int = Field(default=3, ge=1)


class Model(Section):
    """What ``from_pretrained`` is called with."""

    path: str = ""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    trust_remote_code: bool = False
    warmup: WarmupConfig | None = None


class WarmupConfig(Section):
    """Make the starting model here: a small model from scratch, shortly supervised."""

    hidden: int = Field(default=64, gt=0)
    layers: int = Field(default=2, gt=0)
    heads: int = Field(default=2, gt=0)
    steps: int = Field(default=40, ge=0)
    batch: int = Field(default=256, gt=0)
    learning_rate: float = Field(default=2e-3, gt=0)


class Task(Section):
    """What the prompts are about, and how they are fed."""

    generator: str | None = None
    options: dict[str, Any] = {}
    seed: int = 0
    group_size: int = Field(default=8, ge=1)
    max_prompt_tokens: int = Field(default=1024, gt=0)
    max_response_tokens: int = Field(default=1024, gt=0)
    temperature: float = Field(default=1.0, gt=0)
    keep_backlog: int = Field(default=0, ge=0)
    """`up` tops the backlog up to so many prompts from the generator; 0: feed by hand."""


class Reward(Section):
    """How responses are scored."""

    function: str = "exact"
    version: str = "1"
    options: dict[str, Any] = {}
    min_scored: int = Field(default=2, ge=1)
    timeout: Duration = 30.0
    retries: int = Field(default=3, ge=0)
    cache: Literal["memory", "none"] = "memory"
    cache_entries: int = Field(default=100_000, gt=0)
    gpu: list[str] = ["T4", "L4", "A10G"]
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)


class PoolConfig(Section):
    """The rollout workers' auto-scaling group."""

    min: int = Field(default=2, ge=0)
    max: int = Field(default=10, ge=1, validate_default=True)
    gpu: list[str] = ["L20", "L40S", "L4", "A10G"]
    """GPU kinds, the most wanted first."""
    market: list[Literal["spot", "on_demand", "owned"]] = ["spot", "on_demand", "owned"]
    policy: str = "backlog"
    backlog_per_worker: int = Field(default=200, gt=0)
    fixed: int | None = Field(default=None, ge=0)
    options: dict[str, Any] = {}
    cooldown: Duration = 180.0
    drain_timeout: Duration = 600.0
    boot_deadline: Duration = 1200.0
    dead_after: Duration = 60.0
    min_life: Duration = 900.0
    window: Duration = 600.0

    @field_validator("max")
    @classmethod
    def _bounds(cls, value: int, info: ValidationInfo) -> int:
        # On the field, not on the model: it must speak beside other faults of the pool.
        if info.data.get("min", 0) > value:
            raise ValueError(f"min is {info.data['min']}, max is {value}: raise max or lower min")
        return value


class Rollout(Section):
    """The workers that generate samples."""

    pool: PoolConfig = PoolConfig()
    engine: str = "hf"
    options: dict[str, Any] = {}
    max_in_flight: int = Field(default=16, gt=0)
    """Prompts (groups) that one worker holds at a time."""
    beat: Duration = 10.0


class Checkpoints(Section):
    """How many full states are kept."""

    keep: int = Field(default=3, ge=1)


class Trainer(Section):
    """The machine that turns N samples into the next version, and ends itself."""

    gpu: list[str] = ["A100", "A100-80GB", "H100"]
    gpus: int = Field(default=4, ge=1)
    """GPUs of the machine that is rented: offers with at least so many are taken."""
    processes: int | None = Field(default=None, ge=1)
    """Processes of torchrun; null: one a GPU."""
    market: list[Literal["spot", "on_demand", "owned"]] = ["on_demand", "owned"]
    engine: Literal["native"] = "native"
    trigger: str = "threshold"
    options: dict[str, Any] = {}
    batch: int = Field(default=5000, gt=0)
    """Samples an update, in whole groups."""
    staleness: int = Field(default=2, ge=0)
    algorithm: str = "ppo"
    advantage: str = "gae"
    learning_rate: float = Field(default=1e-6, ge=0)
    critic_learning_rate: float | None = Field(default=None, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.01, ge=0)
    betas: tuple[float, float] = Field(default=(0.9, 0.95), strict=False)
    grad_clip: float = Field(default=1.0, gt=0)
    mini_batch: int = Field(default=256, gt=0)
    """Samples an optimizer step."""
    micro_batch_tokens: int = Field(default=16384, gt=0)
    """Padded tokens of one forward pass on one process."""
    epochs: int = Field(default=1, gt=0)
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.2, gt=0)
    dual_clip: float | None = Field(default=3.0, gt=1)
    tis_cap: float | None = Field(default=2.0, gt=0)
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)
    value_clip: float = Field(default=0.2, gt=0)
    value_coef: float = Field(default=0.5, ge=0)
    entropy_coef: float = Field(default=0.0, ge=0)
    collect_wait: Duration = 120.0
    deadline: Duration = 7200.0
    """Hard limit on the life of one trainer machine."""
    no_progress: Duration = 900.0
    grace: Duration = 30.0
    boot_deadline: Duration = 1200.0
    max_failures: int = Field(default=3, ge=1)
    forecast: Duration = 1800.0
    checkpoints: Checkpoints = Checkpoints()


class BudgetConfig(Section):
    """Money that must not be passed; null: no limit."""

    per_hour: AmountPerHour | None = None
    per_day: AmountPerDay | None = None
    total: Amount | None = None


class ControlConfig(Section):
    """The controller's own timing."""

    period: Duration = 30.0
    ttl: Duration = 1800.0
    """A machine that sees no control record for so long drains and ends itself."""
    lease: Duration = 120.0


class Baseline(Section):
    """The always-on box that the saving is measured against: an assumption, printed."""

    gpus: int = Field(default=8, gt=0)
    gpu: str = "A100"
    price: PricePerHour = Money(960_000_000, "CNY")
    samples_per_hour: float = Field(default=12000, gt=0)
    train_gpu_seconds_per_sample: float = Field(default=0.18, gt=0)
    """A100-seconds to train one sample: 2 GPUs × 18 min / 12,000."""
    rollout_samples_per_gpu_hour: float = Field(default=6000, gt=0)
    """Samples an hour that one busy A100 would generate, for the like-for-like line."""


class Logging(Section):
    """Structured logs of the control side and metrics of the trainer."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class Config(Section):
    """The whole configuration of one environment, called ``name``."""

    name: str
    currency: Literal["CNY", "USD", "EUR"] = "CNY"
    as_if_rented: bool = False
    """Prices are list prices of machines that are not really rented; reports say so."""
    provider: Provider = Provider()
    queue: Queue = Queue()
    state: State = State()
    artifacts: Artifacts = Artifacts()
    model: Model = Model()
    task: Task = Task()
    reward: Reward = Reward()
    rollout: Rollout = Rollout()
    trainer: Trainer = Trainer()
    budget: BudgetConfig = BudgetConfig()
    control: ControlConfig = ControlConfig()
    baseline: Baseline = Baseline()
    logging: Logging = Logging()

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not _NAME.match(value):
            raise ValueError(f"'{value}' must be 1 to 40 of a-z, 0-9 and '-', like 'my-run'")
        return value

    @model_validator(mode="after")
    def _one_currency(self) -> Self:
        prices = {f"provider.offers.{o.id}.price": o.price for o in self.provider.offers}
        prices |= {"baseline.price": self.baseline.price}
        limits = (("per_hour", self.budget.per_hour), ("per_day", self.budget.per_day))
        prices |= {f"budget.{k}": v for k, v in (*limits, ("total", self.budget.total)) if v}
        for path, price in prices.items():
            if price.currency != self.currency:
                raise ValueError(
                    f"{path} is in {price.currency}, currency is {self.currency}: "
                    "currencies are never added without a rate"
                )
        return self

    def partitions(self) -> int:
        """Partitions of the prompt and sample topics."""
        return self.queue.partitions or 2 * self.rollout.pool.max


Model.model_rebuild()
Config.model_rebuild()
