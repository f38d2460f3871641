"""Soundness of a lower bound against a plan."""

from __future__ import annotations

import sys
import warnings

from ..errors import BoundWarning

ROUNDING = 1e-9
"""Share of the times of a plan by which sums of floats may put a bound above what it reaches."""


def sound(bound: float, reached: float, makespan: float = 0.0) -> float:
    """The bound, from 0 to what a plan reached, both in seconds: its makespan, or a difference of times up to that.

    A bound that the plan refutes by more than rounding proves nothing: then it is 0, with a BoundWarning.
    """
    if bound <= reached + max(reached, makespan) * ROUNDING + sys.float_info.min:
        return max(0.0, min(bound, reached))
    warnings.warn(
        f"the lower bound of {bound} s is above a plan that takes {reached} s: a fault of autopar, please report it "
        "with the graph. The plan holds; of how near it is to the shortest nothing is claimed",
        BoundWarning,
        stacklevel=2,
    )
    return 0.0
