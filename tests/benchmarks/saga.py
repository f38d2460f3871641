"""SAGA's schedulers on SAGA's own families, without contention: makespans, both sides judged, and planning time."""

from __future__ import annotations

from contextlib import nullcontext

from autopar.system.text import table

from . import rivals
from .families import FAMILIES, STREAMS, made
from .judging import Asked, Data, Goal, planned, verdict, worst

SIZES = (50, 200, 500, 1000, 2000, 5000)
REDUCED = (50, 120)
LARGE = 300
"""Tasks from which on SAGA's searches through lists are replaced by look-ups, not to wait for hours."""
TIMED = 5000
"""Tasks at which HEFT is timed, as SAGA has it."""


def run(asked: Asked) -> Data:
    """Two seeds of each family and size in the reduced size, without the large ones."""
    if not rivals.installed():
        print(rivals.MISSING)
        return {}
    sizes = SIZES if asked.seeds else REDUCED
    each: dict[str, Data] = {}
    invalid: dict[str, list[str]] = {}
    for family in FAMILIES:
        for tasks in sizes[:1] if family in STREAMS else sizes:
            for seed in range(asked.seeds or 2):
                name, own = _compared(family, seed, tasks, invalid)
                each[name] = own
    rows = [
        (
            "family",
            "instances",
            "not longer",
            "worst ÷ best of SAGA",
            "mean",
            "gap to bound, mean",
            "CPU s, worst",
        )
    ]
    for family in FAMILIES:
        alike = [o for o in each.values() if o["family"] == family]
        found = [o["ratio"] for o in alike]
        rows.append((
            family, str(len(alike)), str(sum(ratio <= 1 + 1e-9 for ratio in found)), f"{max(found):.4f}",
            f"{sum(found) / len(found):.4f}", f"{sum(o['gap'] for o in alike) / len(alike):.2%}",
            f"{max(o['cost'] for o in alike):.2f}",
        ))  # fmt: skip
    print(table(rows, right=range(1, 7)))
    for scheduler, complaints in sorted(invalid.items()):
        print(f"{scheduler} gave no valid schedule {len(complaints)} times, such as: {complaints[0]}")
    ratios = {name: own["ratio"] for name, own in each.items()}
    print("worst:", *(f"\n  {ratio:.4f} {name} ({each[name]['best']})" for name, ratio in worst(ratios)))
    speed = _speed() if asked.seeds else None
    hits = sum(ratio <= 1 + 1e-9 for ratio in ratios.values())
    goals = [
        Goal("not longer than the best valid one", hits / len(ratios), 0.99, least=True),
        Goal("÷ the best valid one, worst", max(ratios.values()), 1.01, form=".4f"),
        Goal(f"HEFT's planning time ÷ ours at {TIMED} tasks", speed, 10, least=True, form=".1f"),
        Goal("plans that cannot be carried out", sum(bool(own["wrong"]) for own in each.values()), 0, form=".0f"),
    ]  # fmt: skip
    return {"instances": each, "invalid": invalid, "goals": verdict(goals)}


def _compared(family: str, seed: int, tasks: int, invalid: dict[str, list[str]]) -> tuple[str, Data]:
    instance = made(family, seed, tasks)
    network, graph = rivals.given(instance)
    ours = planned(instance.graph())
    best, by = float("inf"), ""
    with rivals.looked_up() if len(instance.work) > LARGE else nullcontext():
        for scheduler in rivals.names(len(instance.work)):
            theirs = rivals.scheduled(scheduler, instance, network, graph)
            if theirs.wrong:
                invalid.setdefault(scheduler, []).append(f"{instance.name}: {theirs.wrong[0]}")
            elif theirs.makespan < best:
                best, by = theirs.makespan, scheduler
    return instance.name, {
        "family": family,
        "ratio": ours.makespan / best,
        "best": by,
        "gap": ours.makespan / ours.bound - 1,
        "cost": ours.cost,
        "wrong": ours.wrong,
    }


def _speed() -> float:
    """How many times longer SAGA's HEFT takes than our planning, both in CPU seconds."""
    instance = made("parallel chains", 1, TIMED)
    network, graph = rivals.given(instance)
    ours = planned(instance.graph())
    heft = rivals.scheduled("HeftScheduler", instance, network, graph)
    took = f"HEFT {heft.cost:.1f} s, {heft.makespan:.6g}; ours {ours.cost:.2f} s, {ours.makespan:.6g}"
    print(f"{len(instance.work)} tasks: {took}")
    return heft.cost / ours.cost
