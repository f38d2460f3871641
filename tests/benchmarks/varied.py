"""Small graphs with all that the file format has, from a seed: caps, pins, groups, lanes, deliveries, routes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from .instances import SHAPES
from .judging import Data

NAMES = ("t{}", "{}", "task.{}", "tâche {}", "a task of a name that is rather long, number {}")
"""Patterns of task names; values may have the names of tasks."""
PARTLY = 16
"""Every so manieth graph lacks some links."""
SIZES = (4, 8, 8, 8, 12, 12, 12, 20)
"""Most tasks of a graph, one of these."""


def varied(seed: int) -> Data:
    """A graph of up to 20 tasks, most far fewer, on up to 5 devices; all can be reached over two links at most, but
    for every `PARTLY`-th graph, for which there may be no plan at all.

    Each feature is in some graphs and not in others, as the planner may take other ways where one is. Caps are drawn
    around what the graph holds, so that some graphs hardly fit and some do not.
    """
    draw = random.Random(f"varied {seed}")
    devices = [f"d{d}" for d in range(draw.choice((1, 2, 2, 3, 3, 4, 5)))]
    lanes = {name: draw.choice((1, 1, 2, 3)) for name in devices}
    edges = SHAPES[draw.choice(sorted(SHAPES))](draw, draw.randint(1, draw.choice(SIZES)))
    called = draw.choice(NAMES).format
    scale, most = draw.choice((1e-6, 1.0, 1.0, 1e3)), draw.choice((0, 10_000, 10_000, 10**12))
    groups = {f"g{g}": draw.choice(devices) for g in range(draw.choice((0, 0, 1, 3)))}
    tasks = _tasks(draw, [called(t) for t in range(len(edges))], devices, groups, scale, most)
    values: list[Data] = []
    for t in range(len(edges)):
        readers = [called(r) for r, reads in enumerate(edges) if t in reads]
        # Some of the readers may read another of the values that a task makes.
        parts = [readers] if draw.random() < 0.8 else [readers[::2], readers[1::2]]
        values += [
            {"id": called(t) if n == 0 else f"{called(t)} {n}", "producer": called(t), "consumers": part}
            for n, part in enumerate(parts)
        ]
    values += [
        {
            "id": f"in{n}",
            "producer": None,
            "home": draw.choice(devices),
            "consumers": [task["id"] for task in draw.sample(tasks, min(2, len(tasks)))],
        }
        for n in range(draw.choice((0, 0, 1, 2)))
    ]
    delivered = draw.choice((0.0, 0.1))
    for value in values:
        value["bytes"] = draw.choice((0, draw.randint(0, most // 10), draw.randint(0, most)))
        if draw.random() < delivered:
            value["deliver_to"] = draw.choice(devices)
    held = sum(v["bytes"] for v in values) + sum(t["state_bytes"] + t["workspace_bytes"] for t in tasks)
    tight = draw.random() < 0.5
    caps = {
        name: draw.randint(held // 4, held) if tight and draw.random() < 0.7 else None for name in devices
    }
    links = _links(draw, devices, scale * draw.choice((1e-4, 1e-3, 1e-2)), max(1, most))
    if lacks_links(seed):
        links = [own for own in links if draw.random() < 0.6]
    return {
        "name": f"varied {seed}",
        "tasks": tasks,
        "values": values,
        "devices": [{"name": name, "lanes": lanes[name], "memory_bytes": caps[name]} for name in devices],
        "links": links,
    }


def lacks_links(seed: int) -> bool:
    """Return True if the graph of a seed may lack a route for a value."""
    return seed % PARTLY == PARTLY // 2


def _tasks(
    draw: random.Random,
    names: Sequence[str],
    devices: Sequence[str],
    groups: dict[str, str],
    scale: float,
    most: int,
) -> list[Data]:
    """Tasks of some milliseconds times `scale`, in some graphs without a pin."""
    pinned = draw.choice((0.0, 0.1))
    found = []
    for name in names:
        task: Data = {
            "id": name,
            "state_bytes": draw.choice((0, 0, draw.randint(0, most // 2))),
            "workspace_bytes": draw.choice((0, 0, draw.randint(0, most // 2))),
        }
        able = draw.sample(devices, draw.randint(1, len(devices)))
        if groups and draw.random() < 0.4:
            task["colocate"] = draw.choice(sorted(groups))
            able = [*{**dict.fromkeys(able), groups[task["colocate"]]: None}]
        elif draw.random() < pinned:
            task["pin"] = draw.choice(able)
        task["seconds"] = {device: _seconds(draw, scale) for device in able}
        found.append(task)
    return found


def _seconds(draw: random.Random, scale: float) -> float:
    return scale * draw.choice((0.0, draw.uniform(1e-6, 1e-5), draw.uniform(0.5e-3, 1.5e-3), 1e-3))


def _links(draw: random.Random, devices: list[str], seconds: float, nbytes: int) -> list[Data]:
    """Links that take some `seconds` for `nbytes`: from each device to each, or to and from one or two."""
    pairs = [(a, b) for a in devices for b in devices if a != b]
    hubs = draw.choice((1, 2, len(devices), len(devices)))
    links = []
    for src, dst in pairs:
        if src not in devices[:hubs] and dst not in devices[:hubs]:
            continue
        link: Data = {"src": src, "dst": dst, "latency_s": draw.choice((0.0, seconds / 100))}
        link["bytes_per_s"] = nbytes / seconds * draw.choice((0.2, 1.0, 1.0))
        wire = draw.choice(("own", None, "bus", f"into {dst}"))
        links.append(link if wire == "own" else {**link, "wire": wire})
    return links
