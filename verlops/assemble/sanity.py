"""What is wrong with a config though each of its values is right. Pure.

Called by ``verlops.assemble.load`` once a config has parsed. Only contradictions that
would stop a run or spend money for nothing are faults; matters of taste are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from verlops.config import Config
from verlops.config.schema import OfferConfig

Fault = tuple[str, str]
"""(path, what is wrong and what to do)"""

REWARD_MARKET = ("on_demand", "owned")
"""The reward server is one long-running machine: never interruptible."""
GROUP_RELATIVE = ("grpo",)
"""Advantages that compare the samples of a group with each other."""
POSITIVE = (
    "provider.boot_timeout",
    "queue.session_timeout",
    "reward.timeout",
    "rollout.beat",
    "rollout.pool.boot_deadline",
    "rollout.pool.dead_after",
    "trainer.boot_deadline",
    "trainer.deadline",
    "trainer.no_progress",
    "control.period",
    "control.ttl",
    "control.lease",
)
"""Durations that are no durations when they are zero."""
LONGER = (
    ("control.lease", "control.period", "or the lease ends between two steps"),
    ("control.ttl", "control.period", "or machines end between two steps"),
    ("rollout.pool.dead_after", "rollout.beat", "or every worker counts as dead"),
)


def sanity_faults(config: Config) -> Iterator[Fault]:
    """Every contradiction in a config."""
    yield from _durations(config)
    yield from _groups(config)
    yield from _model(config)
    yield from _feeding(config)
    if config.provider.kind == "local":
        yield from _offers(config)


def _durations(config: Config) -> Iterator[Fault]:
    for path in POSITIVE:
        if _at(config, path) <= 0:
            yield path, "must be more than 0s"
    for path, shorter, why in LONGER:
        if 0 < _at(config, path) <= _at(config, shorter):
            yield path, f"must be longer than {shorter}, {why}"


def _groups(config: Config) -> Iterator[Fault]:
    size, reward, trainer = config.task.group_size, config.reward, config.trainer
    if trainer.batch < size:
        yield "trainer.batch", f"{trainer.batch} is less than one group of {size} (task.group_size)"
    if reward.min_scored > size:
        yield (
            "reward.min_scored",
            f"{reward.min_scored} of a group of {size} (task.group_size) can never be scored",
        )
    if trainer.advantage in GROUP_RELATIVE and min(size, reward.min_scored) < 2:
        yield (
            "trainer.advantage",
            f"'{trainer.advantage}' compares samples of a group: "
            "task.group_size and reward.min_scored must be at least 2",
        )


def _model(config: Config) -> Iterator[Fault]:
    warmup = config.model.warmup
    if not config.model.path and warmup is None:
        yield "model.path", "required, unless model.warmup makes a small model"
    if warmup is not None and warmup.hidden % (2 * warmup.heads):
        yield (
            "model.warmup.heads",
            f"hidden {warmup.hidden} does not split into {warmup.heads} heads of even size",
        )


def _feeding(config: Config) -> Iterator[Fault]:
    if config.task.keep_backlog and not config.task.generator:
        yield "task.keep_backlog", "needs task.generator; without one, set 0 and use `verlops feed`"
    if config.partitions() < config.rollout.pool.min:
        yield (
            "queue.partitions",
            f"{config.partitions()} partitions feed no more workers than that, "
            f"rollout.pool.min is {config.rollout.pool.min}",
        )
    if config.queue.kind == "memory" and config.provider.kind == "local":
        yield "queue.kind", "'memory' ends at the border of a process: machines need 'sqlite'"


def _offers(config: Config) -> Iterator[Fault]:
    offers, pool, trainer = config.provider.offers, config.rollout.pool, config.trainer
    for name, count in Counter(offer.id for offer in offers).items():
        if count > 1:
            yield "provider.offers", f"id '{name}' is given {count} times"
    rollout = _fitting(offers, pool.gpu, pool.market, 1)
    yield from _none("rollout", rollout, pool.gpu, pool.market, 1)
    yield from _none(
        "trainer",
        _fitting(offers, trainer.gpu, trainer.market, trainer.gpus),
        trainer.gpu,
        trainer.market,
        trainer.gpus,
    )
    reward = _fitting(offers, config.reward.gpu, REWARD_MARKET, 1)
    yield from _none("reward", reward, config.reward.gpu, REWARD_MARKET, 1)
    most = sum(pool.max if o.capacity is None else o.capacity for o in rollout)
    if rollout and most < pool.min:
        yield (
            "provider.offers",
            f"hold {most} rollout machines at most, rollout.pool.min is {pool.min}",
        )


def _fitting(
    offers: Sequence[OfferConfig], gpus: Sequence[str], markets: Sequence[str], least: int
) -> list[OfferConfig]:
    return [o for o in offers if o.gpu in gpus and o.market in markets and o.gpus >= least]


def _none(
    role: str,
    fitting: Sequence[OfferConfig],
    gpus: Sequence[str],
    markets: Sequence[str],
    least: int,
) -> Iterator[Fault]:
    if not fitting:
        what = f"{least} or more of {_either(gpus)}, {_either(markets)}"
        yield "provider.offers", f"none fits {role}: it needs {what}"


def _either(words: Sequence[str]) -> str:
    *some, last = words or ["nothing"]
    return f"{', '.join(some)} or {last}" if some else last


def _at(config: Config, path: str) -> float:
    found: object = config
    for key in path.split("."):
        found = getattr(found, key)
    assert isinstance(found, float)
    return found
