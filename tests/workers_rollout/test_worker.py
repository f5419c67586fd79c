"""The worker's promises: proof before commit, whole groups, back-pressure, leaving."""

from __future__ import annotations

import time

import msgspec

from verlops.messages import group_id, prompt_id, unpack_logprobs
from verlops.ports import EngineStats, RawSample
from verlops_workers.host import write_atomic
from verlops_workers.rollout.tokens import ByteTokens


def test_kaf_3_an_idle_group_has_no_backlog_and_a_restart_makes_nothing_new(bench) -> None:
    bench.tell()
    bench.feed(10)
    first = bench.worker()
    bench.turn(lambda: len(bench.receipts()) == 10 and bench.lag() == 0, "ten receipts")
    assert (
        sum(bench.queue.committed(bench.topics.prompts, bench.topics.rollout_group).values()) == 10
    )
    assert len({g.prompt_id for g in bench.groups()}) == 10
    first._close_consumer()
    second = bench.worker("m-2")
    bench.turn(lambda: second._consumer is not None, "the second to join", second)
    for _ in range(20):
        second.turn()
    assert len(bench.groups()) == 10


def test_a_group_says_all_about_itself(bench) -> None:
    bench.tell()
    bench.feed(1)
    bench.worker()
    bench.turn(lambda: bench.receipts() != [], "a receipt")
    (group,), (receipt,) = bench.groups(), bench.receipts()
    assert group.id == receipt.group_id == group_id("r", "p0", 0)
    assert bytes(group.prompt_token_ids[::4]) == b"prompt 0"
    assert [s.reward for s in group.samples] == [1.0, 1.0]
    assert group.scorer == "fake@1"
    assert {(s.segments[0].version, s.segments[0].weights) for s in group.samples} == {(0, "w0")}
    assert (receipt.samples, receipt.scored, receipt.uniform) == (2, 2, True)
    record = bench.queue.read(bench.topics.samples, receipt.partition, receipt.offset, 1)[0]
    assert record.key == group.id
    assert all(max(unpack_logprobs(s.logprobs)) <= 0 for s in group.samples)
    assert bench.reward.tokens[0] == "Bearer secret"


def test_killed_between_publish_and_commit_makes_a_second_attempt(bench, monkeypatch) -> None:
    bench.tell()
    bench.feed(3)
    first = bench.worker()
    monkeypatch.setattr(first, "_commit", lambda: None)
    bench.turn(lambda: len(bench.receipts()) == 3, "three receipts", first)
    first._close_consumer()
    second = bench.worker("m-2")
    bench.turn(lambda: bench.lag() == 0, "the second to finish", second)
    assert len(bench.groups()) == 6
    assert len({g.id for g in bench.groups()}) == 3
    assert len({g.attempt for g in bench.groups()}) == 6


def test_nothing_is_committed_before_its_proof(bench, monkeypatch) -> None:
    bench.tell()
    bench.feed(4)
    worker = bench.worker()
    order: list[str] = []
    publish, commit = bench.queue.publish, worker._commit

    def note(topic, records):
        order.append(topic)
        return publish(topic, records)

    def noting_commit():
        before = bench.lag()
        commit()
        if bench.lag() < before:
            order.append("commit")

    monkeypatch.setattr(bench.queue, "publish", note)
    monkeypatch.setattr(worker, "_commit", noting_commit)
    bench.turn(lambda: bench.lag() == 0, "all committed", worker)
    proof = [o for o in order if o in (bench.topics.samples, bench.topics.receipts, "commit")]
    first = proof.index("commit")
    assert bench.topics.samples in proof[:first]
    assert proof[first - 1] == bench.topics.receipts


def test_no_control_record_no_prompts(bench) -> None:
    bench.feed(2)
    worker = bench.worker()
    for _ in range(30):
        worker.turn()
    assert bench.groups() == []
    bench.tell()
    bench.turn(lambda: len(bench.receipts()) == 2, "work once told")


def test_the_quota_counts_samples_since_its_record(bench) -> None:
    bench.tell(quota=4)
    bench.feed(6)
    worker = bench.worker()
    bench.turn(lambda: len(bench.receipts()) == 2, "two groups of two")
    for _ in range(40):
        worker.turn()
    assert len(bench.receipts()) == 2
    bench.tell(quota=2)
    bench.turn(lambda: len(bench.receipts()) == 3, "one more group")


def test_a_lower_fence_is_ignored(bench) -> None:
    bench.tell(fence=7)
    bench.feed(2)
    worker = bench.worker()
    bench.turn(lambda: len(bench.receipts()) == 2, "work under fence 7")
    bench.tell("pause", fence=6)
    bench.feed(2, start=2)
    bench.turn(lambda: len(bench.receipts()) == 4, "work on")
    assert worker._watch.fence == 7


def test_reward_outage_is_back_pressure_never_a_zero(bench) -> None:
    bench.reward.status = 503
    bench.tell()
    bench.feed(8)
    worker = bench.worker()
    bench.turn(lambda: worker._generator.reward_down, "the outage to be noticed")
    for _ in range(20):
        worker.turn()
    assert bench.groups() == []
    assert len(worker._jobs) <= 4
    assert worker._phase(worker._watch.current()) == "paused"
    bench.reward.status = 200
    bench.turn(lambda: len(bench.receipts()) == 8, "all after the outage")
    assert {s.reward for g in bench.groups() for s in g.samples} == {1.0}
    assert len({g.id for g in bench.groups()}) == len(bench.groups()) == 8


def test_failed_items_are_failed_not_zero(bench) -> None:
    bench.reward.state = "failed"
    bench.tell()
    bench.feed(1)
    bench.worker()
    bench.turn(lambda: bench.receipts() != [], "a receipt")
    (receipt,) = bench.receipts()
    assert (receipt.scored, receipt.failed, receipt.reward_sum) == (0, 2, 0.0)
    assert [s.reward for s in bench.groups()[0].samples] == [None, None]


def test_impossible_prompts_are_dead_and_committed(bench) -> None:
    bench.tell()
    bench.queue.publish(bench.topics.prompts, [("junk", b"\xff\xff")])
    bench.feed(1, text="x" * 100)
    bench.feed(1, start=1, text=None)
    bench.feed(1, start=2, group_size=0)
    bench.feed(1, start=3)
    bench.worker()
    bench.turn(lambda: bench.lag() == 0, "all to be committed")
    dead = bench.read(bench.topics.dead)
    assert {d.id for d in dead} == {"junk", "p0", "p1", "p2"}
    assert all(d.reason for d in dead)
    assert [r.prompt_id for r in bench.receipts()] == ["p3"]


class Wrong:
    """An engine whose log-probabilities can't be true."""

    def __init__(self, logprob: float) -> None:
        self._logprob = logprob

    def load_weights(self, path, version, weights) -> None:
        pass

    def tokens(self):
        return ByteTokens()

    def generate(self, requests, stop):
        for i, request in enumerate(requests):
            sample = RawSample([1, 2], [-0.1, self._logprob], "stop", 0, "w0")
            yield i, [sample] * request.prompt.group_size

    def stats(self):
        return EngineStats()

    def close(self) -> None:
        pass


def test_broken_logprobs_are_rejected_with_a_reason(bench) -> None:
    bench.tell()
    bench.feed(1)
    bench.worker(backend=Wrong(float("nan")))
    bench.turn(lambda: bench.lag() == 0, "the prompt to be committed")
    (receipt,) = bench.receipts()
    assert (receipt.partition, receipt.offset, receipt.scored) == (-1, -1, 0)
    assert "not finite" in receipt.rejected
    assert bench.groups() == []


def test_rounding_above_zero_is_set_to_zero(bench) -> None:
    bench.tell()
    bench.feed(1)
    bench.worker(backend=Wrong(5e-5))
    bench.turn(lambda: bench.receipts() != [], "a receipt")
    assert unpack_logprobs(bench.groups()[0].samples[0].logprobs)[1] == 0.0


def test_drain_finishes_what_is_held_then_says_drained(bench) -> None:
    bench.tell()
    bench.feed(12)
    worker = bench.worker(tokens_per_s=60)
    bench.turn(lambda: len(worker._jobs) > 0, "work to be held")
    bench.tell("drain", target=worker._host.worker_id)
    phases = lambda: [b.phase for b in bench.read(bench.topics.beats)]  # noqa: E731
    bench.turn(lambda: "drained" in phases(), "drained")
    made = len(bench.receipts())
    assert 0 < made < 12
    assert bench.lag() == 12 - made
    assert worker._consumer is None


def test_a_notice_saves_what_fits_and_leaves_the_rest_uncommitted(bench) -> None:
    bench.tell()
    bench.feed(12)
    worker = bench.worker(tokens_per_s=60)
    bench.turn(lambda: len(worker._jobs) == 4, "four groups to be held")
    notice = {"deadline": time.time() + 0.5}
    write_atomic(worker._host.folder / "notice.json", msgspec.json.encode(notice))
    while not worker._leaving():
        worker.turn()
    worker._leave()
    made = len(bench.receipts())
    assert made < 12
    assert bench.lag() == 12 - made
    last = bench.read(bench.topics.beats)[-1]
    assert (last.phase, last.in_flight) == ("drained", 0)
    assert worker._host.status().done
    second = bench.worker("m-2")
    bench.turn(lambda: bench.lag() == 0, "another to do the rest", second)
    assert len({g.id for g in bench.groups()}) == 12


def test_two_workers_share_and_a_new_one_takes_over(bench) -> None:
    bench.tell()
    first, second = bench.worker("m-1", tokens_per_s=400), bench.worker("m-2", tokens_per_s=400)
    bench.turn(
        lambda: len(second._consumer.assignment() if second._consumer else ()) == 1, "a share"
    )
    bench.feed(20)
    bench.turn(lambda: bench.lag() == 0, "all done")
    assert len({g.id for g in bench.groups()}) == 20
    assert {r.instance for r in bench.receipts()} == {"m-1", "m-2"}
    assert first._consumer is not None


def test_beats_name_what_is_held(bench) -> None:
    bench.tell()
    bench.feed(3)
    worker = bench.worker(tokens_per_s=30)
    held = lambda: [b for b in bench.read(bench.topics.beats) if b.in_flight]  # noqa: E731
    bench.turn(lambda: held() != [], "a beat with work")
    beat = held()[0]
    assert beat.in_flight == len(beat.held)
    assert beat.in_flight_samples == 2 * beat.in_flight
    assert set(beat.held) <= {group_id("r", f"p{n}", 0) for n in range(3)}
    assert (beat.version, beat.weights) == (0, "w0")
    assert prompt_id("x") != prompt_id("y")
    bench.turn(lambda: worker._host.status().progress == 3, "status to follow", seconds=20)
