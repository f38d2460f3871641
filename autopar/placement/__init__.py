"""Who runs what, where and when: `place` a costed graph, `replan` an edited plan."""

from ..simulate import Schedule
from .search import POLICIES, Policy, place, replan

__all__ = ["POLICIES", "Policy", "Schedule", "place", "replan"]
