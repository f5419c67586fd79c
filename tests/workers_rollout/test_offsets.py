"""The contiguous finished prefix, against a brute-force oracle."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verlops_workers.rollout.offsets import Offsets


def test_out_of_order_finishes_commit_the_prefix_only() -> None:
    offsets = Offsets()
    for offset in (10, 11, 12):
        offsets.take(0, offset)
    assert offsets.due() == {}
    offsets.finish(0, 11)
    assert offsets.due() == {}
    offsets.finish(0, 10)
    assert offsets.due() == {0: 12}
    offsets.committed({0: 12})
    assert offsets.due() == {}
    offsets.finish(0, 12)
    assert offsets.due() == {0: 13}


def test_a_lost_partition_is_forgotten_and_its_finishes_ignored() -> None:
    offsets = Offsets()
    offsets.take(0, 5)
    offsets.take(1, 7)
    offsets.keep([1])
    offsets.finish(0, 5)
    offsets.finish(1, 7)
    assert offsets.due() == {1: 8}


def test_a_redelivered_record_never_moves_a_commit_back() -> None:
    offsets = Offsets()
    offsets.take(0, 5)
    offsets.finish(0, 5)
    offsets.committed({0: 6})
    offsets.take(0, 5)
    assert offsets.due() == {}
    offsets.finish(0, 5)
    assert offsets.due() == {}


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60), st.data())
def test_the_commit_is_always_the_first_unfinished(steps, data) -> None:
    offsets = Offsets()
    taken: dict[int, list[int]] = {}
    finished: set[tuple[int, int]] = set()
    for partition, take in steps:
        own = taken.setdefault(partition, [])
        if take:
            offset = (own[-1] + data.draw(st.integers(1, 3))) if own else 0
            own.append(offset)
            offsets.take(partition, offset)
        elif open_ := [o for o in own if (partition, o) not in finished]:
            offset = data.draw(st.sampled_from(open_))
            finished.add((partition, offset))
            offsets.finish(partition, offset)
    due = offsets.due()
    for partition, own in taken.items():
        left = [o for o in own if (partition, o) not in finished]
        first = min(left) if left else (own[-1] + 1 if own else 0)
        moved = bool(own) and first > own[0]
        assert due.get(partition) == (first if moved else None)
