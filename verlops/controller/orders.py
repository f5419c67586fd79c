"""The control records of a step: what rollout, trainer and reward machines should do. Pure."""

from __future__ import annotations

from verlops.messages import Control
from verlops.model import Observation, TrainerRule


def orders(
    observation: Observation,
    rule: TrainerRule,
    *,
    group_size: int,
    fence: int,
    reward_url: str,
    mode: str,
    stopped: str = "",
) -> list[Control]:
    """One record a role; published each step, so that a machine knows we are alive."""
    serving = mode == "run" and not stopped and bool(reward_url)
    why = "" if serving else stopped or ("no reward server yet" if mode == "run" else "going down")
    common = {"fence": fence, "at": observation.now, "version": observation.version}
    rollout = Control(
        target="rollout",
        command="serve" if serving else "pause",
        quota=worker_quota(observation, rule, group_size),
        version_floor=max(0, observation.version - rule.staleness),
        reward_url=reward_url,
        reason=why,
        **common,  # type: ignore[arg-type]
    )
    others = [Control(target=t, **common) for t in ("trainer", "reward")]  # type: ignore[arg-type]
    return [rollout, *others]


def worker_quota(observation: Observation, rule: TrainerRule, group_size: int) -> int:
    """Samples that each worker may newly take, in whole groups (DATAPLANE rule 5).

    The room below (η + 1) · N is shared among the workers that take prompts.
    """
    room = (rule.staleness + 1) * rule.batch - observation.samples.outstanding
    workers = sum(i.phase == "ready" for i in observation.of_role("rollout"))
    share = max(0, room) // max(1, workers)
    return share - share % group_size
