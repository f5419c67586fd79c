"""Reading a topic from where one stopped, over all its partitions."""

from __future__ import annotations

from collections.abc import Iterator

from verlops.ports import Fetched, Log

BATCH = 2000
"""Records a call: bounds the memory of a controller that was away for long."""


class Cursor:
    """Positions in one topic: partition → next offset. Plain data in ``offsets``."""

    def __init__(self, topic: str, offsets: dict[int, int] | None = None) -> None:
        self.topic = topic
        self.offsets = dict(offsets or {})

    def read(self, log: Log) -> Iterator[list[Fetched]]:
        """Batches of what is new, one partition after the other; moves on as it goes."""
        for partition, end in log.end_offsets(self.topic).items():
            while self.offsets.get(partition, 0) < end:
                start = self.offsets.get(partition, 0)
                batch = log.read(self.topic, partition, start, BATCH)
                # An empty answer below the end is a trimmed or compacted stretch.
                self.offsets[partition] = batch[-1].offset + 1 if batch else end
                if batch:
                    yield batch
