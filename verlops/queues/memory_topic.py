"""One topic of the in-memory log: partitions, compaction, groups as plain data.

Used by ``memory`` alone, which holds the lock; never locks, never reads a clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from verlops.errors import NotFoundError
from verlops.model import QueueStats
from verlops.ports import Fetched, Position, TopicSpec
from verlops.queues.groups import Member
from verlops.queues.partition import (
    RATE_BUCKET,
    RATE_WINDOW,
    TOMBSTONES_KEPT,
    bucket,
    check_sizes,
    lag,
    last_of_each,
    partition_of,
    rate,
)


class MemoryTopic:
    """The partitions and groups of one topic."""

    def __init__(self, spec: TopicSpec, now: float) -> None:
        self.spec = spec
        self.created_at = now
        self.groups: defaultdict[str, Membership] = defaultdict(Membership)
        self._partitions: list[MemoryPartition] = []
        self._traffic = Traffic()

    def change(self, spec: TopicSpec) -> None:
        """Take over the settings and grow; partitions never become fewer."""
        while len(self._partitions) < spec.partitions:
            self._partitions.append(MemoryPartition())
        self.spec = spec._replace(partitions=len(self._partitions))
        if spec.compact:
            for log in self._partitions:
                log.keep_newest(None)

    def partition(self, number: int) -> MemoryPartition:
        """One partition. Raises NotFoundError."""
        if not 0 <= number < len(self._partitions):
            raise NotFoundError(f"topic '{self.spec.name}' has no partition {number}")
        return self._partitions[number]

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Partition → (first offset kept, next offset)."""
        return {p: (log.begin, log.end) for p, log in enumerate(self._partitions)}

    def append(self, records: Sequence[tuple[str, bytes | None]], now: float) -> list[Position]:
        """Append all or nothing; compact, expire."""
        check_sizes(self.spec.name, records, self.spec.max_bytes)
        places = []
        for key, value in records:
            partition = partition_of(key, len(self._partitions))
            log = self._partitions[partition]
            places.append(Position(partition, log.end))
            log.append(Fetched(self.spec.name, *places[-1], key, value, now))
        self._traffic.add(now, len(records))
        if self.spec.compact:
            self._compact([key for key, _ in records], places, now)
        if self.spec.retention_s is not None:
            for log in self._partitions:
                log.expire(now - self.spec.retention_s)
        return places

    def stats(self, group: str, now: float) -> QueueStats:
        """The backlog of a group."""
        known, held = self.ranges(), self.groups[group]
        waiting = {p: lag(held.commits.get(p), *span) for p, span in known.items()}
        heads = [self._partitions[p].read(known[p][1] - n, 1) for p, n in waiting.items() if n]
        oldest = [record.timestamp for head in heads for record in head]
        return QueueStats(
            lag=sum(waiting.values()),
            oldest_age_s=max(0.0, now - min(oldest)) if oldest else None,
            in_per_s=rate(self._traffic.counts, now, self.created_at),
            out_per_s=rate(held.traffic.counts, now, self.created_at),
            partitions=len(known),
            end=sum(end for _, end in known.values()),
        )

    def _compact(self, keys: Sequence[str], places: Sequence[Position], now: float) -> None:
        for index in last_of_each(keys):
            self._partitions[places[index].partition].keep_newest(keys[index])
        for log in self._partitions:
            log.drop_tombstones(now - TOMBSTONES_KEPT)


class MemoryPartition:
    """Records in order of their offsets, which compaction leaves gaps in."""

    def __init__(self) -> None:
        self.begin = 0
        self.end = 0
        self._offsets: list[int] = []
        self._records: list[Fetched] = []

    def append(self, record: Fetched) -> None:
        """Add a record at the end."""
        self._offsets.append(record.offset)
        self._records.append(record)
        self.end = record.offset + 1

    def read(self, start: int, limit: int) -> list[Fetched]:
        """Up to ``limit`` records from ``start`` on."""
        first = bisect_left(self._offsets, start)
        return self._records[first : first + max(0, limit)]

    def begin_at(self, offset: int) -> None:
        """Forget what lies below ``offset``; past the end is the end."""
        self.begin = max(self.begin, min(offset, self.end))
        gone = bisect_left(self._offsets, self.begin)
        del self._offsets[:gone], self._records[:gone]

    def expire(self, horizon: float) -> None:
        """Forget the oldest records while they are older than ``horizon``."""
        old = next((r.offset for r in self._records if r.timestamp >= horizon), self.end)
        self.begin_at(old if self._records else self.begin)

    def keep_newest(self, key: str | None) -> None:
        """Drop all but the newest record of this key (None: of every key)."""
        newest = {record.key: record.offset for record in self._records}
        self._keep(lambda r: r.offset == newest[r.key] or key not in (None, r.key))

    def drop_tombstones(self, horizon: float) -> None:
        """Drop deletions older than ``horizon``."""
        self._keep(lambda r: r.value is not None or r.timestamp >= horizon)

    def _keep(self, wanted: Callable[[Fetched], bool]) -> None:
        self._records = [record for record in self._records if wanted(record)]
        self._offsets = [record.offset for record in self._records]


class Membership:
    """Members, ownership and commits of one group."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.owners: dict[int, str] = {}
        self.commits: dict[int, int] = {}
        self.traffic = Traffic()

    def beat(self, session: str, now: float) -> None:
        """A heartbeat; of a member that is gone it changes nothing."""
        if session in self.members:
            self.members[session] = self.members[session]._replace(beat_at=now)

    def remove(self, session: str) -> None:
        """Drop a member and what it owns."""
        self.members.pop(session, None)
        self.owners = {p: owner for p, owner in self.owners.items() if owner != session}


class Traffic:
    """Records counted by bucket of time, for as long as a rate needs them."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def add(self, now: float, records: int) -> None:
        """Count records at ``now``."""
        this = bucket(now)
        self.counts[this] += records
        if len(self.counts) > 2 * RATE_WINDOW // RATE_BUCKET:
            kept = [b for b in self.counts if b > this - RATE_WINDOW // RATE_BUCKET]
            self.counts = Counter({b: self.counts[b] for b in kept})
