"""Which groups an update takes, over a real log."""

from __future__ import annotations

import pytest

from verlops.messages import (
    Group,
    Sample,
    Sampling,
    Segment,
    encode,
    pack_ids,
    pack_logprobs,
)
from verlops.ports import TopicSpec
from verlops.queues.memory import MemoryQueue
from verlops.versions import Version
from verlops_workers.trainer.batch import from_groups
from verlops_workers.trainer.collect import Collected, Collector, Rules

TOPIC = "t.samples"


def group(
    number: int, *, version: int = 3, attempt: str = "a", run: str = "r", rewards=(1.0, 0.0)
) -> Group:
    samples = [
        Sample(
            index=i,
            token_ids=pack_ids([5, 6]),
            logprobs=pack_logprobs([-0.5, -0.5]),
            segments=[Segment(length=2, version=version, weights="w")],
            finish_reason="stop",
            reward=reward,
            reward_state="unscored" if reward is None else "scored",
        )
        for i, reward in enumerate(rewards)
    ]
    return Group(
        id=f"{number:032x}",
        attempt=attempt,
        run=run,
        prompt_id=f"p{number}",
        prompt_token_ids=pack_ids([9]),
        samples=samples,
        sampling=Sampling(max_tokens=4),
        worker="w",
        instance="i",
    )


@pytest.fixture
def log():
    queue = MemoryQueue()
    queue.ensure([TopicSpec(TOPIC, 2)])
    yield queue
    queue.close()


def put(log, *groups: Group) -> None:
    for one in groups:
        log.publish(TOPIC, [(one.id, encode(one))])


def collect(log, *, batch=4, trained=(), hints=None, staleness=2, wait=0.0) -> Collected:
    parent = Version(run="r", version=3, next_offsets=hints or {})
    rules = Rules(batch=batch, staleness=staleness, min_scored=2)
    collector = Collector(log, TOPIC, parent, set(trained), rules)
    return collector.collect(wait, lambda _count: None)


def numbers(found: Collected) -> list[int]:
    return [int(g.id, 16) for g in found.groups]


def test_whole_groups_oldest_version_first_until_enough(log) -> None:
    put(log, group(1, version=3), group(2, version=1), group(3, version=2), group(4, version=3))
    found = collect(log, batch=3)
    assert numbers(found) == [2, 3]
    assert found.samples == 4


def test_trained_stale_and_foreign_groups_are_never_taken(log) -> None:
    put(log, group(1), group(2, version=0), group(3, run="other"), group(4))
    found = collect(log, trained=[group(1).id])
    assert numbers(found) == [4]
    assert found.counts["stale_groups"] == 1
    assert found.samples == 2


def test_of_two_attempts_the_newest_version_counts_and_ties_go_to_the_first(log) -> None:
    put(log, group(1, version=2, attempt="old"), group(1, version=3, attempt="new"))
    put(log, group(2, attempt="first"), group(2, attempt="second"))
    found = collect(log, batch=99)
    assert {g.attempt for g in found.groups} == {"new", "first"}
    assert found.counts["superseded_groups"] == 2


def test_unscored_samples_are_dropped_and_groups_of_too_few_left_out(log) -> None:
    put(log, group(1, rewards=(1.0, None, 0.0)), group(2, rewards=(1.0, None)))
    found = collect(log, batch=99)
    assert numbers(found) == [1]
    assert [s.reward for s in found.groups[0].samples] == [1.0, 0.0]
    assert found.counts["failed_groups"] == 1


def test_a_broken_record_is_counted_and_stepped_over(log) -> None:
    log.publish(TOPIC, [("junk", b"\xc1")])
    put(log, group(1))
    found = collect(log, batch=99)
    assert numbers(found) == [1]
    assert found.counts["rejected"] == 1


def test_next_offsets_keep_what_a_later_update_needs(log) -> None:
    put(log, *(group(n) for n in range(1, 9)))
    found = collect(log, batch=8)
    assert len(found.groups) == 4
    again = collect(log, batch=99, trained=[g.id for g in found.groups], hints=found.next_offsets)
    assert len(again.groups) == 4
    assert not set(numbers(found)) & set(numbers(again))


def test_samples_that_arrive_while_waiting_are_taken(log) -> None:
    put(log, group(1))
    parent = Version(run="r", version=3)
    collector = Collector(log, TOPIC, parent, set(), Rules(4, 2, 2))

    def arrive(count: int) -> None:
        if count == 2:
            put(log, group(2))

    assert collector.collect(30.0, arrive).samples == 4


def test_too_few_come_back_short(log) -> None:
    put(log, group(1))
    assert collect(log).samples == 2


def test_the_batch_has_every_sample_in_order(log) -> None:
    put(log, group(1, rewards=(1.0, 0.5)), group(2, rewards=(0.0, 0.25)))
    found = collect(log)
    batch = from_groups(found.groups)
    rewards = [s.reward for g in found.groups for s in g.samples]
    assert batch.rewards.tolist() == rewards
    assert batch.groups.tolist() == [0, 0, 1, 1]
    assert batch.tokens(3).tolist() == [9, 5, 6]
    assert batch.behaviour(2).tolist() == [-0.5, -0.5]
