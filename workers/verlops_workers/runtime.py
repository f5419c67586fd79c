"""What every role on a machine shares: its engines, the control record, the beat.

The engines come through the registry, so that a worker needs no module of the control
side by name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from verlops import registry
from verlops.config import Config
from verlops.errors import CorruptError
from verlops.messages import Beat, Control, decode, encode
from verlops.ports import ArtifactStore, Log, Producer, Queue
from verlops_workers.host import Host


def open_queue(config: Config) -> Queue:
    """The message engine of a config."""
    queue: Queue = registry.load("QUEUES", config.queue.kind).open(config)
    return queue


def open_store(config: Config) -> ArtifactStore:
    """The artifact store of a config."""
    store: ArtifactStore = registry.load("ARTIFACTS", config.artifacts.kind).open(config)
    return store


class ControlWatch:
    """Follows the control topic for one machine.

    The record that holds is the one for the worker id, else for its role, else for
    ``*``. A record whose fence is lower than the highest seen is ignored.
    """

    def __init__(self, log: Log, host: Host) -> None:
        self._log = log
        self._topic = host.topics.control
        self._targets = (host.worker_id, host.spec.role, "*")
        self._next: dict[int, int] = {}
        self._held: dict[str, Control] = {}
        self.fence = host.spec.fence
        self.seen_at: float | None = None
        """Local time at which the newest record for us was first seen."""

    def poll(self) -> Control | None:
        """Read what is new; return the record that holds now, or None before any."""
        for partition, end in self._log.end_offsets(self._topic).items():
            start = self._next.get(partition, 0)
            while start < end:
                batch = self._log.read(self._topic, partition, start)
                if not batch:
                    break
                for record in batch:
                    self._take(record.key, record.value)
                start = batch[-1].offset + 1
            self._next[partition] = max(start, end)
        return self.current()

    def current(self) -> Control | None:
        """The record that holds, without reading."""
        return next((self._held[t] for t in self._targets if t in self._held), None)

    def _take(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._held.pop(key, None)
            return
        try:
            record = decode(value)
        except CorruptError:
            return
        if not isinstance(record, Control) or record.fence < self.fence:
            return
        if record.fence > self.fence:
            self.fence = record.fence
            self._held = {k: r for k, r in self._held.items() if r.fence >= record.fence}
        if record.target in self._targets:
            self._held[record.target] = record
            self.seen_at = time.time()


class Beater:
    """Publishes a beat every ``every`` seconds, and at once when the phase changes."""

    def __init__(self, producer: Producer, host: Host, every: float) -> None:
        self._producer = producer
        self._topic = host.topics.beats
        self._base = Beat(
            worker=host.worker_id,
            instance=host.instance_id,
            role=host.spec.role,
            phase="booting",
            at=0.0,
        )
        self._every = every
        self._last: tuple[str, float] = ("", 0.0)

    def due(self, phase: str) -> bool:
        """Whether a beat should be sent now."""
        last_phase, last_at = self._last
        return phase != last_phase or time.time() - last_at >= self._every

    def beat(self, phase: str, fields: Mapping[str, object] | None = None) -> None:
        """Send one beat with these fields."""
        now = time.time()
        changes: dict[str, object] = {"phase": phase, "at": now, **(fields or {})}
        record = msgspec.structs.replace(self._base, **changes)
        self._producer.publish(self._topic, [(record.worker, encode(record))])
        self._last = (phase, now)
