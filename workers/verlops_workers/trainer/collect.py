"""Choosing the groups of one update from the samples topic (DATAPLANE rules 1, 5, 8).

Pure Python: runs while the update process is still importing torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from verlops.attempts import Attempt, beats, state, take
from verlops.errors import CorruptError
from verlops.lineage import list_versions, read_version
from verlops.messages import Group, check_sample, decode
from verlops.ports import ArtifactStore, Log
from verlops.versions import Version

NAP = 0.5
"""Seconds between two looks for the samples that are still missing."""


class Rules(NamedTuple):
    """What makes a group fit for an update."""

    batch: int
    staleness: int
    min_scored: int


class Collected(NamedTuple):
    """The groups of an update and what was left."""

    groups: list[Group]
    """With scored samples only, in training order."""
    samples: int
    next_offsets: dict[str, int]
    """Partition → the first offset that a later update may still need."""
    counts: dict[str, int]


class Collector:
    """Reads the samples topic from the parent's hints on, once; later only what is new."""

    def __init__(
        self, log: Log, topic: str, parent: Version, trained: set[str], rules: Rules
    ) -> None:
        self._log = log
        self._topic = topic
        self._rules = rules
        self._parent = parent.version
        self._run = parent.run
        self._trained = trained
        self._next = {int(p): offset for p, offset in parent.next_offsets.items()}
        self._best: dict[str, tuple[Attempt, Group]] = {}
        self._attempts = 0
        self._broken = 0

    def collect(self, wait: float, tell: Callable[[int], None]) -> Collected:
        """Whole groups until ≥ batch samples, waiting at most ``wait`` seconds for them.

        ``tell`` gets the number of usable samples at each look. The result may be short.
        """
        until = time.monotonic() + wait
        while True:
            self._read()
            usable = self._usable()
            count = sum(attempt.scored for attempt in usable)
            tell(count)
            if count >= self._rules.batch or time.monotonic() > until:
                return self._result(usable)
            time.sleep(NAP)

    def _read(self) -> None:
        for partition, end in self._log.end_offsets(self._topic).items():
            start = self._next.get(partition, 0)
            while start < end:
                batch = self._log.read(self._topic, partition, start)
                if not batch:
                    break
                for record in batch:
                    if record.offset < end:
                        self._offer(record.value, record.partition, record.offset)
                start = batch[-1].offset + 1
            self._next[partition] = max(start, end)

    def _offer(self, value: bytes | None, partition: int, offset: int) -> None:
        """Consider one record as the attempt that counts for its group."""
        try:
            group = decode(value or b"")
            if not isinstance(group, Group):
                raise CorruptError("not a group")
            for sample in group.samples:
                check_sample(sample)
        except CorruptError:
            self._broken += 1
            return
        if group.run != self._run:
            return  # of an earlier run under the same name: another policy's samples
        scored = [s for s in group.samples if s.reward_state == "scored" and s.reward is not None]
        found = Attempt(
            group.id,
            group.attempt,
            group.oldest_version(),
            partition,
            offset,
            len(group.samples),
            len(scored),
        )
        self._attempts += 1
        old = self._best.get(group.id)
        if old is None or beats(found, old[0], min_scored=self._rules.min_scored):
            self._best[group.id] = (found, group)

    def _state(self, attempt: Attempt) -> str:
        return state(
            attempt,
            version=self._parent,
            staleness=self._rules.staleness,
            min_scored=self._rules.min_scored,
            trained=self._trained,
        )

    def _usable(self) -> list[Attempt]:
        return [a for a, _ in self._best.values() if self._state(a) == "usable"]

    def _result(self, usable: list[Attempt]) -> Collected:
        taken = take(usable, self._rules.batch)
        spent = {attempt.group_id for attempt in taken}
        groups = [_scored_only(self._best[attempt.group_id][1]) for attempt in taken]
        states = [self._state(a) for a, _ in self._best.values()]
        counts = {
            "stale_groups": states.count("stale"),
            "failed_groups": states.count("failed"),
            "superseded_groups": self._attempts - len(self._best),
            "uniform_groups": sum(_uniform(group) for group in groups),
            "rejected": self._broken,
        }
        kept = [a for a in usable if a.group_id not in spent]
        samples = sum(attempt.scored for attempt in taken)
        return Collected(groups, samples, self._offsets(kept), counts)

    def _offsets(self, kept: list[Attempt]) -> dict[str, int]:
        found = dict(self._next)
        for attempt in kept:
            found[attempt.partition] = min(found[attempt.partition], attempt.offset)
        return {str(partition): offset for partition, offset in sorted(found.items())}


def trained_set(store: ArtifactStore, run: str) -> set[str]:
    """Ids of every group that any committed version of the run has spent."""
    return {
        group_id
        for number in list_versions(store, run)
        for group_id in read_version(store, run, number).trained_ids()
    }


def _scored_only(group: Group) -> Group:
    """Failed and unscored samples are dropped, never counted as zero."""
    samples = [s for s in group.samples if s.reward_state == "scored" and s.reward is not None]
    return msgspec.structs.replace(group, samples=samples)


def _uniform(group: Group) -> bool:
    return len({sample.reward for sample in group.samples}) == 1
