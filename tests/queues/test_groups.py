import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verlops.errors import FencedError
from verlops.queues.groups import Member, Step, View, check_owner, plan, quotas

NOW = 1000.0


def member(name: str, beat_at: float = NOW, timeout: float = 30.0) -> Member:
    return Member(f"session-{name}", name, timeout, beat_at)


def view(owners: dict[int, str], partitions: int, *members: Member) -> View:
    held = {p: f"session-{name}" for p, name in owners.items()}
    return View(members, held, dict.fromkeys(range(partitions), (0, 0)))


def step(group: View, name: str, now: float = NOW) -> Step:
    return plan(group, f"session-{name}", now)


def test_the_first_member_takes_all():
    assert step(view({}, 3, member("a")), "a") == Step(take=frozenset({0, 1, 2}))


def test_a_stranger_has_lost_its_place():
    assert step(view({}, 3, member("a")), "b") == Step(lost=True)


def test_who_has_too_much_gives_and_the_new_one_waits_for_it():
    group = view(dict.fromkeys(range(4), "a"), 4, member("a"), member("b"))
    assert step(group, "a") == Step(give=frozenset({2, 3}))
    assert step(group, "b") == Step()
    group = view({0: "a", 1: "a"}, 4, member("a"), member("b"))
    assert step(group, "b") == Step(take=frozenset({2, 3}))


def test_a_group_in_balance_stays_as_it_is():
    group = view({0: "b", 1: "a", 2: "b"}, 3, member("a"), member("b"))
    assert step(group, "a") == step(group, "b") == Step()
    assert not Step().writes()


def test_the_dead_are_removed_and_their_partitions_taken_at_once():
    group = view({0: "a", 1: "dead"}, 2, member("a"), member("dead", NOW - 30))
    assert step(group, "a") == Step(expired=frozenset({"session-dead"}), take=frozenset({1}))
    alive = view({0: "a", 1: "late"}, 2, member("a"), member("late", NOW - 29.9))
    assert step(alive, "a") == Step()


def test_nobody_declares_itself_dead():
    assert step(view({0: "a"}, 1, member("a", NOW - 1000)), "a") == Step()


def test_a_beat_from_the_future_restarts_the_timeout():
    group = view({0: "a", 1: "b"}, 2, member("a"), member("b", NOW + 500))
    found = step(group, "a")
    assert found == Step(ahead=frozenset({"session-b"}))
    assert found.writes()


def test_odd_partitions_stay_with_those_who_have_them():
    assert quotas({"a": 1, "b": 2, "c": 2}, 5) == {"a": 1, "b": 2, "c": 2}
    assert quotas({"a": 0, "b": 0}, 1) == {"a": 1, "b": 0}
    assert quotas({"a": 9}, 0) == {"a": 0}


def test_check_owner_names_what_is_not_owned():
    owners = {0: "me", 1: "you"}
    check_owner("t", "g", [0], owners, "me")
    with pytest.raises(FencedError, match=r"\[1, 2\]"):
        check_owner("t", "g", [2, 0, 1], owners, "me")


class Group:
    """A group in plain data; every act is one transaction of a real engine."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.members: dict[str, Member] = {}
        self.owners: dict[int, str] = {}
        self.moves = 0

    def join(self, name: str) -> None:
        self.leave(name)
        self.members[name] = member(name)

    def leave(self, name: str) -> None:
        self.members.pop(name, None)
        self.owners = {p: n for p, n in self.owners.items() if n != name}

    def crash(self, name: str) -> None:
        if name in self.members:
            self.members[name] = member(name, NOW - 100)

    def poll(self, name: str) -> None:
        done = step(view(self.owners, self.partitions, *self.members.values()), name)
        if done.lost:
            return
        for partition in done.give:
            assert self.owners.pop(partition) == name
        for dead in list(self.members):
            if f"session-{dead}" in done.expired:
                self.leave(dead)
        for partition in done.take:
            assert partition not in self.owners
            self.owners[partition] = name
        self.moves += len(done.give) + len(done.take)


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "crash", "poll", "poll", "poll"]),
        st.sampled_from("abcdef"),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 13), ACTS, st.randoms(use_true_random=False))
def test_whatever_happens_the_living_end_in_balance_and_then_rest(partitions, acts, chance):
    group = Group(partitions)
    for act, name in acts:
        getattr(group, act)(name)
    group.join("z")
    alive = [n for n, m in group.members.items() if m.beat_at == NOW]
    for _ in range(partitions + 3):
        chance.shuffle(alive)
        for name in alive:
            group.poll(name)
    counts = [sum(owner == name for owner in group.owners.values()) for name in alive]
    assert set(group.owners) == set(range(partitions))
    assert sum(counts) == partitions
    assert max(counts) - min(counts) <= 1
    moves = group.moves
    for name in alive * 2:
        group.poll(name)
    assert group.moves == moves


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 13), st.integers(1, 6))
def test_a_newcomer_moves_only_what_it_gets(partitions, members):
    group = Group(partitions)
    names = [f"m{n}" for n in range(members)]
    for name in names:
        group.join(name)
    for name in names * (members + 2):
        group.poll(name)
    before, group.moves = dict(group.owners), 0
    group.join("new")
    for name in [*names, "new"] * (members + 2):
        group.poll(name)
    changed = {p for p in before if before[p] != group.owners[p]}
    assert {group.owners[p] for p in changed} <= {"new"}
    assert len(changed) == partitions // (members + 1) or len(changed) <= -(-partitions // members)
