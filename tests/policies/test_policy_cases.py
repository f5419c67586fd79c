"""Every ``policies/cases/<policy>/<case>.yaml`` through the registered policy of that name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from verlops import registry
from verlops.model import Memory, Observation, Pool, TrainerRule

CASES = Path(__file__).parents[2] / "policies" / "cases"
NOW = 1_700_000_000.0
TRIGGERS = set(registry.TRIGGERS)
FILES = sorted(CASES.glob("*/*.yaml"))


def build(kind: type, fragment: dict[str, Any]) -> Any:
    """A struct from a fragment. A misspelt key would test nothing, so it is an error."""
    hints = {f.name: f.type for f in msgspec.structs.fields(kind)}
    unknown = set(fragment) - set(hints)
    assert not unknown, f"{kind.__name__} has no {sorted(unknown)}"
    for name, value in fragment.items():
        if isinstance(value, dict) and isinstance(hints[name], type):
            build(hints[name], value)
    return msgspec.convert(fragment, kind)


def run(policy: str, case: dict[str, Any]) -> dict[str, Any]:
    """What a policy decides in a case, as plain data."""
    table, kind, key = (
        ("TRIGGERS", TrainerRule, "rule") if policy in TRIGGERS else ("POLICIES", Pool, "pool")
    )
    decide = registry.load(table, policy)
    observation = build(Observation, {"now": NOW, **case.get("observation", {})})
    memory = build(Memory, case.get("memory", {}))
    decided = decide(observation, memory, build(kind, case.get(key, {})))
    return {name: getattr(decided, name) for name in decided.__struct_fields__}


def check(policy: str, case: dict[str, Any]) -> None:
    extra = set(case) - {"observation", "memory", "pool", "rule", "expect"}
    assert not extra, f"unknown parts {sorted(extra)}"
    expect = dict(case["expect"])
    decided = run(policy, case)
    assert expect.pop("reason") in decided.pop("reason")
    assert decided == expect


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_case(file: Path) -> None:
    check(file.parent.name, yaml.safe_load(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("table", ["POLICIES", "TRIGGERS"])
def test_every_registered_policy_has_cases_that_differ(table: str) -> None:
    for policy in registry.tables()[table]:
        cases = [yaml.safe_load(f.read_text(encoding="utf-8")) for f in CASES.glob(f"{policy}/*")]
        answers = {str(sorted(run(policy, case).items())) for case in cases}
        assert len(answers) >= 3, f"{policy}: add cases to policies/cases/{policy}/"


@pytest.mark.parametrize(
    "wrong",
    [
        {"expect": {"count": 4, "reason": "fixed"}},
        {"expect": {"count": 5, "reason": "backlog"}},
        {"expect": {"reason": "fixed"}},
        {"pool": {"fxed": 5}, "expect": {"count": 5, "reason": "fixed"}},
        {"observation": {"queue": {"lagg": 1}}, "expect": {"count": 5, "reason": "fixed"}},
        {"obsrvation": {}, "expect": {"count": 5, "reason": "fixed"}},
    ],
)
def test_a_wrong_case_fails(wrong: dict[str, Any]) -> None:
    right = {"pool": {"fixed": 5}, "expect": {"count": 5, "reason": "fixed at 5"}}
    check("fixed", right)
    with pytest.raises(AssertionError):
        check("fixed", {**right, **wrong})
