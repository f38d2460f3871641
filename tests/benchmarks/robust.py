"""Plans made with costs off by up to ± 30 %: what they take in truth ÷ what a plan made with the truth takes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from autopar.system.text import table

from . import instances
from .judging import Asked, Data, Goal, by_direction, by_policy, median, percentile, planned, verdict, worst
from .replay import replay

REDUCED = 8
ERROR = 0.3
KINDS = {
    "autopar": "ratio",
    "autopar ÷ what the true one promises": "promised",
    "HEFT, same wrong costs": "heft",
}


def run(asked: Asked) -> Data:
    """So many seeds of small random graphs and of planted ones with a wire for each direction, at ratios 0.1 to 5."""
    each: dict[str, Data] = {}
    for seed in range(asked.seeds or REDUCED):
        ratio = (0.1, 1.0, 5.0)[seed % 3]
        for graph in (instances.small(seed), by_direction(instances.planted(seed, 100, 4, ratio)[0])):
            guess = misjudged(graph, seed)
            truth = planned(graph)
            ours = planned(guess)
            realised = replay(graph, ours.data)["makespan_s"]
            heft = replay(graph, by_policy(guess, "heft").data)["makespan_s"]
            true = replay(graph, truth.data)["makespan_s"]
            each[graph["name"]] = {
                "ratio": realised / true,
                "heft": heft / true,
                "promised": realised / truth.makespan,
                "wrong": truth.wrong,
            }
    ratios = {name: own["ratio"] for name, own in each.items()}
    rows = [("÷ a plan made with the truth, both replayed", "median", "90th percentile", "worst")]
    for name, key in KINDS.items():
        found = [own[key] for own in each.values()]
        rows.append((name, f"{median(found):.3f}", f"{percentile(found, 0.9):.3f}", f"{max(found):.3f}"))
    print(table(rows, right=(1, 2, 3)))
    print("worst:", *(f"\n  {ratio:.3f} {name}" for name, ratio in worst(ratios)))
    goals = [
        Goal("realised ÷ with true costs, median", median([*ratios.values()]), 1.05, form=".3f"),
        Goal("realised ÷ with true costs, 90th percentile", percentile([*ratios.values()], 0.9), 1.15, form=".3f"),
        Goal("plans that cannot be carried out", sum(bool(own["wrong"]) for own in each.values()), 0, form=".0f"),
    ]  # fmt: skip
    return {"instances": each, "goals": verdict(goals)}


def misjudged(graph: Data, seed: int) -> Data:
    """The graph with every time and every size off by up to `ERROR`, each by a factor of its own."""
    draw = random.Random(f"misjudged {seed}")

    def off(seconds: Any) -> Any:
        if isinstance(seconds, Mapping):
            return {key: off(own) for key, own in seconds.items()}
        return seconds * draw.uniform(1 - ERROR, 1 + ERROR)

    return {
        **graph,
        "tasks": [{**task, "seconds": off(task["seconds"])} for task in graph["tasks"]],
        "values": [
            {**value, "bytes": int(value["bytes"] * draw.uniform(1 - ERROR, 1 + ERROR))}
            for value in graph["values"]
        ],
    }
