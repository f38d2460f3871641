"""Random graphs of 10 to 50 tasks on 2 to 4 devices: how far the default search is from what CP-SAT proves."""

from __future__ import annotations

import importlib.util
import time

from ...formats import read
from ...placement import place
from ...placement.anneal import STEPS
from ...placement.exact import EFFORT, exact
from ...placement.orders import kept
from ...problem import Problem
from ...tables import table
from .. import instances
from .judging import Asked, Data, Goal, by_policy, median, planned, verdict, without_solver, worst

REDUCED = 12
QUICK = 1.0
"""What the solver may spend on each graph in the reduced size, in its own deterministic time, instead of `EFFORT`."""
LARGEST = (50, 4)
"""Tasks and devices of the graphs that the solver, with `EFFORT`, is to prove optimal."""
LARGEST_SEEDS = 3


def run(asked: Asked) -> Data:
    """Seeds 0, 1, ...; 500 is full size. Without OR-tools the gaps are those to our own bound."""
    solver = installed()
    if not solver:
        print("OR-tools is not installed, so that nothing is proven; type: pip install 'autopar[exact]'")
    rows = [
        ("seed", "graph", "search s", "above known", "default s", "above known", "HEFT", "CP-SAT s", "proven")
    ]
    each: dict[str, Data] = {}
    for seed in range(asked.seeds or REDUCED):
        graph = instances.small(seed)
        with without_solver():
            search = planned(graph)
        default = planned(graph) if solver else search
        found: Data = {
            "makespan": search.makespan,
            "bound": max(search.bound, default.bound),
            "cost": search.cost,
            "default_makespan": default.makespan,
            "default_cost": default.cost,
            "heft": by_policy(graph, "heft").makespan,
            "wrong": search.wrong + default.wrong,
        }
        if solver:
            found |= solve(graph, EFFORT if asked.seeds else QUICK)
        # Below 0 where it pays to compute a task twice, which the solver never does.
        known = found["exact"] if found.get("proven") else max(search.bound, found.get("proven_bound", 0.0))
        found["gap"], found["default_gap"] = search.makespan / known - 1, default.makespan / known - 1
        each[graph["name"]] = found
        rows.append((
            str(seed), graph["name"].split(":")[1].strip(), f"{search.cost:.2f}", f"{found['gap']:.2%}",
            f"{default.cost:.2f}", f"{found['default_gap']:.2%}", f"{found['heft'] / known - 1:.1%}",
            f"{found.get('solver_s', 0):.1f}", "yes" if found.get("proven") else "no",
        ))  # fmt: skip
    print(table(rows, right=(0, 2, 3, 4, 5, 6, 7)))
    proven = {name: own["gap"] for name, own in each.items() if own.get("proven")}
    rest = [own["gap"] for own in each.values() if not own.get("proven")]
    print(
        f"proven {len(proven)} of {len(each)}; the rest is {_percents(rest)} above the bound (median, worst)"
    )
    print("worst:", *(f"\n  {gap:.2%} {name}" for name, gap in worst(proven)))
    largest = _largest() if solver else []
    slow = worst({name: own["default_cost"] for name, own in each.items()}, 3)
    print("slowest:", *(f"\n  {cost:.2f} s {name}" for name, cost in slow))
    goals = [
        Goal("proven by CP-SAT", len(proven) / len(each) if solver else None, 0.7, least=True),
        Goal("search alone: gap to the optimum, median", median([*proven.values()]), 0.01),
        Goal("search alone: gap to the optimum, worst", max(proven.values(), default=None), 0.05),
        Goal("search alone: CPU seconds, worst", max(own["cost"] for own in each.values()), 1.0, form=".2f"),
        Goal("default: gap to the optimum, worst", max((o["default_gap"] for o in each.values() if o.get("proven")),
             default=None), 0.05),
        Goal("default: CPU seconds, worst", max(o["default_cost"] for o in each.values()) if solver else None, 1.0,
             form=".2f"),
        Goal("bounds above a plan that was found", sum(o["bound"] > o["makespan"] * (1 + 1e-9) for o in each.values()),
             0, form=".0f"),
        Goal("proven, of 50 tasks × 4 devices", sum(o["proven"] for o in largest) / LARGEST_SEEDS if solver else None,
             1.0, least=True),
        Goal("CPU seconds of that, worst", max((o["solver_s"] for o in largest), default=None), 20, form=".1f"),
        Goal("plans that cannot be carried out", sum(bool(own["wrong"]) for own in each.values()), 0, form=".0f"),
    ]  # fmt: skip
    return {"instances": each, "largest": largest, "goals": verdict(goals)}


def _largest() -> list[Data]:
    """What the solver makes of the first graphs of 50 tasks on 4 devices, the default search before it included."""
    found = []
    for seed in range(LARGEST_SEEDS):
        graph = instances.small(seed, tasks=LARGEST[0], devices=LARGEST[1])
        own = solve(graph, EFFORT)
        print(f"{graph['name']}: {'proven' if own['proven'] else 'not proven'} in {own['solver_s']:.1f} s")
        found.append(own)
    return found


def installed() -> bool:
    """Whether there is a solver."""
    return importlib.util.find_spec("ortools") is not None


def solve(graph: Data, effort: float) -> Data:
    """What CP-SAT makes of the best plan in which every task is computed once."""
    start = time.process_time()
    costed = read(graph)
    found = exact(Problem(costed), kept(place(costed, steps=STEPS)), effort=effort)
    return {
        "exact": found.makespan,
        "proven_bound": found.lower_bound,
        "proven": found.optimal,
        "solver_s": time.process_time() - start,
    }


def _percents(values: list[float]) -> str:
    return f"{median(values):.2%}, {max(values):.2%}" if values else "none"
