"""How fast the embedded log carries finished groups: publish, receipt, commit.

A rollout worker's path for groups of 8 responses of 64 tokens, 16 groups a batch: the
groups are published to the samples topic, their receipts to theirs, and the prompts'
offsets committed; each of the three is durable before the next. Then what an idle worker
and the controller ask all the time. Usage: ``python bench/queue_bench.py [seconds]``.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from verlops.messages import (
    Group,
    Prompt,
    Receipt,
    Sample,
    Sampling,
    Segment,
    encode,
    group_id,
    pack_ids,
    pack_logprobs,
)
from verlops.ports import Fetched, Position, TopicSpec
from verlops.queues.sqlite import SqliteQueue

GROUP, TOKENS, BATCH, PARTITIONS = 8, 64, 16, 20


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        queue = SqliteQueue(Path(folder))
        wide = [TopicSpec(name, PARTITIONS) for name in ("prompts", "samples")]
        queue.ensure([*wide, TopicSpec("receipts", 1), TopicSpec("beats", 1)])
        groups, spent, size = carry(queue, seconds)
        print(f"publish + receipt + commit   {groups / spent:9.0f} groups/s")
        print(f"                             {groups * GROUP / spent:9.0f} samples/s")
        print(f"one group                    {size:9} bytes, batches of {BATCH}")
        consumer = queue.join("prompts", "bench", member="idle")
        consumer.poll(1)
        consumer.pause(range(PARTITIONS))
        rows: dict[str, Callable[[], object]] = {
            "poll, idle": lambda: consumer.poll(16),
            "end_offsets": lambda: queue.end_offsets("samples"),
            "read at the end": lambda: queue.read("receipts", 0, groups),
            "stats": lambda: queue.stats("prompts", "workers"),
            "publish one small record": lambda: queue.publish("beats", [("w", b"x" * 200)]),
        }
        for name, call in rows.items():
            print(f"{name:28} {1e6 * timed(call):9.0f} µs")
        queue.close()


def carry(queue: SqliteQueue, seconds: float) -> tuple[int, float, int]:
    """Groups carried, seconds that took (without feeding), bytes of a group."""
    consumer = queue.join("prompts", "workers", member="bench")
    groups, spent, size = 0, 0.0, 0
    while spent < seconds:
        feed(queue, groups, 50 * BATCH)
        start = time.perf_counter()
        while prompts := consumer.poll(BATCH):
            size = finish(queue, consumer.commit, prompts)
            groups += len(prompts)
        spent += time.perf_counter() - start
    consumer.close()
    return groups, spent, size


def feed(queue: SqliteQueue, first: int, count: int) -> None:
    records = [
        Prompt(
            id=f"p{n}", run="r", group_size=GROUP, sampling=Sampling(max_tokens=TOKENS), text="x"
        )
        for n in range(first, first + count)
    ]
    queue.publish("prompts", [(record.id, encode(record)) for record in records])


def finish(
    queue: SqliteQueue, commit: Callable[[dict[int, int]], None], prompts: list[Fetched]
) -> int:
    """One batch, in the order of DATAPLANE rule 2; the bytes of a group."""
    groups = [(group_id("r", prompt.key, 0), prompt) for prompt in prompts]
    data = [(key, encode(made(key, prompt.key))) for key, prompt in groups]
    places = queue.publish("samples", data)
    receipts = [receipt(key, prompt, at) for (key, prompt), at in zip(groups, places, strict=True)]
    queue.publish("receipts", [(record.group_id, encode(record)) for record in receipts])
    ends: dict[int, int] = {}
    for prompt in prompts:
        ends[prompt.partition] = max(ends.get(prompt.partition, 0), prompt.offset + 1)
    commit(ends)
    return len(data[0][1])


def made(key: str, prompt: str) -> Group:
    sample = Sample(
        index=0,
        token_ids=pack_ids(range(TOKENS)),
        logprobs=pack_logprobs([-0.5] * TOKENS),
        segments=[Segment(length=TOKENS, version=1, weights="0" * 64)],
        finish_reason="stop",
        reward=1.0,
        reward_state="scored",
    )
    return Group(
        id=key,
        attempt="a",
        run="r",
        prompt_id=prompt,
        prompt_token_ids=pack_ids(range(16)),
        samples=[sample] * GROUP,
        sampling=Sampling(max_tokens=TOKENS),
        worker="w",
        instance="i",
    )


def receipt(key: str, prompt: Fetched, place: Position) -> Receipt:
    return Receipt(
        group_id=key,
        attempt="a",
        prompt_id=prompt.key,
        prompt_partition=prompt.partition,
        prompt_offset=prompt.offset,
        partition=place.partition,
        offset=place.offset,
        oldest_version=1,
        newest_version=1,
        samples=GROUP,
        scored=GROUP,
        worker="w",
        instance="i",
    )


def timed(call: Callable[[], object], rounds: int = 300) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    return (time.perf_counter() - start) / rounds


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
