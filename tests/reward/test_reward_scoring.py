"""The scoring engine: order, states, whose fault an error is, and the cache (case REW-1)."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verlops.errors import ThrottledError
from verlops.ports import ScoreItem
from verlops_workers.reward.cache import MemoryCache, cache_key
from verlops_workers.reward.plug import Scorer
from verlops_workers.reward.pool import MAX_STUCK, ThreadPool
from verlops_workers.reward.scoring import Engine, Verdict
from verlops_workers.reward.watch import Watch

Items = Sequence[ScoreItem]


class Counting:
    """Scores by a function of one item, and remembers the batches it was asked."""

    def __init__(self, one: Any) -> None:
        self.one = one
        self.batches: list[list[str]] = []

    def __call__(self, items: Items) -> list[Any]:
        self.batches.append([i.response for i in items])
        return [self.one(i) for i in items]

    def times(self, response: str) -> int:
        return sum(batch.count(response) for batch in self.batches)


def length(one: ScoreItem) -> float:
    return float(len(one.response))


def refuse_junk(one: ScoreItem) -> float:
    if one.response == "junk":
        raise ValueError("this is no number")
    return 1.0


def metric(watch: Watch, name: str) -> float:
    rows = dict(row.rsplit(" ", 1) for row in watch.text().decode().splitlines() if row[:1] != "#")
    return float(rows[name])


def test_verdicts_come_in_input_order(engine_of: Any, judge: Any, item: Any) -> None:
    items = [item("x" * n) for n in (3, 1, 2, 3, 0)]
    verdicts = judge(engine_of(Counting(length)), items)
    assert verdicts == [Verdict(float(n), "scored") for n in (3, 1, 2, 3, 0)]


def test_order_holds_when_some_are_cached_and_some_fail(
    engine_of: Any, judge: Any, item: Any, memory: MemoryCache
) -> None:
    engine = engine_of(Counting(refuse_junk), cache=memory)
    judge(engine, [item("b")])
    verdicts = judge(engine, [item("a"), item("junk"), item("b"), item("c"), item("a")])
    assert [v.state for v in verdicts] == ["scored", "failed", "scored", "scored", "scored"]
    assert verdicts[1] == Verdict(None, "failed", "ValueError: this is no number")


def test_nothing_to_score(engine_of: Any, judge: Any, memory: MemoryCache) -> None:
    scorer = Counting(length)
    assert judge(engine_of(scorer, cache=memory), []) == []
    assert scorer.batches == []


@given(junk=st.sets(st.integers(0, 30)), size=st.integers(1, 31))
def test_only_the_items_that_are_refused_fail(junk: set[int], size: int) -> None:
    def one(i: ScoreItem) -> float:
        if int(i.response) in junk:
            raise KeyError(i.response)
        return float(i.response)

    scorer = Counting(one)
    engine = Engine(Scorer("mine", "1", scorer), ThreadPool(), None, Watch(), 30.0)
    items = [ScoreItem("p", str(n), "r", "t") for n in range(size)]
    verdicts = asyncio.run(engine.score(items))
    for n, verdict in enumerate(verdicts):
        if n in junk:
            assert (verdict.reward, verdict.state) == (None, "failed")
            assert scorer.batches.count([str(n)]) == 3  # alone, three times, no more
        else:
            assert verdict == Verdict(float(n), "scored")


def test_an_item_refused_twice_and_then_scored_is_scored(
    engine_of: Any, judge: Any, item: Any
) -> None:
    left = [2]

    def one(_: ScoreItem) -> float:
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError("not yet")
        return 0.25

    assert judge(engine_of(Counting(one)), [item("a")]) == [Verdict(0.25, "scored")]


@pytest.mark.parametrize(
    ("score", "why"),
    [
        (math.nan, "not finite"),
        (math.inf, "not finite"),
        (None, "gave no score"),
        ("high", "is a str, not a number"),
        ([1.0], "is a list, not a number"),
    ],
)
def test_what_is_no_score_fails_after_three_times(
    engine_of: Any, judge: Any, item: Any, score: Any, why: str
) -> None:
    scorer = Counting(lambda i: score if i.response == "bad" else 1)
    good, bad = judge(engine_of(scorer), [item("good"), item("bad")])
    assert good == Verdict(1.0, "scored")
    assert (bad.reward, bad.state) == (None, "failed")
    assert why in bad.error
    assert scorer.times("bad") == 3
    assert scorer.times("good") == 1


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("no model server"),
        TimeoutError("asked too long"),
        ThrottledError("ask later"),
        httpx.ConnectError("no route"),
        MemoryError(),
        ImportError("no such verifier"),
        NameError("typo"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_outage_leaves_items_unscored(
    engine_of: Any, judge: Any, item: Any, error: Exception
) -> None:
    def scorer(_: Items) -> list[float]:
        raise error

    watch = Watch()
    verdicts = judge(engine_of(scorer, watch=watch), [item("a"), item("b")])
    assert [(v.reward, v.state) for v in verdicts] == [(None, "unscored")] * 2
    assert type(error).__name__ in verdicts[0].error
    assert metric(watch, 'verlops_reward_failures_total{kind="outage"}') == 1


def test_an_outage_in_the_middle_keeps_what_was_scored(
    engine_of: Any, judge: Any, item: Any
) -> None:
    def one(i: ScoreItem) -> float:
        if i.response == "junk":
            raise ValueError(i.response)
        return 1.0

    calls = [0]

    def scorer(items: Items) -> list[float]:
        calls[0] += 1
        if calls[0] > 2:
            raise ConnectionResetError("gone")
        return [one(i) for i in items]

    verdicts = judge(engine_of(scorer), [item("a"), item("b"), item("junk"), item("c")])
    assert [v.state for v in verdicts] == ["scored", "scored", "unscored", "unscored"]


@pytest.mark.parametrize("result", [[1.0], [1.0, 2.0, 3.0], []], ids=len)
def test_a_wrong_number_of_scores_is_the_scorers_fault(
    engine_of: Any, judge: Any, item: Any, result: list[float]
) -> None:
    verdicts = judge(engine_of(lambda _: result), [item("a"), item("b")])
    assert [v.state for v in verdicts] == ["unscored", "unscored"]
    assert f"{len(result)} scores for 2 items" in verdicts[0].error


def test_a_scorer_that_hangs_costs_its_budget_and_no_more(
    engine_of: Any, judge: Any, item: Any
) -> None:
    """REW-1 e: the timeout is not stored; the next call gives the real score."""
    release = threading.Event()
    cache = MemoryCache(10)
    hang = [True]

    def scorer(items: Items) -> list[float]:
        if hang.pop() if hang else False:
            release.wait()
        return [1.0] * len(items)

    engine = engine_of(scorer, cache=cache, budget=0.05)

    async def twice() -> tuple[list[Verdict], int, list[Verdict], int]:
        first = await engine.score([item("a")])
        left_behind = engine._pool.stuck
        release.set()
        while engine._pool.stuck:
            await asyncio.sleep(0.001)
        engine._budget = 30.0
        return first, left_behind, await engine.score([item("a")]), engine._pool.stuck

    first, left_behind, second, stuck = asyncio.run(twice())
    assert first == [Verdict(None, "unscored", "no scores within 0.05 s")]
    assert (left_behind, stuck) == (1, 0)
    assert second == [Verdict(1.0, "scored")]


def test_a_scorer_that_always_hangs_is_not_called_for_ever(
    engine_of: Any, judge: Any, item: Any
) -> None:
    release = threading.Event()
    started = []

    def scorer(items: Items) -> list[float]:
        started.append(1)
        release.wait()
        return [1.0] * len(items)

    engine = engine_of(scorer, budget=0.01)

    async def many() -> list[Verdict]:
        for _ in range(MAX_STUCK + 3):
            last = await engine.score([item("a")])
        release.set()
        while engine._pool.stuck:
            await asyncio.sleep(0.001)
        return last

    last = asyncio.run(many())
    assert len(started) == MAX_STUCK
    assert last[0].state == "unscored"
    assert "never ended" in last[0].error


def test_no_time_left_is_no_verdict(engine_of: Any, judge: Any, item: Any) -> None:
    scorer = Counting(length)
    verdicts = judge(engine_of(scorer, budget=0.0), [item("a")])
    assert verdicts == [Verdict(None, "unscored", "no time was left")]
    assert scorer.batches == []


def test_calls_run_one_at_a_time_unless_the_scorer_bears_more(engine_of: Any, item: Any) -> None:
    together = [0, 0]
    lock = threading.Lock()
    both = threading.Barrier(2)

    def one_at_a_time(items: Items) -> list[float]:
        with lock:
            together[0] += 1
            together[1] = max(together)
        with lock:
            together[0] -= 1
        return [1.0] * len(items)

    def two_at_a_time(items: Items) -> list[float]:
        both.wait(30)  # breaks unless two calls are here at once
        return [1.0] * len(items)

    async def two(engine: Engine) -> list[list[Verdict]]:
        return await asyncio.gather(engine.score([item("a")]), engine.score([item("b")]))

    asyncio.run(two(engine_of(one_at_a_time)))
    assert together[1] == 1
    verdicts = asyncio.run(two(engine_of(two_at_a_time, pool=ThreadPool(2))))
    assert [v[0].state for v in verdicts] == ["scored", "scored"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
def test_a_scorer_cannot_end_the_server(
    engine_of: Any, judge: Any, item: Any, error: BaseException
) -> None:
    def scorer(_: Items) -> list[float]:
        raise error

    assert judge(engine_of(scorer), [item("a")])[0].state == "failed"


def test_the_reason_is_one_short_printable_line(engine_of: Any, judge: Any, item: Any) -> None:
    def scorer(_: Items) -> list[float]:
        raise ValueError("bad \x1b[31m input " + "y" * 1000 + "\nsecond line")

    error = judge(engine_of(scorer), [item("a")])[0].error
    assert error.isprintable()
    assert error.startswith("ValueError: bad ?[31m input yyy")
    assert len(error) <= 200


# REW-1


def test_a_new_version_is_not_answered_with_old_scores(
    engine_of: Any, judge: Any, item: Any, memory: MemoryCache
) -> None:
    old = engine_of(lambda items: [1.0] * len(items), cache=memory, version="v1")
    new = engine_of(lambda items: [0.3] * len(items), cache=memory, version="v2")
    items = [item("42", "42")]
    assert judge(old, items)[0].reward == 1.0
    assert judge(new, items)[0].reward == 0.3
    assert judge(old, items)[0].reward == 1.0


def test_the_same_response_to_two_prompts_has_two_scores(
    engine_of: Any, judge: Any, item: Any, memory: MemoryCache
) -> None:
    engine = engine_of(Counting(lambda i: float(i.response == i.reference)), cache=memory)
    items = [item("42", "42", prompt="P1"), item("42", "43", prompt="P2")]
    for _ in range(2):
        assert [v.reward for v in judge(engine, items)] == [1.0, 0.0]


def test_the_cut_between_prompt_and_response_matters(
    engine_of: Any, judge: Any, item: Any, memory: MemoryCache
) -> None:
    scorer = Counting(lambda i: float(len(i.prompt)))
    items = [item("c", prompt="ab"), item("bc", prompt="a")]
    engine = engine_of(scorer, cache=memory)
    for _ in range(2):
        assert [v.reward for v in judge(engine, items)] == [2.0, 1.0]
    assert len(scorer.batches) == 1


class DownCache:
    async def get_many(self, keys: Sequence[bytes]) -> list[float | None]:
        raise ConnectionError("cache is down")

    async def put_many(self, scores: Any) -> None:
        raise ConnectionError("cache is down")


class HungCache(DownCache):
    async def get_many(self, keys: Sequence[bytes]) -> list[float | None]:
        await asyncio.Event().wait()
        return []


class ShortCache(DownCache):
    async def get_many(self, keys: Sequence[bytes]) -> list[float | None]:
        return []


@pytest.mark.parametrize("cache", [DownCache(), HungCache(), ShortCache()])
def test_without_the_cache_scores_are_computed(
    engine_of: Any, judge: Any, item: Any, cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verlops_workers.reward.scoring.CACHE_SECONDS", 0.01)
    watch = Watch()
    verdicts = judge(engine_of(Counting(length), cache=cache, watch=watch), [item("abc")])
    assert verdicts == [Verdict(3.0, "scored")]
    assert metric(watch, "verlops_reward_cache_errors_total") == 2


def test_errors_are_not_cached(engine_of: Any, judge: Any, item: Any, memory: MemoryCache) -> None:
    answers: list[Any] = [TimeoutError("slow"), *[ValueError("odd")] * 3, [1.0]]

    def scorer(_: Items) -> list[float]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    engine = engine_of(scorer, cache=memory)
    states = [judge(engine, [item("a")])[0].state for _ in range(3)]
    assert states == ["unscored", "failed", "scored"]
    assert judge(engine, [item("a")]) == [Verdict(1.0, "scored")]
    assert answers == []


def test_hits_and_misses_are_counted_and_equal_items_scored_once(
    engine_of: Any, judge: Any, item: Any, memory: MemoryCache
) -> None:
    watch, scorer = Watch(), Counting(length)
    engine = engine_of(scorer, cache=memory, watch=watch)
    judge(engine, [item("a"), item("a"), item("bb")])
    judge(engine, [item("a"), item("ccc")])
    assert scorer.batches == [["a", "bb"], ["ccc"]]
    assert metric(watch, "verlops_reward_cache_hits_total") == 1
    assert metric(watch, "verlops_reward_cache_misses_total") == 3
    assert metric(watch, 'verlops_reward_items_total{state="scored"}') == 5


def test_without_a_cache_equal_items_are_scored_each(engine_of: Any, judge: Any, item: Any) -> None:
    scorer = Counting(length)
    judge(engine_of(scorer), [item("a"), item("a")])
    assert scorer.batches == [["a", "a"]]


FIELDS = ["name", "version", "options", "task", "prompt", "reference", "response"]


def key_of(parts: Sequence[str]) -> bytes:
    name, version, options, task, prompt, reference, response = parts
    scorer = Scorer(name, version, lambda _: [], options)
    return cache_key(scorer, ScoreItem(prompt, response, reference, task))


@given(
    st.lists(st.text(max_size=3), min_size=7, max_size=7), st.integers(0, 6), st.text(max_size=3)
)
def test_every_part_of_the_key_counts(parts: list[str], place: int, other: str) -> None:
    changed = [*parts[:place], other, *parts[place + 1 :]]
    assert (key_of(parts) == key_of(changed)) == (parts == changed)


@given(st.text(min_size=1, max_size=8), st.integers(0, 5), st.data())
def test_moving_a_character_across_a_border_changes_the_key(
    text: str, place: int, data: st.DataObject
) -> None:
    cut, other = data.draw(st.permutations(range(len(text) + 1)))[:2]
    before, after = [""] * 7, [""] * 7
    before[place], before[place + 1] = text[:cut], text[cut:]
    after[place], after[place + 1] = text[:other], text[other:]
    assert key_of(before) != key_of(after)


def test_a_lone_surrogate_has_a_key_too() -> None:
    assert key_of([*[""] * 6, "\ud800"]) != key_of([*[""] * 6, "?"])


def test_the_cache_forgets_what_was_not_used_for_longest() -> None:
    async def scenario() -> list[float | None]:
        cache = MemoryCache(2)
        await cache.put_many({b"a": 1.0, b"b": 2.0})
        await cache.get_many([b"a"])
        await cache.put_many({b"c": 3.0})
        return await cache.get_many([b"a", b"b", b"c"])

    assert asyncio.run(scenario()) == [1.0, None, 3.0]
