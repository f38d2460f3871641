"""What becomes of plans where wires serve first come, first served: realised ÷ promised; a blind HEFT beside."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.system.text import table

from . import instances
from .judging import Asked, Data, Goal, by_direction, by_policy, median, planned, unwired, verdict, worst
from .replay import replay

REDUCED = 6
NOISE = 0.1
DRAWS = 5
"""Replays with noise of each plan."""
KINDS = {"small": None, "planted, ratio 1": 1.0, "planted, ratio 5": 5.0}
SIZE = (100, 4)
"""Tasks and devices of the planted ones, each direction of a link being a wire."""


def run(asked: Asked) -> Data:
    """So many seeds of small random graphs, whose links share wires in several ways, and of planted ones."""
    each: dict[str, Data] = {}
    for kind, ratio in KINDS.items():
        for seed in range(asked.seeds or REDUCED):
            graph = instances.small(seed) if ratio is None else instances.planted(seed, *SIZE, ratio)[0]
            if ratio is not None:
                graph = by_direction(graph)
            ours = planned(graph)
            blind = by_policy(unwired(graph), "heft")
            each[f"{kind}: {graph['name']}"] = {
                "kind": kind,
                "calm": replay(graph, ours.data)["makespan_s"] / ours.makespan,
                "noisy": [
                    replay(graph, ours.data, noise=NOISE, seed=draw)["makespan_s"] / ours.makespan
                    for draw in range(DRAWS)
                ],
                "blind": replay(graph, blind.data)["makespan_s"] / blind.makespan,
                "better": replay(graph, blind.data)["makespan_s"] / ours.makespan,
                "wrong": ours.wrong,
            }
    print(table([*_rows(each)], right=range(1, 7)))
    calm = {name: own["calm"] for name, own in each.items()}
    noisy = {name: max(own["noisy"]) for name, own in each.items()}
    print("worst:", *(f"\n  {ratio:.4f} {name}" for name, ratio in worst(calm)))
    print("worst with noise:", *(f"\n  {ratio:.4f} {name}" for name, ratio in worst(noisy)))
    goals = [
        Goal("realised ÷ promised, worst", max(calm.values()), 1.02, form=".4f"),
        Goal("realised ÷ promised with noise, worst", max(noisy.values()), 1.1, form=".4f"),
        Goal("plans that cannot be carried out", sum(bool(own["wrong"]) for own in each.values()), 0, form=".0f"),
    ]  # fmt: skip
    return {"instances": each, "goals": verdict(goals)}


def _rows(each: dict[str, Data]) -> Iterator[tuple[str, ...]]:
    yield (
        "graphs",
        "median",
        "worst",
        "noise: median",
        "worst",
        "blind HEFT: median",
        "worst",
        "÷ ours, median",
    )
    for kind in KINDS:
        own = [o for o in each.values() if o["kind"] == kind]
        noisy = [ratio for o in own for ratio in o["noisy"]]
        blind = [o["blind"] for o in own]
        yield (
            kind, f"{median([o['calm'] for o in own]):.4f}", f"{max(o['calm'] for o in own):.4f}",
            f"{median(noisy):.3f}", f"{max(noisy):.3f}", f"{median(blind):.2f}", f"{max(blind):.2f}",
            f"{median([o['better'] for o in own]):.2f}",
        )  # fmt: skip
