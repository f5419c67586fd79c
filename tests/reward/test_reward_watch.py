"""The alarm for constant scores, and what is logged."""

from __future__ import annotations

import logging

import pytest

from verlops_workers.reward.watch import MAX_REASONS, WINDOW, ConstantAlarm, Watch


def gauge(watch: Watch) -> str:
    rows = watch.text().decode().splitlines()
    return next(row for row in rows if row.startswith("verlops_reward_constant "))


def test_512_equal_scores_raise_the_alarm_and_one_other_ends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert WINDOW == 512
    watch = Watch()
    with caplog.at_level(logging.INFO):
        watch.gave(["scored"] * 511, [0.5] * 511)
        assert gauge(watch) == "verlops_reward_constant 0.0"
        watch.gave(["scored"], [0.5])
        watch.gave(["scored"], [0.5])
        assert gauge(watch) == "verlops_reward_constant 1.0"
        watch.gave(["scored"], [0.25])
        assert gauge(watch) == "verlops_reward_constant 0.0"
    lines = [r.getMessage() for r in caplog.records]
    assert lines == [
        "the last 512 rewards were all 0.5: nothing can be learnt from them",
        "rewards differ again",
    ]


def test_what_has_no_score_says_nothing_about_constancy() -> None:
    alarm = ConstantAlarm(2)
    alarm.see([])
    assert not alarm.on
    alarm.see([1.0])
    alarm.see([])
    assert not alarm.on
    alarm.see([1.0])
    assert alarm.on


def test_a_score_leaves_the_window_after_its_time() -> None:
    alarm = ConstantAlarm(3)
    alarm.see([0.0, 1.0, 1.0])
    assert not alarm.on
    alarm.see([1.0])
    assert alarm.on


def test_each_reason_is_logged_once_and_the_number_of_reasons_is_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = Watch()
    for n in range(3 * MAX_REASONS):
        watch.failed("rejected", f"reason {n // 2}")
    assert len(caplog.records) == MAX_REASONS
    assert f'failures_total{{kind="rejected"}} {3 * MAX_REASONS}.0' in watch.text().decode()


def test_two_servers_count_apart() -> None:
    one, other = Watch(), Watch()
    one.gave(["scored"], [1.0])
    assert one.given == 1
    assert other.given == 0
    assert b'state="scored"' not in other.text()
