"""Random graphs of 10 to 50 tasks on 2 to 4 devices: how far plans are from proven optima, HEFT beside."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from autopar.system.text import table

from . import instances
from .judging import Data, Goal, by_policy, planned, verdict, worst

REDUCED = 12
OPTIMA = Path(__file__).parent / "optima.json"
"""The shortest plan in seconds of each graph by its seed, proven by CP-SAT, for plans that compute each task once and
send each value straight from its producer."""
CEILING = 1.0
"""Seconds that planning may take."""


def run(seeds: int = 0) -> Data:
    """Seeds 0, 1, ... of which the optimum is known."""
    optima = {int(seed): optimum for seed, optimum in json.loads(OPTIMA.read_text()).items()}
    rows = [("seed", "graph", "seconds", "above the optimum", "HEFT")]
    each: dict[str, Data] = {}
    for seed in [*optima][: seeds or REDUCED]:
        graph = instances.small(seed)
        own = each[graph["name"]] = _planned(graph, optima[seed])
        rows.append((
            str(seed), graph["name"].split(":")[1].strip(), f"{own['seconds']:.2f}", f"{own['gap']:.2%}",
            f"{own['heft_gap']:.1%}",
        ))  # fmt: skip
    print(table(rows, right=(0, 2, 3, 4)))
    print("worst:", *(f"\n  {gap:.2%} {name}" for name, gap in worst({n: o["gap"] for n, o in each.items()})))
    return {"instances": each, "goals": verdict(_goals(each))}


def _planned(graph: Data, optimum: float) -> Data:
    began = time.perf_counter()
    ours = planned(graph)
    return {
        "makespan": ours.makespan,
        "bound": ours.bound,
        "cost": ours.cost,
        # Chains use all cores, so that the CPU seconds say little of the wait.
        "seconds": time.perf_counter() - began,
        "gap": ours.makespan / optimum - 1,
        "heft_gap": by_policy(graph, "heft").makespan / optimum - 1,
        "wrong": ours.wrong,
    }


def _goals(each: Mapping[str, Data]) -> Iterator[Goal]:
    yield Goal("above the optimum, median", statistics.median([own["gap"] for own in each.values()]), 0.01)
    yield Goal("above the optimum, worst", max(own["gap"] for own in each.values()), 0.05)
    yield Goal("seconds, worst", max(own["seconds"] for own in each.values()), CEILING, form=".2f")
    above = sum(own["bound"] > own["makespan"] * (1 + 1e-9) for own in each.values())
    yield Goal("bounds above a plan", above, 0, form=".0f")
    wrong = sum(bool(own["wrong"]) for own in each.values())
    yield Goal("plans that cannot be carried out", wrong, 0, form=".0f")
