"""Random graphs of 10 to 50 tasks on 2 to 4 devices: how far the default search is from what CP-SAT proves."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autopar.planner import place
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import schedule_of
from autopar.planner.search.anneal import STEPS
from autopar.system.text import table

from . import instances
from .judging import Asked, Data, Goal, Judged, by_policy, median, planned, verdict, without_solver, worst

REDUCED = 12
CEILING = 1.0
"""Seconds that planning may take, and those given as `budget_s` where a proof is not to take longer."""
EFFORT = 6.0
"""What the solver may spend on each graph in the full size, in its own deterministic time."""
QUICK = 1.0
"""What the solver may spend on each graph in the reduced size, in its own deterministic time, instead of `EFFORT`."""
PROOF = 20.0
"""Seconds for a proof."""
PLANS = ("", "within_", "default_")
"""What the figures of the search alone, of a plan within `CEILING` and of the default are called by."""
LARGEST = (50, 4)
"""Tasks and devices of the graphs that the solver, with `EFFORT`, is to prove optimal."""
LARGEST_SEEDS = 3


def run(asked: Asked) -> Data:
    """Seeds 0, 1, ...; 500 is full size. Without OR-tools the gaps are those to our own bound."""
    solver = installed()
    if not solver:
        print("OR-tools is not installed, so that nothing is proven; type: pip install 'autopar[exact]'")
    rows = [(
        "seed", "graph", "search s", "above known", f"in {CEILING:g} s", "above known", "default CPU s",
        "above known", "HEFT", "CP-SAT s", "proven",
    )]  # fmt: skip
    each: dict[str, Data] = {}
    for seed in range(asked.seeds or REDUCED):
        graph = instances.small(seed)
        own = each[graph["name"]] = _planned(graph, solver, EFFORT if asked.seeds else QUICK)
        rows.append((
            str(seed), graph["name"].split(":")[1].strip(), f"{own['seconds']:.2f}", f"{own['gap']:.2%}",
            f"{own['within_seconds']:.2f}", f"{own['within_gap']:.2%}", f"{own['default_cost']:.2f}",
            f"{own['default_gap']:.2%}", f"{own['heft_gap']:.1%}", f"{own['solver_s']:.1f}",
            "yes" if own["proven"] else "no",
        ))  # fmt: skip
    print(table(rows, right=(0, *range(2, 10))))
    proven = {name: own for name, own in each.items() if own["proven"]}
    rest = [own["gap"] for own in each.values() if not own["proven"]]
    print(
        f"proven {len(proven)} of {len(each)}; the rest is {_percents(rest)} above the bound (median, worst)"
    )
    gaps = worst({name: own["gap"] for name, own in proven.items()})
    print("worst:", *(f"\n  {gap:.2%} {name}" for name, gap in gaps))
    slow = worst({name: own["default_cost"] for name, own in each.items()}, 3)
    print("slowest:", *(f"\n  {cost:.2f} s {name}" for name, cost in slow))
    largest = _largest() if solver else []
    return {"instances": each, "largest": largest, "goals": verdict(_goals(each, proven, largest, solver))}


def _planned(graph: Data, solver: bool, effort: float) -> Data:
    """The figures of one graph: of the search alone, of the default within `CEILING` and without it, and of CP-SAT."""
    with without_solver():
        search, seconds = _waited(graph)
    within, within_seconds = _waited(graph, budget_s=CEILING) if solver else (search, seconds)
    default = planned(graph) if solver else search
    heft = by_policy(graph, "heft").makespan
    plans = dict(zip(PLANS, (search, within, default)))
    found: Data = {f"{name}makespan": plan.makespan for name, plan in plans.items()}
    found |= {
        "bound": max(plan.bound for plan in plans.values()),
        "cost": search.cost,
        "seconds": seconds,
        "within_seconds": within_seconds,
        "default_cost": default.cost,
        "heft": heft,
        "wrong": [wrong for plan in plans.values() for wrong in plan.wrong],
    }
    found |= solve(graph, effort) if solver else {"proven": False, "solver_s": 0.0}
    # Below 0 where it pays to compute a task twice, which the solver never does.
    known = found["exact"] if found["proven"] else max(search.bound, found.get("proven_bound", 0.0))
    found |= {f"{name}gap": plan.makespan / known - 1 for name, plan in plans.items()}
    return found | {"heft_gap": heft / known - 1}


def _waited(graph: Data, **asked: Any) -> tuple[Judged, float]:
    """The plan, and the seconds until it is there, judged: chains use all cores."""
    began = time.perf_counter()
    return planned(graph, **asked), time.perf_counter() - began


def _goals(
    each: Mapping[str, Data], proven: Mapping[str, Data], largest: Sequence[Data], solver: bool
) -> Iterator[Goal]:
    def most(name: str, of: Mapping[str, Data] = proven) -> float | None:
        return max((own[name] for own in of.values()), default=None)

    yield Goal("proven by CP-SAT", len(proven) / len(each) if solver else None, 0.7, least=True)
    yield Goal("search alone: gap, median", median([own["gap"] for own in proven.values()]), 0.01)
    yield Goal("search alone: gap, worst", most("gap"), 0.05)
    yield Goal("search alone: seconds, worst", most("seconds", each), CEILING, form=".2f")
    with_solver = each if solver else {}
    yield Goal(f"OR-tools, budget_s={CEILING:g}: gap, worst", most("within_gap"), 0.05)
    yield Goal("the same: seconds, worst", most("within_seconds", with_solver), CEILING, form=".2f")
    yield Goal("OR-tools, no ceiling: gap, worst", most("default_gap"), 0.05)
    yield Goal("the same: CPU seconds, worst", most("default_cost", with_solver), PROOF, form=".1f")
    shortest = (min(own[f"{name}makespan"] for name in PLANS) for own in each.values())
    above = sum(own["bound"] > least * (1 + 1e-9) for own, least in zip(each.values(), shortest))
    yield Goal("bounds above a plan that was found", above, 0, form=".0f")
    share = sum(own["proven"] for own in largest) / LARGEST_SEEDS if solver else None
    yield Goal("proven, of 50 tasks × 4 devices", share, 1.0, least=True)
    slowest = max((own["solver_s"] for own in largest), default=None)
    yield Goal("CPU seconds of that, worst", slowest, PROOF, form=".1f")
    wrong = sum(bool(own["wrong"]) for own in each.values())
    yield Goal("plans that cannot be carried out", wrong, 0, form=".0f")


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
    from autopar.planner.exact.proof import proofs

    start = time.process_time()
    costed = read(graph)
    plan = place(costed, steps=STEPS)
    *_, found = proofs(Instance(costed), schedule_of(plan), effort, bound=plan.lower_bound)
    return {
        "exact": found.best.makespan,
        "proven_bound": found.bound,
        "proven": found.optimal,
        "solver_s": time.process_time() - start,
    }


def _percents(values: list[float]) -> str:
    return f"{median(values):.2%}, {max(values):.2%}" if values else "none"
