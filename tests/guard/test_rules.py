"""When the guard ends a machine: one rule a test, and which of two comes first."""

from __future__ import annotations

import pytest

from verlops_workers.guard.rules import Facts, Limits, judge
from verlops_workers.host import Status

TRAINER = Limits(grace=10, control_ttl=60, deadline=100, no_progress=30, fenced=True)
WORKER = Limits(grace=10, control_ttl=60)


def facts(**changes) -> Facts:
    base = Facts(age=5, status=Status(), progress_age=1, done_age=None, control_age=1)
    return base._replace(**changes)


@pytest.mark.parametrize(
    ("limits", "changes", "reason"),
    [
        (TRAINER, {}, None),
        (TRAINER, {"command": "stop"}, "guard:stop"),
        (TRAINER, {"own_fence": 3, "highest_fence": 4}, "guard:fence"),
        (TRAINER, {"own_fence": 4, "highest_fence": 4}, None),
        (WORKER, {"own_fence": 3, "highest_fence": 4}, None),
        (TRAINER, {"done_age": 9}, None),
        (TRAINER, {"done_age": 11}, "done"),
        (WORKER, {"done_age": 11}, "done"),
        (TRAINER, {"age": 101}, "guard:deadline"),
        (WORKER, {"age": 10_000}, None),
        (TRAINER, {"progress_age": 31}, "guard:no_progress"),
        (TRAINER, {"progress_age": 31, "status": Status(done=True)}, None),
        (WORKER, {"progress_age": 10_000}, None),
        (TRAINER, {"control_age": 61}, "guard:no_control"),
        (WORKER, {"control_age": 61}, "guard:no_control"),
        (WORKER, {"command": "drain"}, None),
    ],
)
def test_rules(limits: Limits, changes: dict, reason: str | None) -> None:
    verdict = judge(facts(**changes), limits)
    assert (verdict.reason if verdict else None) == reason


def test_only_what_can_still_save_work_is_asked_gently() -> None:
    gentle = [{"command": "stop"}, {"control_age": 61}]
    hard = [{"highest_fence": 9}, {"age": 101}, {"progress_age": 31}, {"done_age": 11}]
    assert all(judge(facts(**f), TRAINER).gently for f in gentle)
    assert not any(judge(facts(**f), TRAINER).gently for f in hard)
