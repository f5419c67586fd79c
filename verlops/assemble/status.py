"""What ``verlops status`` says, as plain data. Changes nothing.

The live view, the JSON and the closing summary are all made from it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from verlops.assemble.objects import settings
from verlops.assemble.session import Session
from verlops.controller.observe import Observer
from verlops.controller.signals import Signals
from verlops.model import MICRO, Event, Instance, Memory, Observation

SCHEMA_VERSION = 1
DECISIONS = 10


def observe(session: Session) -> tuple[Observer, Observation, Memory]:
    """One observation without acting or persisting anything."""
    run = session.need_run()
    config = settings(session.config)
    observer = Observer(session.ports, config, Signals(session.ports, config, run))
    memory, _ = session.ports.state.load()
    return observer, observer.observe(session.ports.clock.now(), memory), memory


def status(session: Session) -> dict[str, Any]:
    """The whole status as JSON-like data."""
    observer, observation, memory = observe(session)
    return describe(session, observer, observation, memory)


def describe(
    session: Session, observer: Observer, observation: Observation, memory: Memory
) -> dict[str, Any]:
    """An observation in the shape of ``status --json`` (UX.md)."""
    config = session.config
    tally = observation.samples
    return {
        "schema_version": SCHEMA_VERSION,
        "name": config.name,
        "run": memory.run,
        "at": observation.now,
        "policy_version": observation.version,
        "missing": sorted(observation.missing),
        "prompts": {
            "backlog": observation.queue.lag if observation.queue.ok else None,
            "partitions": observation.queue.partitions,
            "oldest_age_s": observation.queue.oldest_age_s,
            "fed": observation.prompts.total(),
            "states": {
                name: getattr(observation.prompts, name)
                for name in observation.prompts.__struct_fields__
            },
        },
        "samples": {
            "usable": tally.usable,
            "needed": config.trainer.batch,
            "outstanding": tally.outstanding,
            "stale": tally.stale,
            "superseded": tally.superseded,
            "failed": tally.failed,
            "rejected": tally.rejected,
            "trained": tally.trained,
            "group_attempts": tally.attempts,
        },
        "rollout": _pool(session, observation, memory),
        "trainer": {
            "state": observation.trainer.state,
            "instance_id": observation.trainer.instance_id,
            "launches": observation.trainer.launches,
            "failures": observation.trainer.failures,
            "progress": observation.trainer.progress,
        },
        "spend": _spend(session, observer, observation),
        "instances": [_instance(i) for i in observation.instances if i.phase != "gone"],
        "versions": [_version(observer, n) for n in sorted(observer.signals.versions) if n],
        "preemptions": preemptions(list(session.ports.state.events())),
        "decisions": [
            {"at": e.at, "action": e.data.get("action", ""), "reason": e.reason}
            for e in list(session.ports.state.events(kinds=("decision",)))[-DECISIONS:]
        ],
    }


def preemptions(events: list[Event]) -> dict[str, int]:
    """Rollout machines that were taken away: after a notice, killed, or vanished."""
    ended = [e for e in events if e.kind == "ended" and e.data.get("role") == "rollout"]
    noticed = sum(bool(e.data.get("noticed")) for e in ended)
    counts = Counter(e.reason for e in ended if not e.data.get("noticed"))
    return {"noticed": noticed, "killed": counts["killed"], "vanished": counts["vanished"]}


def _pool(session: Session, observation: Observation, memory: Memory) -> dict[str, Any]:
    phases = Counter(i.phase for i in observation.of_role("rollout"))
    pool = session.config.rollout.pool
    return {
        "desired": memory.desired.get("rollout"),
        "ready": phases["ready"],
        "booting": phases["booting"] + phases["pending"],
        "draining": phases["draining"],
        "doomed": phases["doomed"],
        "min": pool.min,
        "max": min(pool.max, session.config.partitions()),
    }


def _spend(session: Session, observer: Observer, observation: Observation) -> dict[str, Any]:
    now = observation.now
    per_hour = sum(i.offer.price for i in observation.instances if i.phase != "gone")
    midnight = now - now % 86400
    today = observer.ledger.spent(now) - observer.ledger.spent(midnight)
    return {
        "currency": session.config.currency,
        "total": observation.spent / MICRO,
        "today": today / MICRO,
        "per_hour": per_hour / MICRO,
        "forecast_day": (today + per_hour * (midnight + 86400 - now) / 3600) / MICRO,
        "as_if_rented": session.config.as_if_rented,
    }


def _instance(instance: Instance) -> dict[str, Any]:
    return {
        "id": instance.id,
        "role": instance.role,
        "phase": instance.phase,
        "market": instance.offer.market,
        "type": f"{instance.offer.gpus}x{instance.offer.gpu}",
        "price": instance.offer.price / MICRO,
        "version": instance.policy_version,
        "in_flight": instance.in_flight,
        "since": instance.launched_at,
    }


def _version(observer: Observer, number: int) -> dict[str, Any]:
    version = observer.signals.versions[number]
    return {
        "version": number,
        "committed_at": version.committed_at,
        "samples": version.counts.get("samples"),
        "groups": version.counts.get("groups"),
        "reward_mean": version.metrics.get("reward_mean"),
        "kl": version.metrics.get("kl"),
        "clip_fraction": version.metrics.get("clip_fraction"),
        "staleness_mean": version.metrics.get("staleness_mean"),
    }
