"""SAGA's own families of task graphs and networks, as it makes them, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .related import Instance
from .rivals import taken

RATIOS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Of communication to computation, to which `scale_to_ccr` brings a network."""


def made(family: str, seed: int, tasks: int) -> Instance:
    """An instance of about so many tasks.

    Even seeds have the weights that SAGA draws when it is told nothing, which are all alike; odd ones the clipped
    normal weights of its papers, and a network scaled to one of `RATIOS`, but for what stays on a node: `scale_to_ccr`
    would have that take time too, which its papers do not.
    """
    import numpy
    from saga.schedulers.data import random as sets

    random.seed(seed * 1_000_003 + tasks)
    numpy.random.seed(seed * 1_009 % 2**32 + tasks)
    weight = (lambda *_: min(2.0, max(1e-9, random.gauss(1, 1 / 3)))) if seed % 2 else None
    graph = FAMILIES[family](tasks, weight)
    if family in STREAMS:
        network = _fog()
    else:
        network = sets.gen_random_networks(1, random.randint(3, 8), weight, weight)[0]
        if seed % 2:
            network = network.scale_to_ccr(graph, random.choice(RATIOS))
    return taken(f"{family} {seed}: {len(graph.tasks)} tasks, {len(network.nodes)} nodes", network, graph)


def _tree(kind: str) -> Callable[[int, Any], Any]:
    def make(tasks: int, weight: Any) -> Any:
        from saga.schedulers.data import random as sets

        factor = random.randint(2, 4)
        levels = 1
        while factor ** (levels + 2) <= tasks * (factor - 1):
            levels += 1
        return getattr(sets, kind)(1, levels, factor, weight, weight)[0]

    return make


def _chains(tasks: int, weight: Any) -> Any:
    from saga.schedulers.data import random as sets

    length = random.randint(2, max(3, round(tasks**0.5)))
    return sets.gen_parallel_chains(1, max(2, tasks // length), length, weight, weight)[0]


def _branching(tasks: int, _: Any) -> Any:
    from saga.utils import random_graphs

    # Its own distribution, which gives arrays of one that its own tasks refuse.
    uniform = SimpleNamespace(sample=lambda: random.uniform(0.1, 1.0))
    return random_graphs.get_branching_dag(max(3, (tasks + 1).bit_length() - 1), 2, uniform)


def _stream(kind: str) -> Callable[[int, Any], Any]:
    def make(_: int, __: Any) -> Any:
        from saga.schedulers.data import riotbench

        return getattr(riotbench, f"get_{kind}_task_graphs")(1)[0]

    return make


def _fog() -> Any:
    from saga.schedulers.data import riotbench

    return riotbench.get_fog_networks(1, num_edges_nodes=20, num_fog_nodes=3, num_cloud_nodes=2)[0]


STREAMS = tuple(f"riotbench {kind}" for kind in ("etl", "stats", "train", "predict"))
"""Applications of about ten tasks on edge, fog and cloud, whatever size is asked for; with fewer nodes than SAGA's
111, of which all but a few are alike."""
FAMILIES: dict[str, Callable[[int, Any], Any]] = {
    "out trees": _tree("gen_out_trees"),
    "in trees": _tree("gen_in_trees"),
    "parallel chains": _chains,
    "branching": _branching,
    **{name: _stream(name.split()[1]) for name in STREAMS},
}
"""What SAGA can make from its own code alone. Its scientific workflows need files from the net."""
