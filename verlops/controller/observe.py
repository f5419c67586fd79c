"""From the ports to one Observation. A source that fails is named in ``missing``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from verlops.controller.ledger import Ledger
from verlops.controller.settings import Ports, Settings
from verlops.controller.signals import Signals
from verlops.errors import VerlopsError
from verlops.model import (
    Instance,
    Memory,
    Observation,
    Offer,
    PromptStates,
    QueueStats,
    SampleStats,
    TrainerStats,
)

T = TypeVar("T")

RATE_WEIGHT = 0.2
"""Weight of the newest reading in the moving average of the finishing rate."""


class Observer:
    """Reads everything once a step. Keeps the last good reading of each source."""

    def __init__(self, ports: Ports, settings: Settings, signals: Signals) -> None:
        self._ports = ports
        self._settings = settings
        self.signals = signals
        self.ledger = Ledger(ports.state, settings.minimum_billed_s)
        self._instances: tuple[Instance, ...] = ()
        self._offers: tuple[Offer, ...] = ()
        self._missing: set[str] = set()
        self._last_done: tuple[float, int] | None = None

    def observe(self, now: float, memory: Memory) -> Observation:
        """The world at ``now``."""
        self._missing = set()
        queue = self._queue()
        self._try("samples", self.signals.read_samples, None)
        version = self._try("versions", self.signals.read_versions, memory.version)
        self._try("beats", lambda: self.signals.read_beats(now), None)
        self._offers = self._try("offers", self._list_offers, self._offers)
        self._instances = self._try("instances", self._list_instances, self._instances)
        instances = tuple(self._joined(i, memory, now) for i in self._instances)
        samples, prompts = self._counts(version, instances, queue, now)
        return Observation(
            now=now,
            instances=instances,
            offers=self._offers,
            queue=queue,
            samples=samples,
            prompts=prompts,
            trainer=self._trainer(instances, memory),
            version=version,
            spent=self.ledger.spent(now),
            missing=frozenset(self._missing),
            groups_per_s=self._rate(now, samples, instances, memory),
        )

    def _try(self, source: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except VerlopsError:
            self._missing.add(source)
            return otherwise

    def _queue(self) -> QueueStats:
        topics = self._settings.topics
        stats = self._ports.queue.stats(topics.prompts, topics.rollout_group)
        if not stats.ok:
            self._missing.add("queue")
        return stats

    def _list_offers(self) -> tuple[Offer, ...]:
        return tuple(self._ports.provider.offers())

    def _list_instances(self) -> tuple[Instance, ...]:
        return tuple(self._ports.provider.instances())

    def _joined(self, instance: Instance, memory: Memory, now: float) -> Instance:
        if instance.phase == "gone":
            return instance
        beat = self.signals.beats.get(instance.id)
        since = self.signals.serving_since.get(instance.id)
        phase = instance.phase
        if phase == "ready" and since is None and memory.seen.get(instance.id) != "ready":
            phase = "booting"
        if instance.id in memory.draining and phase != "doomed":
            phase = "draining"
        fresh = self.signals.fresh_beat(instance.id, now)
        return instance.but(
            phase=phase,
            ready_at=since or (instance.ready_at if phase != "booting" else None),
            policy_version=beat.version if beat else None,
            in_flight=fresh.in_flight if fresh else None,
            drained=bool(beat and beat.phase == "drained"),
            beat_at=beat.at if beat else None,
        )

    def _counts(
        self, version: int, instances: tuple[Instance, ...], queue: QueueStats, now: float
    ) -> tuple[SampleStats, PromptStates]:
        held: set[str] = set()
        samples = 0
        for instance in instances:
            beat = self.signals.fresh_beat(instance.id, now)
            if instance.role == "rollout" and instance.phase != "gone" and beat:
                held.update(beat.held)
                samples += beat.in_flight_samples
        tally = self.signals.tally
        fed = max(0, queue.end - self.signals.fed_before)
        unfinished = {group for group in held if not tally.knows(group)}
        # The version files say what was trained: a group may be trained before its
        # receipt exists, when its worker died between the two.
        trained = sum(v.counts.get("samples", 0) for v in self.signals.versions.values())
        return (
            tally.samples(version, in_flight_samples=samples).but(trained=trained),
            tally.prompts(version, fed=fed, leased=len(unfinished)),
        )

    def _trainer(self, instances: tuple[Instance, ...], memory: Memory) -> TrainerStats:
        alive = [i for i in instances if i.role == "trainer" and i.phase != "gone"]
        base = TrainerStats(launches=memory.trainer_launches, failures=memory.trainer_failures)
        if not alive:
            return base
        beat = self.signals.beats.get(alive[0].id)
        ending = beat is not None and beat.phase == "done"
        starting = alive[0].phase in ("pending", "booting")
        return base.but(
            state="ending" if ending else "launching" if starting else "running",
            instance_id=alive[0].id,
            progress=f"{beat.phase} {beat.progress}".strip() if beat else "",
        )

    def _rate(
        self,
        now: float,
        samples: SampleStats,
        instances: tuple[Instance, ...],
        memory: Memory,
    ) -> float | None:
        """Finished groups per second per ready worker: a moving average over steps."""
        ready = sum(i.role == "rollout" and i.phase == "ready" for i in instances)
        last, self._last_done = self._last_done, (now, samples.attempts)
        if last is None or not ready or now <= last[0]:
            return memory.rate
        rate = (samples.attempts - last[1]) / (now - last[0]) / ready
        return rate if memory.rate is None else memory.rate + RATE_WEIGHT * (rate - memory.rate)
