"""Graphs of known optimum, 50 to 1,000 tasks on 2 to 8 devices: how far above it; HEFT and its look-ahead beside."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.planner.formats import read
from autopar.system.text import table

from . import instances
from .judging import Data, Goal, by_policy, planned, verdict, worst

RATIOS = (0.1, 1.0, 5.0)
SIZES = ((50, 2), (100, 4), (200, 8), (500, 4), (1000, 8))
REDUCED = ((50, 2), (100, 4), (200, 8))
QUICK = 200
"""Tasks up to which a plan must be there in 5 s."""
RIVALS = {"HEFT": "heft", "look-ahead": "heft+lookahead"}


def run(seeds: int = 0) -> Data:
    """Seeds 0, 1, ... of every size and ratio, 20 being full size; reduced, two seeds and up to 200 tasks."""
    sizes, seeds = (SIZES, seeds) if seeds else (REDUCED, 2)
    each: dict[str, Data] = {}
    for tasks, devices in sizes:
        for ratio in RATIOS:
            for seed in range(seeds):
                graph, optimum = instances.planted(seed, tasks, devices, ratio)
                ours = planned(graph)
                own = {
                    "tasks": tasks,
                    "devices": devices,
                    "ratio": ratio,
                    "autopar": ours.makespan / optimum - 1,
                    "bound": ours.bound / optimum - 1,
                    "cost": ours.cost,
                    "wrong": ours.wrong,
                }
                costed = read(graph)
                own |= {
                    name: by_policy(graph, policy, costed).makespan / optimum - 1
                    for name, policy in RIVALS.items()
                }
                each[graph["name"]] = own
    print(table([*_rows(each, sizes)], right=range(2, 9)))
    print(
        "worst:",
        *(f"\n  {gap:.2%} {name}" for name, gap in worst({n: o["autopar"] for n, o in each.items()})),
    )
    return {"instances": each, "goals": verdict(_goals(each))}


def _rows(each: dict[str, Data], sizes: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, ...]]:
    yield (
        "tasks × devices",
        "ratio",
        "mean above",
        "worst",
        *RIVALS,
        "above our bound",
        "CPU s, mean",
        "worst",
    )
    for tasks, devices in sizes:
        for ratio in RATIOS:
            own = [
                o for o in each.values() if (o["tasks"], o["devices"], o["ratio"]) == (tasks, devices, ratio)
            ]
            figures = {
                key: sum(o[key] for o in own) / len(own) for key in ("autopar", *RIVALS, "bound", "cost")
            }
            yield (
                f"{tasks} × {devices}", f"{ratio:g}", f"{figures['autopar']:.2%}",
                f"{max(o['autopar'] for o in own):.2%}", *(f"{figures[name]:.1%}" for name in RIVALS),
                f"{(1 + figures['autopar']) / (1 + figures['bound']) - 1:.2%}", f"{figures['cost']:.2f}",
                f"{max(o['cost'] for o in own):.2f}",
            )  # fmt: skip


def _goals(each: dict[str, Data]) -> Iterator[Goal]:
    for at_most, kind, limit in ((1.0, "ratio ≤ 1", 0.005), (5.0, "ratio 5", 0.08)):
        ratios = [ratio for ratio in RATIOS if (ratio <= 1.0) == (at_most <= 1.0)]
        for quick, size in ((True, f"≤ {QUICK} tasks"), (False, f"> {QUICK} tasks")):
            gaps = [
                o["autopar"] for o in each.values() if o["ratio"] in ratios and (o["tasks"] <= QUICK) == quick
            ]
            if gaps:
                yield Goal(f"above the optimum, {kind}, {size}, mean", sum(gaps) / len(gaps), limit)
                yield Goal(f"above the optimum, {kind}, {size}, worst", max(gaps), limit)
    quick_costs = [o["cost"] for o in each.values() if o["tasks"] <= QUICK]
    yield Goal(f"CPU seconds of planning, ≤ {QUICK} tasks, worst", max(quick_costs), 5.0, form=".2f")
    yield Goal("bounds above the optimum", sum(o["bound"] > 1e-9 for o in each.values()), 0, form=".0f")
    yield Goal(
        "plans that cannot be carried out", sum(bool(o["wrong"]) for o in each.values()), 0, form=".0f"
    )
