"""`outsize plan`: what a run will take, before it is trained."""

from outsize.plan.plan import Plan
from outsize.plan.planning import Planner, plan_run

__all__ = ["Plan", "Planner", "plan_run"]
