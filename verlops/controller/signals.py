"""What the topics and the artifact store say, folded as it arrives.

Owned by the observer. Keeps the tally, the newest beat of every machine, and the
versions seen; each source may fail by itself, and then says so by raising.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from verlops.controller.cursor import Cursor
from verlops.controller.settings import Ports, Settings
from verlops.errors import CorruptError
from verlops.lineage import list_versions, read_version
from verlops.messages import Beat, Dead, Partial, Receipt, decode
from verlops.ports import Fetched
from verlops.tally import Tally
from verlops.versions import Version

ROWS = "groups"
CURSORS = "tally.cursors"
START = "run.start."
"""Blob: where the topics ended when a run began (``fed``, ``cursors``)."""
BEATS_KEPT = 3
"""Beats are kept for so many times ``dead_after``, so that a restarted controller
still knows who is alive."""


class Signals:
    """The tally, the beats and the versions of one run."""

    def __init__(self, ports: Ports, settings: Settings, run: str) -> None:
        self._ports = ports
        self._topics = settings.topics
        self._dead_after = settings.dead_after
        self.run = run
        self.beats: dict[str, Beat] = {}
        """Instance id → its newest beat."""
        self.serving_since: dict[str, float] = {}
        """Instance id → time of its first beat in a phase other than booting."""
        self.versions: dict[int, Version] = {}
        self._beat_cursor = Cursor(self._topics.beats)
        self._old_beats: dict[int, int] = {}
        self._fresh_start = False
        self.fed_before = 0
        """Prompts on the topic from before this run."""
        self._cursors, self.tally = self._restore(settings)

    def read_samples(self) -> None:
        """Fold new receipts, partials and dead records."""
        for batch in self._cursors["receipts"].read(self._ports.queue):
            self.tally.fold([r for r in _decoded(batch) if isinstance(r, Receipt)])
        for batch in self._cursors["resume"].read(self._ports.queue):
            self.tally.partials([r for r in _decoded(batch) if isinstance(r, Partial)])
        for batch in self._cursors["dead"].read(self._ports.queue):
            self.tally.dead([r for r in _decoded(batch) if isinstance(r, Dead)])

    def read_versions(self) -> int:
        """Read version files that are new; return the newest number (0 before any)."""
        numbers = list_versions(self._ports.store, self.run)
        for number in numbers:
            if number not in self.versions:
                version = read_version(self._ports.store, self.run, number)
                self.tally.trained(number, version.trained_ids())
                self.versions[number] = version
        return numbers[-1] if numbers else 0

    def read_beats(self, now: float) -> None:
        """Take the newest beat of every machine; forget what is long past."""
        for batch in self._beat_cursor.read(self._ports.queue):
            for record in _decoded(batch):
                if isinstance(record, Beat):
                    self._take_beat(record)
            if batch[-1].timestamp < now - BEATS_KEPT * self._dead_after:
                self._old_beats[batch[-1].partition] = batch[-1].offset + 1

    def fresh_beat(self, instance_id: str, now: float) -> Beat | None:
        """The newest beat of a machine unless it is older than ``dead_after``."""
        beat = self.beats.get(instance_id)
        return beat if beat and now - beat.at <= self._dead_after else None

    def unfinished(self, instance_id: str) -> int | None:
        """How many groups a machine last said it held have no receipt; None: it said nothing."""
        beat = self.beats.get(instance_id)
        return None if beat is None else sum(not self.tally.knows(g) for g in beat.held)

    def persist(self) -> None:
        """Save the tally's changed rows with the cursors, in one transaction.

        Also forgets long past beats. Only the controller calls this: a reader of the
        status leaves everything as it is.
        """
        if self._fresh_start:
            self._ports.state.clear_rows(ROWS)
            self._fresh_start = False
        cursors = {name: cursor.offsets for name, cursor in self._cursors.items()}
        blob = msgspec.msgpack.encode({"run": self.run, "cursors": cursors})
        self._ports.state.put_rows(ROWS, self.tally.dirty(), {CURSORS: blob})
        if self._old_beats:
            self._ports.queue.trim(self._topics.beats, self._old_beats)
            self._old_beats = {}

    def _take_beat(self, beat: Beat) -> None:
        self.beats[beat.instance] = beat
        if beat.phase != "booting":
            self.serving_since.setdefault(beat.instance, beat.at)

    def _restore(self, settings: Settings) -> tuple[dict[str, Cursor], Tally]:
        tally = Tally(settings.min_scored, settings.plan.rule.staleness)
        start: dict[str, Any] = msgspec.msgpack.decode(
            self._ports.state.get_blob(f"{START}{self.run}") or msgspec.msgpack.encode({})
        )
        self.fed_before = int(start.get("fed", 0))
        saved: dict[str, Any] = msgspec.msgpack.decode(
            self._ports.state.get_blob(CURSORS) or msgspec.msgpack.encode({})
        )
        offsets = saved.get("cursors", {}) if saved.get("run") == self.run else {}
        if offsets:
            tally = Tally.load(
                self._ports.state.rows(ROWS), settings.min_scored, settings.plan.rule.staleness
            )
        else:
            self._fresh_start = True
            offsets = start.get("cursors", {})
        names = ("receipts", "resume", "dead")
        return {n: Cursor(getattr(self._topics, n), offsets.get(n)) for n in names}, tally


def _decoded(batch: list[Fetched]) -> Iterator[Any]:
    for record in batch:
        if record.value is None:
            continue
        try:
            yield decode(record.value)
        except CorruptError:
            # A record of somebody else's on our topic says nothing; the log keeps it.
            continue
