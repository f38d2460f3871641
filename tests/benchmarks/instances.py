"""Task graphs made from a seed, as the dictionaries that a graph file holds: small random ones, and some of known
optimum.

Times are in seconds, sizes in bytes. The same arguments give the same graph in every process.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

RATE = 1e9
"""Bytes per second of every link: small enough that a byte is far below any task."""

Edges = list[tuple[int, ...]]
"""The tasks each task reads, all of a smaller number."""


def layered(draw: random.Random, tasks: int) -> Edges:
    """Layers of random width; each task reads one to three of the layer before."""
    found: Edges = []
    before: list[int] = []
    while len(found) < tasks:
        width = min(draw.randint(1, max(2, round(tasks**0.5))), tasks - len(found))
        layer = list(range(len(found), len(found) + width))
        for _ in layer:
            found.append(tuple(sorted(draw.sample(before, min(len(before), draw.randint(1, 3))))))
        before = layer
    return found


def scattered(draw: random.Random, tasks: int) -> Edges:
    """Each task reads up to three of all tasks before it."""
    return [
        tuple(sorted(draw.sample(range(t), min(t, draw.choice((0, 1, 1, 2, 2, 3)))))) for t in range(tasks)
    ]


def fork_join(draw: random.Random, tasks: int) -> Edges:
    """Forks into chains that join again, one after the other."""
    found: Edges = [()]
    while len(found) < tasks:
        fork, ends = len(found) - 1, []
        for _ in range(draw.randint(2, 6)):
            last = fork
            for _ in range(draw.randint(1, 3)):
                if len(found) < tasks - 1:
                    found.append((last,))
                    last = len(found) - 1
            ends.append(last)
        found.append(tuple(sorted(set(ends))))
    return found


def series_parallel(draw: random.Random, tasks: int) -> Edges:
    """One edge, in which tasks are put at random: into an edge, or beside one that has a task on each side."""
    edges = [(-1, -2)]
    while max(max(edge) for edge in edges) + 1 < tasks:
        new = max(max(edge) for edge in edges) + 1
        at = draw.randrange(len(edges))
        source, target = edges[at]
        if draw.random() < 0.5 or source < 0 or target < 0:
            edges[at] = (source, new)
        else:
            edges.append((source, new))
        edges.append((new, target))
    after: dict[int, list[int]] = {}
    for source, target in edges:
        after.setdefault(source, []).append(target)
    rank: dict[int, int] = {}
    missing = {t: sum(target == t for _, target in edges) for t in range(tasks)}
    ready = [-1]
    while ready:
        current = ready.pop(0)
        if current >= 0:
            rank[current] = len(rank)
        for target in after.get(current, ()):
            if target >= 0:
                missing[target] -= 1
                if not missing[target]:
                    ready.append(target)
    reads: list[set[int]] = [set() for _ in range(tasks)]
    for source, target in edges:
        if source >= 0 and target >= 0:
            reads[rank[target]].add(rank[source])
    return [tuple(sorted(own)) for own in reads]


SHAPES: dict[str, Callable[[random.Random, int], Edges]] = {
    "layered": layered,
    "scattered": scattered,
    "fork_join": fork_join,
    "series_parallel": series_parallel,
}


def small(
    seed: int, *, tasks: int | None = None, devices: int | None = None, ratio: float | None = None
) -> dict[str, Any]:
    """A random graph of 10 to 50 tasks on 2 to 4 unrelated devices with contended wires.

    A task takes 0.5 to 1.5 ms, times a speed of the device for this very task between 1/3 and 3; one task in ten
    cannot run everywhere. `ratio` is the mean time of a transfer over that of a task, 0.1 to 10. A wire is one
    direction of a link, both, or shared by all links. What is not given is drawn from `seed`.
    """
    draw = random.Random(f"small {seed}")
    tasks = tasks or draw.randint(10, 50)
    devices = devices or draw.randint(2, 4)
    ratio = ratio or 10 ** draw.uniform(-1, 1)
    shape = draw.choice(sorted(SHAPES))
    names = [f"d{d}" for d in range(devices)]
    edges = SHAPES[shape](draw, tasks)
    listed = []
    for t in range(tasks):
        work = draw.uniform(0.5e-3, 1.5e-3)
        each = {name: work * 3 ** draw.uniform(-1, 1) for name in names}
        if draw.random() < 0.1:
            for name in draw.sample(names, draw.randrange(devices)):
                del each[name]
        listed.append({"id": f"t{t}", "seconds": each})
    mean = sum(sum(own.values()) / len(own) for own in (_seconds(task) for task in listed)) / tasks
    readers = _readers(edges)
    values = [
        _value(f"v{t}", f"t{t}", [f"t{r}" for r in readers[t]], ratio * mean * draw.uniform(0.5, 1.5))
        for t in range(tasks)
        if readers[t]
    ]
    wire = draw.choice(("direction", "link", "bus"))
    lanes = [draw.choice((1, 1, 2)), *[1] * (devices - 1)]
    return {
        "name": f"{shape} {seed}: {tasks} tasks, {devices} devices, ratio {ratio:.2g}, a wire for each {wire}",
        "tasks": listed,
        "values": values,
        "devices": [{"name": n, "lanes": k, "memory_bytes": None} for n, k in zip(names, lanes)],
        "links": _links(names, wire),
    }


def planted(
    seed: int,
    tasks: int,
    devices: int,
    ratio: float,
    *,
    speeds: Sequence[float] | None = None,
    memory: bool = False,
    groups: int = 0,
) -> tuple[dict[str, Any], float]:
    """A graph and its optimal makespan in seconds, proven by construction where transfers do not contend.

    Each device is filled without a pause to the same length, then edges (three to a task, where there are as many
    before it) are added whose transfers fit between their ends: nothing can be shorter, for no device is ever idle.
    A transfer takes `ratio` × the mean task's time × 0.5 to 1.5, cut to fit where it is between devices. `speeds`
    makes devices faster (related machines). `memory` gives tasks state that just fits where it was planted, and
    `groups` colocates that many pairs of neighbours. Each edge is a value of its own.
    """
    draw = random.Random(f"planted {seed} {tasks} {devices} {ratio}")
    speeds = speeds or (1.0,) * devices
    names = [f"d{d}" for d in range(devices)]
    length = tasks / sum(speeds) * 1e-3
    spans: list[tuple[float, float, int]] = []
    for d, share in enumerate(_shares(tasks, speeds)):
        cuts = [0.0]
        for _ in range(share):
            cuts.append(cuts[-1] + draw.uniform(0.2, 1.8))
        scaled = [cut / cuts[-1] * length for cut in cuts]
        spans += [(start, end, d) for start, end in pairwise(scaled)]
    spans.sort()
    works = [(end - start) * speeds[d] for start, end, d in spans]
    mean = sum(works) / tasks
    listed: list[dict[str, Any]] = [
        {"id": f"t{t}", "seconds": {name: work / speed for name, speed in zip(names, speeds)}}
        for t, work in enumerate(works)
    ]
    by_end = sorted(range(tasks), key=lambda t: spans[t][1])
    ends = [spans[t][1] for t in by_end]
    values = []
    held = [0] * devices
    for t, (start, _, d) in enumerate(spans):
        ended = bisect_right(ends, start * (1 + 1e-12))
        for p in sorted(draw.sample(range(ended), min(ended, 3))):
            source = by_end[p]
            takes = ratio * mean * draw.uniform(0.5, 1.5)
            if spans[source][2] != d:
                takes = max(0.0, min(takes, start - spans[source][1]))
                held[d] += int(takes * RATE)
            held[spans[source][2]] += int(takes * RATE)
            values.append(_value(f"v{source}_{t}", f"t{source}", [f"t{t}"], takes))
    if memory:
        for t, (_, _, d) in enumerate(spans):
            listed[t]["state_bytes"] = draw.randint(1, 4) * int(RATE * mean)
            held[d] += listed[t]["state_bytes"]
    own: list[list[int]] = [[t for t in range(tasks) if spans[t][2] == d] for d in range(devices)]
    for g in range(groups):
        row = draw.choice([row for row in own if len(row) > 1])
        at = draw.randrange(len(row) - 1)
        if "colocate" not in listed[row[at]] and "colocate" not in listed[row[at + 1]]:
            listed[row[at]]["colocate"] = listed[row[at + 1]]["colocate"] = f"group {g}"
    graph = {
        "name": f"planted {seed}: {tasks} tasks, {devices} devices, ratio {ratio:g}",
        "tasks": listed,
        "values": values,
        "devices": [
            {"name": name, "lanes": 1, "memory_bytes": room if memory else None}
            for name, room in zip(names, held)
        ],
        "links": _links(names, "none"),
    }
    return graph, length


def _shares(tasks: int, speeds: Sequence[float]) -> list[int]:
    """Return the number of tasks of each device, in proportion to its speed, at least one."""
    shares = [max(1, int(tasks * speed / sum(speeds))) for speed in speeds]
    for extra in range(tasks - sum(shares)):
        shares[extra % len(shares)] += 1
    return shares


def _readers(edges: Edges) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in edges]
    for t, reads in enumerate(edges):
        for source in reads:
            found[source].append(t)
    return found


def _seconds(task: dict[str, Any]) -> dict[str, float]:
    return task["seconds"]


def _value(name: str, producer: str, consumers: list[str], seconds: float) -> dict[str, Any]:
    return {"id": name, "producer": producer, "consumers": consumers, "bytes": int(seconds * RATE)}


def _links(names: Sequence[str], wire: str) -> list[dict[str, Any]]:
    """All links between `names`; `wire`: one for each `direction`, `link` or `bus`, or `none`."""
    wires = {
        "direction": lambda a, b: f"{a}>{b}",
        "link": lambda a, b: "-".join(sorted((a, b))),
        "bus": lambda a, b: "bus",
        "none": lambda a, b: None,
    }
    return [
        {"src": a, "dst": b, "latency_s": 0.0, "bytes_per_s": RATE, "wire": wires[wire](a, b)}
        for a in names
        for b in names
        if a != b
    ]
