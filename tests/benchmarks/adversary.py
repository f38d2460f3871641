"""Instances of 10 tasks annealed to be bad for the planner, beside each policy, each device alone, and SAGA.

Coleman and Krishnamachari, "Comparing Task Graph Scheduling Algorithms: An Adversarial Approach" (PISA), 2024.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import repeat
from multiprocessing import get_context
from typing import Any

from autopar.errors import PlanError
from autopar.planner import POLICIES, place
from autopar.planner.formats import read
from autopar.system.text import table

from . import rivals
from .judging import Asked, Data, Goal, by_policy, planned, verdict
from .related import Instance

TASKS, NODES = 10, 4
REDUCED = 4
STEPS = 12
"""Changes tried in a restart in the reduced size."""
FULL = 50
QUICK = 7_000
"""Runs that the planner may place while an instance is sought; what is worst of each restart is planned in full."""
PROCESSES = 2
TIE = 1e-9
"""Share up to which two makespans are the same."""
LEAST, MOST, STEP = 0.1, 1.0, 0.1
"""Of all weights, and how much one change may move one."""
HOT, COOLING = 0.1, 0.95


def run(asked: Asked) -> Data:
    """So many restarts of each kind, 100 being full size: beside policies and single devices, and beside SAGA's
    schedulers."""
    outside = rivals.installed()
    if not outside:
        print(rivals.MISSING)
    kinds = [kind for kind in RIVALS if outside or kind != "SAGA"]
    each: dict[str, Data] = {}
    for kind in kinds:
        steps = FULL if asked.seeds else STEPS
        with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
            found = pool.map(restarted, repeat(kind), range(asked.seeds or REDUCED), repeat(steps))
            each |= {f"{kind} {restart}": {"kind": kind, **own} for restart, own in enumerate(found)}
    rows = [
        (
            "beside",
            "restarts",
            "worst ours ÷ best of them",
            "by",
            "instances tried",
            "planned in full",
            "not valid",
        )
    ]
    for kind in kinds:
        of_kind = [o for o in each.values() if o["kind"] == kind]
        top = max(of_kind, key=lambda o: o["ratio"])
        counts = (str(sum(o[key] for o in of_kind)) for key in ("tried", "full", "wrong"))
        rows.append((kind, str(len(of_kind)), f"{top['ratio']:.4f}", top["by"], *counts))
    print(table(rows, right=(1, 2, 4, 5, 6)))
    worst, own = max(each.items(), key=lambda item: item[1]["ratio"])
    print(f"worst: {own['ratio']:.4f}, {worst}, by {own['by']}: {own['instance']}")

    def most(kind: str) -> float | None:
        return max((own["ratio"] for own in each.values() if own["kind"] == kind), default=None)

    goals = [
        Goal("÷ the best policy or single device, worst", most("policies and single devices"), 1 + 1e-9, form=".4f"),
        Goal("÷ the best of SAGA, worst", most("SAGA"), 1.1, form=".4f"),
        Goal("plans that cannot be carried out", sum(own["wrong"] for own in each.values()), 0, form=".0f"),
    ]  # fmt: skip
    return {"instances": each, "goals": verdict(goals)}


def restarted(kind: str, restart: int, steps: int) -> Data:
    """One restart against a kind of rivals."""
    return anneal(RIVALS[kind], random.Random(f"{kind} {restart}"), steps)


def anneal(rival: Callable[[Instance], tuple[float, str]], draw: random.Random, steps: int) -> Data:
    """The worst instance met in so many changes of a random one: our makespan ÷ the rival's, and what it looks like.

    What is annealed is how bad an instance is for the planner with few steps. A tie with the rival counts as 0: graphs
    of one obvious plan are so many that the search would stay among them. Each instance that is worse than those
    before is planned in full, which `ratio`, `by` and `instance` are of; `full` counts these.
    """
    other = current = start(draw)
    energy, top, ratio = 0.0, -1.0, 0.0
    shown, by, heat, full, wrong = current, "", HOT, 0, 0
    for _ in range(steps + 1):
        makespan, name = rival(other)
        found = _quick(other) / makespan
        found = 0.0 if abs(found - 1) <= TIE else found
        if found > top:
            top, full, ours = found, full + 1, planned(other.graph())
            wrong += bool(ours.wrong)
            if ours.makespan / makespan > ratio:
                ratio, by, shown = ours.makespan / makespan, name, other
        if found >= energy or draw.random() < math.exp((found - energy) / heat):
            current, energy = other, found
        other = changed(current, draw)
        heat *= COOLING
    return {
        "ratio": ratio,
        "by": by,
        "tried": steps + 1,
        "full": full,
        "wrong": wrong,
        "instance": _described(shown),
    }


def _quick(instance: Instance) -> float:
    """The makespan of the planner with few steps."""
    return place(read(instance.graph()), steps=QUICK).makespan


def _inside(instance: Instance) -> tuple[float, str]:
    """The shortest plan of any one policy, and of any one device."""
    graph = instance.graph()
    costed = read(graph)
    found = [(by_policy(graph, name, costed).makespan, name) for name in POLICIES]
    for node in instance.speed:
        try:
            found.append((by_policy(graph, f"single {node}", costed).makespan, node))
        except PlanError:
            continue
    return min(found)


def _outside(instance: Instance) -> tuple[float, str]:
    """The shortest valid schedule of SAGA's."""
    network, graph = rivals.given(instance)
    each = [
        (rivals.scheduled(name, instance, network, graph), name) for name in rivals.names(len(instance.work))
    ]
    return min((found.makespan, name) for found, name in each if not found.wrong)


RIVALS = {"policies and single devices": _inside, "SAGA": _outside}
"""What a kind of rivals makes of an instance: its makespan, and whose it is."""


def start(draw: random.Random) -> Instance:
    """Tasks that read one or two of those before them, with random weights, on random nodes.

    The chains that PISA starts from are at a ratio of 1, where small changes gain nothing.
    """
    tasks, nodes = [f"t{t}" for t in range(TASKS)], [f"n{n}" for n in range(draw.randint(2, NODES))]

    def weight() -> float:
        return draw.uniform(LEAST, MOST)

    reads = [draw.sample(range(t), min(t, draw.randint(1, 2))) for t in range(TASKS)]
    return Instance(
        "annealed",
        {task: weight() for task in tasks},
        {(tasks[p], tasks[t]): weight() for t, own in enumerate(reads) for p in sorted(own)},
        {node: weight() for node in nodes},
        {(a, b): weight() for a in nodes for b in nodes if a < b},
    )


def changed(instance: Instance, draw: random.Random) -> Instance:
    """One of PISA's changes: an edge less, an edge more, or one weight moved."""

    def moved(weights: Any) -> Any:
        key = draw.choice([*weights])
        near = weights[key] + draw.uniform(-STEP, STEP)
        return {**weights, key: min(MOST, max(LEAST, near))}

    tasks = [*instance.work]
    what = draw.choice(("work", "size", "speed", "rate", "less", "more"))
    if what == "less" and len(instance.size) > 1:
        gone = draw.choice([*instance.size])
        return replace(instance, size={pair: own for pair, own in instance.size.items() if pair != gone})
    if what == "more":
        # Tasks are numbered in an order that edges keep, so that there is no way round.
        first, second = sorted(draw.sample(range(len(tasks)), 2))
        pair = tasks[first], tasks[second]
        return replace(instance, size={pair: draw.uniform(LEAST, MOST), **instance.size})
    name = "size" if what == "less" else what
    return replace(instance, **{name: moved(getattr(instance, name))})


def _described(instance: Instance) -> str:
    parts = (instance.work, instance.size, instance.speed, instance.rate)
    shown = [
        {" ".join(k) if isinstance(k, tuple) else k: round(v, 4) for k, v in part.items()} for part in parts
    ]
    return " ".join(map(str, shown))
