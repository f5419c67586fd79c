"""The cost report of an environment: the journal and the tally become a report."""

from __future__ import annotations

from itertools import pairwise

from verlops.assemble.objects import settings
from verlops.assemble.session import Session
from verlops.config import Config
from verlops.controller.ledger import Ledger
from verlops.controller.signals import Signals
from verlops.cost import Line, bill
from verlops.model import Event
from verlops.report import Baselines, Delivered, Report, build

DAY = 86400


def cost_report(
    session: Session,
    *,
    by: str = "role",
    since: float | None = None,
    until: float | None = None,
) -> Report:
    """The report over [since, until), or over everything. Changes nothing."""
    config = session.config
    signals = Signals(session.ports, settings(config), session.need_run())
    version = signals.read_versions()
    signals.read_samples()
    events = Ledger(session.ports.state, 0).refresh()
    delivered = _delivered(signals, since, until)
    return build(
        _lines(events, session.ports.clock.now(), by, since, until, delivered),
        signals.tally.tokens_by_instance(version),
        delivered,
        _baselines(config),
        currency=config.currency,
        by=by,
        as_if_rented=config.as_if_rented,
    )


def _lines(
    events: list[Event],
    now: float,
    by: str,
    since: float | None,
    until: float | None,
    delivered: Delivered,
) -> list[Line]:
    """Lines cut where the key changes: amounts of windows add up exactly."""
    low = since if since is not None else min((e.at for e in events), default=now)
    high = until if until is not None else now
    cuts: list[float] = []
    if by == "day":
        cuts = [float(day * DAY) for day in range(int(low // DAY) + 1, int(high // DAY) + 1)]
    elif by == "update":
        cuts = [at for _, at in delivered.committed]
    edges = [low, *(c for c in sorted(cuts) if low < c < high), high]
    return [line for a, b in pairwise(edges) for line in bill(events, now, since=a, until=b)]


def _delivered(signals: Signals, since: float | None, until: float | None) -> Delivered:
    low = float("-inf") if since is None else since
    high = float("inf") if until is None else until
    numbered = ((n, v) for n, v in sorted(signals.versions.items()) if n)
    found = [(n, v) for n, v in numbered if low <= v.committed_at < high]
    return Delivered(
        samples=sum(v.counts.get("samples", 0) for _, v in found),
        tokens=sum(v.counts.get("tokens", 0) for _, v in found),
        committed=tuple((n, v.committed_at) for n, v in found),
    )


def _baselines(config: Config) -> Baselines:
    base = config.baseline
    return Baselines(
        gpus=base.gpus,
        gpu=base.gpu,
        price=base.price.micro,
        samples_per_hour=base.samples_per_hour,
        train_gpu_seconds_per_sample=base.train_gpu_seconds_per_sample,
        rollout_samples_per_gpu_hour=base.rollout_samples_per_gpu_hour,
    )
