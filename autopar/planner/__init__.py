"""The planner: `place` a costed graph, `replan` an edited plan."""

from collections.abc import Callable
from functools import partial

from ..ir.plan import Plan
from .model.simulator import Schedule
from .policies import POLICIES, Policy, require_policy
from .portfolio import place, replan
from .search.anneal import STEPS
from .throughput.objective import throughput

OBJECTIVES: dict[str, Callable[..., Plan]] = {
    "latency": partial(place, steps=STEPS, copies=True),
    "throughput": throughput,
}
"""Function for each objective of a plan: (costed graph, `budget_s=`) → the plan."""

__all__ = ["OBJECTIVES", "POLICIES", "Policy", "Schedule", "place", "replan", "require_policy"]
