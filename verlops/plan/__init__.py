"""From what is wanted to what is done: the same safe steps for every policy. Pure.

Called by the controller: ``plan`` decides actions, ``learn`` takes in their outcomes;
``reopen`` is for a person's ``up``. Never reads a clock, never acts. The order in which
the rules hold: money and ``down`` · replacing what is lost · the minimum · holding
while blind · up · down.
"""

from verlops.plan.ends import reopen
from verlops.plan.keys import machine_key
from verlops.plan.learn import learn
from verlops.plan.round import plan
from verlops.plan.settings import PlanResult, PlanSettings

__all__ = ["PlanResult", "PlanSettings", "learn", "machine_key", "plan", "reopen"]
