"""What every state store guarantees (ports.StateStore), run over each implementation."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from verlops.errors import LeaseHeldError, LeaseLostError
from verlops.model import Bar, Drain, Event, Intent, Launch, Memory, Offer
from verlops.ports import StateStore
from verlops.state.memory import MemoryState
from verlops.state.sql import SqlState

NOW = 1_700_000_000.0
OFFER = Offer(id="l20", provider="local", price=10_000_000, currency="CNY", market="spot")
STORES: dict[str, Callable[[Path], StateStore]] = {
    "memory": lambda _: MemoryState(),
    "sqlite": lambda folder: SqlState(folder / "state.db"),
}


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    opened = STORES[request.param](tmp_path)
    yield opened
    opened.close()


def intent(name: str, fence: int = 1) -> Intent:
    launch = Launch(key=name, role="rollout", slot=name, generation=0, offer=OFFER, reason="r")
    return Intent(id=name, action=launch, at=NOW, fence=fence)


def test_a_new_store_is_empty(store: StateStore) -> None:
    assert store.load() == (Memory(), [])
    assert list(store.events()) == []
    assert store.lease("controller") is None
    assert store.get_blob("x") is None
    assert list(store.rows("groups")) == []


def test_memory_comes_back_whole(store: StateStore) -> None:
    memory = Memory(
        run="demo-1",
        desired={"rollout": 3},
        recommendations={"rollout": [(NOW, 3), (NOW + 0.25, 2)]},
        bars={"l20": Bar(until=NOW, failures=2, failed_at=NOW - 1)},
        seen={"i-1": "booting"},
        reading_at=NOW,
        rate=0.1,
        extra={"list": [1, "two", None], "nested": {"a": 1.5}},
    )
    store.save(memory)
    assert store.load()[0] == memory
    store.save(Memory(run="demo-2"))
    assert store.load()[0] == Memory(run="demo-2")


def test_intents_stay_open_until_closed_in_the_order_of_opening(store: StateStore) -> None:
    drain = Intent(id="d", action=Drain(instance_id="i-1", key="k", reason="down"), at=NOW, fence=1)
    store.save(Memory(), opened=[intent("z"), intent("a"), drain])
    assert store.load()[1] == [intent("z"), intent("a"), drain]
    store.save(Memory(), closed=["a", "never opened"])
    assert store.load()[1] == [intent("z"), drain]


def test_an_intent_opened_again_is_replaced_in_its_place(store: StateStore) -> None:
    store.save(Memory(), opened=[intent("a"), intent("b")])
    again = intent("a", fence=7)
    store.save(Memory(), opened=[again])
    assert store.load()[1] == [again, intent("b")]


def test_an_intent_opened_and_closed_at_once_is_closed(store: StateStore) -> None:
    store.save(Memory(), opened=[intent("a")], closed=["a"])
    assert store.load()[1] == []


def test_what_was_loaded_is_a_copy(store: StateStore) -> None:
    store.save(Memory(desired={"rollout": 2}))
    store.load()[0].desired["rollout"] = 99
    assert store.load()[0].desired == {"rollout": 2}


def test_events_are_numbered_and_kept_in_order(store: StateStore) -> None:
    first = Event(at=NOW, kind="launched", instance_id="i-1", data={"price": 10_000_000})
    second = Event(at=NOW - 5, kind="ended", instance_id="i-1", reason="done", data={"code": 0})
    store.save(Memory(), events=[first, second])
    store.save(Memory(), events=[first])
    found = list(store.events())
    assert [e.but(seq=0) for e in found] == [first, second, first]
    numbers = [e.seq for e in found]
    assert numbers[0] > 0
    assert numbers == sorted(set(numbers))


def test_events_by_number_kind_and_limit(store: StateStore) -> None:
    kinds = ["a", "b", "a", "c", "a"]
    store.save(Memory(), events=[Event(at=NOW, kind=kind) for kind in kinds])
    numbers = [e.seq for e in store.events()]
    assert [e.kind for e in store.events(after=numbers[1])] == ["a", "c", "a"]
    assert [e.seq for e in store.events(kinds=("a",))] == [numbers[0], numbers[2], numbers[4]]
    assert [e.kind for e in store.events(kinds=("b", "c"))] == ["b", "c"]
    assert [e.seq for e in store.events(kinds=("a",), limit=2)] == [numbers[0], numbers[2]]
    assert list(store.events(limit=0)) == []
    assert list(store.events(after=numbers[-1])) == []


def test_the_first_taker_gets_fence_one_and_a_renewal_keeps_it(store: StateStore) -> None:
    lease = store.acquire("controller", "a", 60.0, NOW)
    assert lease == ("controller", "a", 1, NOW + 60)
    assert store.acquire("controller", "a", 60.0, NOW + 30) == ("controller", "a", 1, NOW + 90)
    assert store.lease("controller") == ("controller", "a", 1, NOW + 90)


def test_a_held_lease_is_refused_with_its_holder_named(store: StateStore) -> None:
    taken = store.acquire("controller", "host-1/4711", 60.0, NOW)
    with pytest.raises(LeaseHeldError, match="host-1/4711"):
        store.acquire("controller", "b", 60.0, NOW + 59)
    assert store.lease("controller") == taken


def test_an_expired_lease_changes_hands_with_a_new_fence(store: StateStore) -> None:
    store.acquire("controller", "a", 60.0, NOW)
    assert store.acquire("controller", "b", 60.0, NOW + 60).fence == 2
    with pytest.raises(LeaseHeldError):
        store.acquire("controller", "a", 60.0, NOW + 61)
    assert store.acquire("controller", "a", 60.0, NOW + 121).fence == 3


def test_a_late_renewal_keeps_the_fence_if_nobody_came_between(store: StateStore) -> None:
    store.acquire("controller", "a", 60.0, NOW)
    assert store.acquire("controller", "a", 60.0, NOW + 600).fence == 1


def test_the_lease_of_a_dead_holder_is_taken_at_once(store: StateStore) -> None:
    store.acquire("controller", "dead", 60.0, NOW)
    asked: list[str] = []

    def is_dead(holder: str) -> bool:
        asked.append(holder)
        return holder == "dead"

    assert store.acquire("controller", "b", 60.0, NOW + 1, is_dead).fence == 2
    with pytest.raises(LeaseHeldError, match="held by b"):
        store.acquire("controller", "c", 60.0, NOW + 2, is_dead)
    assert asked == ["dead", "b"]


def test_a_released_lease_is_free_and_keeps_its_fence(store: StateStore) -> None:
    lease = store.acquire("controller", "a", 60.0, NOW)
    store.release(lease)
    free = store.lease("controller")
    assert free is not None
    assert (free.holder, free.fence) == ("", 1)
    assert store.acquire("controller", "b", 60.0, NOW + 1).fence == 2


def test_the_same_holder_after_a_release_begins_a_new_term(store: StateStore) -> None:
    store.release(store.acquire("controller", "a", 60.0, NOW))
    assert store.acquire("controller", "a", 60.0, NOW + 1).fence == 2


def test_a_release_that_comes_too_late_changes_nothing(store: StateStore) -> None:
    old = store.acquire("controller", "a", 60.0, NOW)
    new = store.acquire("controller", "b", 60.0, NOW + 61)
    store.release(old)
    assert store.lease("controller") == new


def test_leases_are_told_apart_by_name(store: StateStore) -> None:
    store.acquire("controller", "a", 60.0, NOW)
    assert store.acquire("other", "b", 60.0, NOW).fence == 1
    assert store.acquire("controller", "a", 60.0, NOW).fence == 1


def test_only_the_newest_fence_may_save(store: StateStore) -> None:
    old = store.acquire("controller", "a", 60.0, NOW).fence
    store.save(Memory(version=1), opened=[intent("a")], fence=old)
    new = store.acquire("controller", "b", 60.0, NOW + 61).fence
    with pytest.raises(LeaseLostError):
        store.save(
            Memory(version=9),
            opened=[intent("b")],
            closed=["a"],
            events=[Event(at=NOW, kind="x")],
            fence=old,
        )
    assert store.load() == (Memory(version=1), [intent("a")])
    assert list(store.events()) == []
    store.save(Memory(version=2), fence=new)
    assert store.load()[0].version == 2


def test_blobs_are_replaced_whole(store: StateStore) -> None:
    store.put_blob("k", b"one")
    store.put_blob("k", b"")
    store.put_blob("other", b"\x00\xff")
    assert (store.get_blob("k"), store.get_blob("other")) == (b"", b"\x00\xff")


def test_rows_are_upserted_by_table_and_cleared_by_table(store: StateStore) -> None:
    store.put_rows("groups", {"a": b"1", "b": b"2"}, {"cursor": b"10"})
    store.put_rows("groups", {"b": b"3", "c": b""})
    store.put_rows("fed", {"a": b"other"})
    assert dict(store.rows("groups")) == {"a": b"1", "b": b"3", "c": b""}
    assert store.get_blob("cursor") == b"10"
    store.clear_rows("groups")
    assert list(store.rows("groups")) == []
    assert dict(store.rows("fed")) == {"a": b"other"}
    store.put_rows("groups", {}, {"cursor": b"11"})
    assert store.get_blob("cursor") == b"11"
