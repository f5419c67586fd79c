"""From what is wanted to what is done: the same safe steps for every policy. Pure.

Called by the controller: ``plan`` decides actions, ``learn`` takes in their outcomes.
The rules and their order of precedence are in ARCHITECTURE.md.
"""

from verlops.plan.keys import machine_key
from verlops.plan.learn import learn
from verlops.plan.round import plan
from verlops.plan.settings import PlanResult, PlanSettings

__all__ = ["PlanResult", "PlanSettings", "learn", "machine_key", "plan"]
