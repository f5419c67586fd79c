"""What every embedded engine shares about topics: placing, checking, starting, measuring.

Used by the SQLite and the in-memory engine; the partitioner is Kafka's, so that a key
lies in the same partition whichever engine carries it. Pure; never touches storage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from verlops.errors import ConfigError, TooLargeError
from verlops.messages import MAX_RECORD
from verlops.ports import TopicSpec

TOMBSTONES_KEPT = 86_400.0
"""Seconds that a deletion stays in a compacted topic, so that slow readers learn of it
(Kafka's default of delete.retention.ms)."""

RATE_BUCKET = 5
"""Seconds of one counter of traffic."""

RATE_WINDOW = 60
"""Seconds over which the in and out rates of a topic are measured."""

_NAME = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,199}")


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key: Kafka's default partitioner."""
    return positive_hash(key) % partitions


def positive_hash(key: str) -> int:
    """murmur2 of the key with the sign bit cleared; modulo partitions it places the key."""
    return murmur2(key.encode()) & 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """The unsigned 32-bit hash of ``org.apache.kafka.common.utils.Utils.murmur2``."""
    mix, mask, tail = 0x5BD1E995, 0xFFFFFFFF, len(data) & ~3
    value = 0x9747B28C ^ len(data)
    for start in range(0, tail, 4):
        word = int.from_bytes(data[start : start + 4], "little") * mix & mask
        value = value * mix & mask ^ (word ^ word >> 24) * mix & mask
    if tail < len(data):
        value = (value ^ int.from_bytes(data[tail:], "little")) * mix & mask
    value = (value ^ value >> 13) * mix & mask
    return value ^ value >> 15


def is_name(topic: str) -> bool:
    """Whether a topic may be called so."""
    return _NAME.fullmatch(topic) is not None


def check_spec(spec: TopicSpec) -> None:
    """Raise ConfigError for a topic that no engine could hold."""
    if not is_name(spec.name):
        raise ConfigError(
            f"'{spec.name}' is no name for a topic",
            hint="1 to 200 of a-z, A-Z, 0-9, '.', '_' and '-', not starting with '.'",
        )
    if spec.partitions < 1:
        raise ConfigError(f"topic '{spec.name}': {spec.partitions} partitions, at least 1 needed")
    if spec.retention_s is not None and spec.retention_s <= 0:
        raise ConfigError(f"topic '{spec.name}': retention of {spec.retention_s} s is not positive")


def check_sizes(
    topic: str, records: Iterable[tuple[str, bytes | None]], max_bytes: int | None
) -> None:
    """Raise VerlopsError if a record's value is longer than the topic allows."""
    bound = MAX_RECORD if max_bytes is None else min(max_bytes, MAX_RECORD)
    for key, value in records:
        if value is not None and len(value) > bound:
            raise TooLargeError(
                f"record '{key}' of {len(value)} bytes is over the {bound} of topic '{topic}'",
                hint="nothing was published; shorten the record or raise the topic's max_bytes",
            )


def check_offsets(offsets: Mapping[int, int]) -> None:
    """Raise VerlopsError for an offset that no record can have."""
    for partition, offset in offsets.items():
        if offset < 0:
            raise TooLargeError(f"cannot commit offset {offset} of partition {partition}")


def start_offset(committed: int | None, begin: int, end: int) -> int:
    """Where a group goes on in a partition whose log covers [begin, end).

    Without a commit, below the log (trimmed) or above it (the topic was made anew) that
    is the first record there is.
    """
    return begin if committed is None or not begin <= committed <= end else committed


def lag(committed: int | None, begin: int, end: int) -> int:
    """Records that the group has still to consume (cloud.md §7, case KAF-1); never negative.

    An upper bound where compaction has left gaps.
    """
    return end - start_offset(committed, begin, end)


def bucket(now: float) -> int:
    """The number of the traffic counter that ``now`` falls into."""
    return int(now // RATE_BUCKET)


def rate(counts: Mapping[int, int], now: float, since: float) -> float | None:
    """Records per second over the last minute, from counters by bucket.

    ``since`` is when counting began; None when that is less than one bucket ago.
    """
    last = bucket(now)
    first = last - RATE_WINDOW // RATE_BUCKET + 1
    covered = now - max(since, first * RATE_BUCKET)
    if covered < RATE_BUCKET:
        return None
    return sum(n for number, n in counts.items() if first <= number <= last) / covered


def last_of_each(keys: Sequence[str]) -> list[int]:
    """Indices of the last occurrence of every key, in order."""
    return sorted({key: index for index, key in enumerate(keys)}.values())
