"""The shortest schedule there is, with a proof, by constraint programming (OR-tools CP-SAT): small graphs.

Optional intervals on unrelated devices (Laborie et al., "IBM ILOG CP Optimizer for scheduling", Constraints 23,
2018), transfers as intervals of their wires, and what `bounds` and `windows` know of heads, tails and loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...errors import PlanError
from ..model.instance import Instance
from ..model.simulator import Schedule
from .result import PARAMS, Exact, Params

__all__ = ["Exact", "Params", "exact", "held", "proofs"]


def exact(
    instance: Instance,
    start: Schedule,
    params: Params = PARAMS,
    *,
    budget_s: float | None = None,
    bound: float = 0.0,
) -> Exact:
    """Improve `start`, which must fit, until it is proven that nothing is shorter: the last of `proofs`."""
    *_, last = proofs(instance, start, params, budget_s=budget_s, bound=bound)
    return last


def proofs(
    instance: Instance,
    start: Schedule,
    params: Params = PARAMS,
    *,
    budget_s: float | None = None,
    bound: float = 0.0,
) -> Iterator[Exact]:
    """Improve `start`, which must fit, until it is proven that nothing is shorter or the effort is spent.

    What is known after each step: a short one first, then one for heads and tails, then longer ones. The bound holds
    for schedules that do every cluster once; `bound` is one that is known. `budget_s` is a ceiling in seconds. The
    model has a variable for each cluster, and each value, on each device: it is for up to some hundreds of clusters.
    Raises PlanError where OR-tools is not installed.
    """
    _require()
    from .proof import Proof

    proof = Proof(instance, start, bound, params, budget_s)
    proof.solve(params.first)
    yield proof.known()
    if proof.going:
        proof.narrow(params.narrowing)
        yield proof.known()
    effort = params.following
    while proof.going:
        proof.solve(effort)
        yield proof.known()
        effort *= params.growth


def held(
    instance: Instance, start: Schedule, below: float, bound: float, params: Params, until: float = math.inf
) -> Iterator[Schedule]:
    """Schedules near `start` of less than `below` seconds that wires keep when they serve first come, first served.

    `bound` is one on all schedules; `until` a time of the monotonic clock. Raises PlanError where OR-tools is not
    installed.
    """
    _require()
    from .first_come import sought

    yield from sought(instance, start, below, bound, params, until)


def _require() -> None:
    try:
        import ortools.sat.python.cp_model  # noqa: F401
    except ImportError:
        raise PlanError(
            "OR-tools, with which plans are proven optimal, is not installed; type: pip install 'autopar[exact]'"
        ) from None
