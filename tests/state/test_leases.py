"""The rule of a lease: clocks that jump, and the invariants of the fence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verlops.ports import Lease
from verlops.state.leases import NOBODY, Term, ask, refusal

NOW = 1_700_000_000.0
TTL = 60.0


def term(holder: str = "a", fence: int = 3, expires_at: float = NOW + TTL) -> Term:
    return Term(Lease("controller", holder, fence, expires_at), TTL)


def test_a_clock_set_back_does_not_end_the_lease() -> None:
    answer = ask(term(), "controller", "b", TTL, NOW - 3600)
    assert not answer.granted


def test_a_clock_set_back_does_not_lengthen_the_lease_beyond_one_term() -> None:
    back = NOW - 3600
    refused = ask(term(), "controller", "b", TTL, back)
    assert refused.term == term(expires_at=back + TTL)
    assert not ask(refused.term, "controller", "b", TTL, back + TTL - 1).granted
    taken = ask(refused.term, "controller", "b", TTL, back + TTL)
    assert taken.granted
    assert taken.term.lease.fence == 4


def test_looking_again_and_again_does_not_keep_the_lease_alive() -> None:
    held, looked_at = term(), NOW
    while looked_at < NOW + TTL:
        answer = ask(held, "controller", "b", TTL, looked_at)
        assert not answer.granted
        held = answer.term
        looked_at += 7
    assert ask(held, "controller", "b", TTL, NOW + TTL).granted


def test_an_asker_with_a_shorter_term_does_not_cut_the_holder_short() -> None:
    answer = ask(term(), "controller", "b", 1.0, NOW)
    assert answer.term == term()
    assert not ask(answer.term, "controller", "b", 1.0, NOW + 30).granted


def test_the_holder_renews_after_a_jump_with_the_same_fence() -> None:
    answer = ask(term(), "controller", "a", TTL, NOW - 3600)
    assert answer.granted
    assert answer.term == term(expires_at=NOW - 3600 + TTL)


@pytest.mark.parametrize(("holder", "ttl"), [("", TTL), ("a", 0.0), ("a", -1.0)])
def test_nonsense_is_refused(holder: str, ttl: float) -> None:
    with pytest.raises(ValueError, match="needs a holder"):
        ask(None, "controller", holder, ttl, NOW)


def test_the_refusal_says_who_and_until_when() -> None:
    text = str(refusal(term("host/42/1.00").lease, NOW))
    assert text == (
        "lease 'controller' is held by host/42/1.00 until 2023-11-14 22:14:20 UTC, "
        "for 60 s more (wait for it, or stop that controller)"
    )


asks = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "release"]),
        st.floats(-200, 200),
        st.sampled_from([10.0, 60.0]),
        st.booleans(),
    ),
    max_size=40,
)


@given(asks)
def test_a_fence_names_one_term_of_one_holder(
    history: list[tuple[str, float, float, bool]],
) -> None:
    held: Term | None = None
    now, owners = NOW, {}
    for holder, passed, ttl, dead in history:
        now += passed
        if holder == "release":
            if held and held.lease.holder:
                held = Term(held.lease._replace(holder=NOBODY, expires_at=0.0), held.ttl)
            continue
        before = held.lease.fence if held else 0
        answer = ask(held, "controller", holder, ttl, now, lambda _, dead=dead: dead)
        held = answer.term
        lease = held.lease
        assert lease.fence in (before, before + 1)
        assert lease.expires_at <= now + held.ttl
        assert answer.granted == (lease.holder == holder)
        if answer.granted:
            assert owners.setdefault(lease.fence, holder) == holder
        else:
            assert lease.fence == before
            assert lease.expires_at > now
