"""What every message engine guarantees about consumer groups (ports.Queue, Consumer)."""

import threading

import pytest

from verlops.errors import FencedError, VerlopsError

GROUP = "workers"


def values(records):
    return sorted(int(record.value) for record in records)


def offsets_after(records):
    """What to commit when these are done: partition → next offset."""
    ends: dict[int, int] = {}
    for record in records:
        ends[record.partition] = max(ends.get(record.partition, 0), record.offset + 1)
    return ends


def test_a_single_member_owns_everything_and_gets_each_record_once(lab):
    lab.make(4)
    lab.fill(50)
    member = lab.join("a")
    assert member.assignment() == frozenset()
    got = lab.poll_until([member], lambda got: len(got) >= 50, limit=7)
    assert values(got) == list(range(50))
    assert member.assignment() == {0, 1, 2, 3}
    assert member.poll(100) == []
    lab.fill(5, start=50)
    got = lab.poll_until([member], lambda got: len(got) >= 5)
    assert values(got) == list(range(50, 55))


def test_records_of_a_partition_come_in_order(lab):
    lab.make(3)
    lab.fill(60)
    got = lab.poll_until([lab.join("a")], lambda got: len(got) >= 60, limit=4)
    for partition in range(3):
        offsets = [r.offset for r in got if r.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_poll_gives_at_most_the_limit_and_zero_only_keeps_the_place(lab):
    lab.make(2)
    lab.fill(20)
    member = lab.join("a")
    lab.poll_until([member], lambda _: member.assignment() == {0, 1}, limit=0)
    assert len(member.poll(3)) == 3
    assert member.poll(0) == []
    assert len(member.poll(100)) == 17


def test_one_full_partition_does_not_starve_the_others(lab):
    topic = lab.make(4)
    lab.fill(400)
    member = lab.join("a")
    got = lab.poll_until([member], lambda got: len(got) >= 40, limit=10)
    assert {record.partition for record in got} == set(lab.queue.end_offsets(topic))


def test_the_next_offset_is_committed_and_nothing_is_done_twice(lab):
    """KAF-3: offset 10 after records 0 to 9; backlog 0; a restart gets nothing."""
    topic = lab.make(1)
    lab.fill(10)
    member = lab.join("a")
    got = lab.poll_until([member], lambda got: len(got) >= 10)
    member.commit(offsets_after(got))
    assert lab.queue.committed(topic, GROUP) == {0: 10}
    assert lab.queue.stats(topic, GROUP).lag == 0
    member.close()
    again = lab.join("a", queue=lab.again())
    assert lab.balanced([again], 1) == []
    assert again.poll(10) == []


def test_nothing_is_committed_unless_asked(lab):
    topic = lab.make(2)
    lab.fill(10)
    member = lab.join("a")
    lab.poll_until([member], lambda got: len(got) >= 10)
    member.close()
    assert lab.queue.committed(topic, GROUP) == {0: None, 1: None}
    got = lab.poll_until([lab.join("b")], lambda got: len(got) >= 10)
    assert values(got) == list(range(10))


def test_a_new_owner_starts_at_the_committed_offset(lab):
    topic = lab.make(1)
    lab.fill(10)
    member = lab.join("a")
    lab.poll_until([member], lambda got: len(got) >= 10)
    member.commit({0: 4})
    member.close()
    got = lab.poll_until([lab.join("b")], lambda got: len(got) >= 6)
    assert [r.offset for r in got] == [4, 5, 6, 7, 8, 9]
    assert lab.queue.committed(topic, GROUP) == {0: 4}


def test_two_members_share_and_nothing_is_delivered_to_both(lab):
    lab.make(4)
    first, second = lab.join("a"), lab.join("b", queue=lab.again())
    lab.balanced([first, second], 2, 2)
    assert first.assignment() | second.assignment() == {0, 1, 2, 3}
    lab.fill(40)
    got = lab.poll_until([first, second], lambda got: len(got) >= 40)
    assert values(got) == list(range(40))
    assert first.poll(10) == second.poll(10) == []


def test_members_beyond_the_partitions_wait_idle_and_step_in(lab):
    lab.make(2)
    members = [lab.join(name) for name in "abc"]
    lab.balanced(members, 0, 1, 1)
    owner = next(member for member in members if member.assignment())
    owner.close()
    members.remove(owner)
    lab.balanced(members, 1, 1)


def test_five_partitions_over_three_members_and_back(lab):
    lab.make(5)
    members = [lab.join(name) for name in "abc"]
    lab.balanced(members, 1, 2, 2)
    members.pop().close()
    lab.balanced(members, 2, 3)
    members.pop().close()
    lab.balanced(members, 5)


def test_on_revoke_comes_before_the_move_and_its_commits_count(lab):
    topic = lab.make(4)
    lab.fill(40)
    revoked: list[frozenset[int]] = []
    got = []

    def on_revoke(partitions: frozenset[int]) -> None:
        revoked.append(partitions)
        assert partitions <= first.assignment()
        done = offsets_after(got)
        first.commit({p: done[p] for p in partitions})

    first = lab.join("a", on_revoke=on_revoke)
    got += lab.poll_until([first], lambda got: len(got) >= 40)
    second = lab.join("b")
    later = lab.balanced([first, second], 2, 2)
    assert later == []  # what moved was committed inside, what stayed is not sent again
    assert len(frozenset.union(*revoked)) == 2
    assert frozenset.union(*revoked) == second.assignment()
    ends = lab.queue.end_offsets(topic)
    committed = lab.queue.committed(topic, GROUP)
    assert {p: committed[p] for p in second.assignment()} == {
        p: ends[p] for p in second.assignment()
    }
    assert {committed[p] for p in first.assignment()} == {None}


def test_a_moved_partition_goes_on_from_what_was_committed(lab):
    lab.make(2)
    lab.fill(20)
    first = lab.join("a")
    got = lab.poll_until([first], lambda got: len(got) >= 20)
    second = lab.join("b")
    again = lab.balanced([first, second], 1, 1)
    again += lab.poll_until([second], lambda _: not second.poll(0) and bool(again))
    (moved,) = second.assignment()
    assert sorted(r.offset for r in again) == [r.offset for r in got if r.partition == moved]
    assert {r.partition for r in again} == {moved}


def test_a_commit_of_a_partition_that_moved_is_fenced(lab):
    topic = lab.make(2)
    lab.fill(20)
    first = lab.join("a")
    got = lab.poll_until([first], lambda got: len(got) >= 20)
    second = lab.join("b")
    lab.balanced([first, second], 1, 1)
    with pytest.raises(FencedError):
        first.commit(offsets_after(got))
    # Not even for the partition that it still owns.
    assert lab.queue.committed(topic, GROUP) == {0: None, 1: None}
    (kept,) = first.assignment()
    first.commit({kept: 3})
    assert lab.queue.committed(topic, GROUP)[kept] == 3


def test_a_dead_member_is_replaced_from_the_committed_offset(lab):
    topic = lab.make(2)
    lab.fill(20)
    dead = lab.join("dead")
    got = lab.poll_until([dead], lambda got: len(got) >= 20)
    dead.commit({0: 2})
    heir = lab.join("heir", queue=lab.again())
    lab.pass_time(lab.session + 1)
    taken = lab.poll_until([heir], lambda taken: len(taken) >= 18)
    assert heir.assignment() == {0, 1}
    assert min(r.offset for r in taken if r.partition == 0) == 2
    assert min(r.offset for r in taken if r.partition == 1) == 0
    with pytest.raises(FencedError):
        dead.commit(offsets_after(got))
    assert lab.queue.committed(topic, GROUP) == {0: 2, 1: None}


def test_a_member_thought_dead_joins_again_and_shares(lab):
    lab.make(2)
    revoked = []
    lost = lab.join("lost", on_revoke=revoked.append)
    lab.balanced([lost], 2)
    heir = lab.join("heir")
    lab.pass_time(lab.session + 1)
    lab.balanced([heir], 2)
    lab.balanced([lost, heir], 1, 1)
    assert lost.assignment().isdisjoint(heir.assignment())
    assert revoked == []  # nothing could be committed any more


def test_a_member_that_goes_on_polling_lives_for_ever(lab):
    lab.make(2)
    alive, other = lab.join("alive"), lab.join("other")
    lab.balanced([alive, other], 1, 1)
    held = alive.assignment()
    for _ in range(10):
        lab.pass_time(lab.session * 0.4)
        alive.poll(1)
        other.poll(1)
    assert alive.assignment() == held
    assert other.assignment() == {0, 1} - held


def test_leaving_frees_partitions_at_once(lab):
    lab.make(3)
    first, second = lab.join("a"), lab.join("b")
    lab.balanced([first, second], 1, 2)
    first.close()
    first.close()
    lab.balanced([second], 3)
    for call in (lambda: first.poll(1), lambda: first.commit({0: 1})):
        with pytest.raises(VerlopsError, match="closed"):
            call()


def test_paused_partitions_give_nothing_and_stay_owned(lab):
    lab.make(2)
    member = lab.join("a")
    lab.balanced([member], 2)
    lab.fill(20)
    member.pause([0, 1])
    for _ in range(5):
        lab.pass_time(lab.session * 0.4)
        assert member.poll(100) == []
    assert member.assignment() == {0, 1}
    member.resume([1])
    got = lab.poll_until([member], bool)
    assert {r.partition for r in got} == {1}
    member.resume([0])
    got += lab.poll_until([member], lambda got: any(r.partition == 0 for r in got))
    assert values(got) == list(range(20))


def test_a_partition_that_comes_back_is_not_paused(lab):
    lab.make(1)
    lab.fill(3)
    member = lab.join("a")
    lab.balanced([member], 1)
    member.pause([0])
    other = lab.join("b")
    lab.pass_time(lab.session + 1)
    lab.balanced([other], 1)
    other.close()
    got = lab.poll_until([member], lambda got: len(got) >= 3)
    assert values(got) == [0, 1, 2]


def test_partitions_added_later_are_taken(lab):
    lab.make(1)
    member = lab.join("a")
    lab.balanced([member], 1)
    lab.make(4)
    lab.fill(30)
    got = lab.poll_until([member], lambda got: len(got) >= 30)
    assert values(got) == list(range(30))
    assert member.assignment() == {0, 1, 2, 3}


def test_groups_know_nothing_of_each_other(lab):
    topic = lab.make(2)
    lab.fill(10)
    mine = lab.join("a")
    theirs = lab.queue.join(topic, "others", member="a", session_timeout=lab.session)
    got = lab.poll_until([mine], lambda got: len(got) >= 10)
    mine.commit(offsets_after(got))
    assert values(lab.poll_until([theirs], lambda got: len(got) >= 10)) == list(range(10))
    assert lab.queue.committed(topic, "others") == {0: None, 1: None}
    assert lab.queue.stats(topic, "others").lag == 10
    assert lab.queue.stats(topic, GROUP).lag == 0


def test_poll_waits_for_a_record_of_somebody_else(lab):
    lab.make(1)
    member = lab.join("a")
    lab.balanced([member], 1)
    publisher = threading.Timer(0.05, lab.again().publish, [lab.topic, [("k", b"1")]])
    publisher.start()
    got = member.poll(10, timeout=20.0)
    publisher.join()
    assert values(got) == [1]


def test_records_trimmed_away_are_stepped_over(lab):
    topic = lab.make(1)
    lab.fill(20)
    member = lab.join("a")
    assert len(lab.poll_until([member], lambda got: len(got) >= 5, limit=5)) == 5
    lab.queue.trim(topic, {0: 12})
    got = lab.poll_until([member], lambda got: len(got) >= 8)
    assert [r.offset for r in got] == list(range(12, 20))


def test_a_commit_below_the_log_start_begins_at_the_log_start(lab):
    topic = lab.make(1)
    lab.fill(20)
    member = lab.join("a")
    lab.balanced([member], 1)
    member.commit({0: 3})
    member.close()
    lab.queue.trim(topic, {0: 15})
    assert lab.queue.stats(topic, GROUP).lag == 5
    got = lab.poll_until([lab.join("b")], lambda got: len(got) >= 5)
    assert [r.offset for r in got] == list(range(15, 20))


def test_a_commit_above_the_end_counts_and_gets_everything_there_is(lab):
    """The topic was made anew under a group that remembers the old one (cloud.md §7)."""
    topic = lab.make(1)
    lab.fill(10)
    member = lab.join("a")
    lab.balanced([member], 1)
    member.commit({0: 99})
    member.close()
    lab.queue.trim(topic, {0: 4})
    assert lab.queue.stats(topic, GROUP).lag == 6
    got = lab.poll_until([lab.join("b")], lambda got: len(got) >= 6)
    assert [r.offset for r in got] == [4, 5, 6, 7, 8, 9]


def test_a_compacted_topic_can_be_consumed_to_its_end(lab):
    topic = lab.make(1, compact=True)
    for number in range(9):
        lab.queue.publish(topic, [("same", str(number).encode())])
    member = lab.join("a")
    got = lab.poll_until([member], lambda got: bool(got) and got[-1].offset == 8)
    assert int(got[-1].value) == 8
    member.commit({0: 9})
    assert lab.queue.stats(topic, GROUP).lag == 0


def test_lag_counts_from_the_log_start_where_nothing_is_committed(lab):
    """KAF-1: (start, end) of (9000, 10000), (0, 0), (500, 500), and no commit: 1000."""
    topic = lab.make(3)
    keys = {lab.queue.publish(topic, [(k, b"")])[0].partition: k for k in map(str, range(50))}
    ends = lab.queue.end_offsets(topic)
    lab.queue.publish(topic, [(keys[0], b"")] * (10_000 - ends[0]))
    lab.queue.publish(topic, [(keys[2], b"")] * (500 - ends[2]))
    lab.queue.trim(topic, {0: 9000, 1: ends[1], 2: 500})
    stats = lab.queue.stats(topic, "new")
    assert (stats.lag, stats.ok, stats.partitions) == (1000, True, 3)
    assert stats.end == 10_000 + ends[1] + 500


def test_stats_follow_what_is_published_and_committed(lab):
    topic = lab.make(2)
    empty = lab.queue.stats(topic, GROUP)
    assert (empty.lag, empty.oldest_age_s, empty.end, empty.ok) == (0, None, 0, True)
    lab.fill(30)
    member = lab.join("a")
    got = lab.poll_until([member], lambda got: len(got) >= 30)
    assert lab.queue.stats(topic, GROUP).lag == 30  # got is not done
    done = got[:10]
    commit = offsets_after(done)
    member.commit(commit)
    stats = lab.again().stats(topic, GROUP)
    assert stats.lag == 30 - sum(commit.values())
    assert stats.end == 30
    assert stats.oldest_age_s is not None
    assert stats.oldest_age_s >= 0
    for rate in (stats.in_per_s, stats.out_per_s):
        assert rate is None or rate >= 0
    member.commit(offsets_after(got))
    assert lab.queue.stats(topic, GROUP).oldest_age_s is None


def test_a_backlog_that_can_not_be_read_is_not_zero(lab):
    stats = lab.queue.stats(lab.topic, GROUP)
    assert not stats.ok
    assert lab.queue.stats("no/topic", GROUP).ok is False


def test_a_negative_offset_can_not_be_committed(lab):
    topic = lab.make(1)
    member = lab.join("a")
    lab.balanced([member], 1)
    with pytest.raises(VerlopsError, match="offset -1"):
        member.commit({0: -1})
    member.commit({})
    assert lab.queue.committed(topic, GROUP) == {0: None}
