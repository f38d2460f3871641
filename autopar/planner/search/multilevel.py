"""Plan a graph by its clusters first, and refine that on the graph itself."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import PlanError
from ..bounds import lower_bound
from ..model.instance import Instance
from ..model.simulator import Play, Schedule
from ..native import searches
from .anneal import PARAMS as ANNEALING
from .anneal import anneal, refine
from .clusters import contracted, joined


@dataclass(frozen=True)
class MultilevelParams:
    """What clusters are planned first, and for how long."""

    clusters: int = 64
    """Clusters that are planned first."""
    fewest: int = 128
    """Runs from which on this is tried."""
    first: float = 0.0625
    after: float = 0.25
    """Shares of the search's steps for the clusters and, from what is found, for the clusters themselves."""
    worth: float = 0.75
    """Share of what a plan is above its bound that the clusters' own bound may be, for a shorter plan to be likely."""


PARAMS = MultilevelParams()


def coarse(
    instance: Instance,
    bound: float,
    makespan: float,
    steps: int,
    until: float,
    params: MultilevelParams = PARAMS,
) -> list[Schedule]:
    """What the search finds from a plan of clusters, the shortest first.

    Nothing where clusters must lose much beside a plan that takes `makespan` (of seconds, as `bound`), as on unrelated
    devices, nor under memory caps, for graphs that `anneal` does not take, for few steps or without the native search.
    Deterministic; `steps` and `until` as there.
    """
    unfit = not params.fewest <= instance.clusters < ANNEALING.large or steps < ANNEALING.least
    if unfit or instance.tight or instance.modes or not searches():
        return []
    cluster = contracted(instance, params.clusters)
    whole = joined(instance, cluster)
    try:
        few = Instance(whole)
    except PlanError:
        # Where links are missing, no cluster may find a way.
        return []
    least = lower_bound(few)
    if few.clusters > instance.clusters / 2 or least > bound + params.worth * (makespan - bound):
        return []
    found = anneal(few, least, int(steps * params.first), until)
    if not found:
        return []
    play = Play(few, found[0])
    at = {instance.number[name]: position for position, name in enumerate(few.names)}
    own = [at[c] for c in cluster]
    device, start = [play.device[c] for c in own], [play.start[c] for c in own]
    return refine(
        instance,
        bound,
        device,
        start,
        steps * params.after * (1 - instance.clusters / ANNEALING.large),
        until,
    )
