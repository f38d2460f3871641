"""Small graphs with all that the file format has, from a seed: caps, pins, groups, lanes, deliveries, routes."""

from __future__ import annotations

import random
from typing import Any

from ..instances import SHAPES
from .judging import Data


def varied(seed: int) -> Data:
    """A graph of up to 25 tasks on up to 4 devices; links form a tree or are complete, so that all can be reached.

    Caps, where there are any, are drawn around what the graph holds, so that some graphs hardly fit and some do not.
    """
    draw = random.Random(f"varied {seed}")
    devices = [f"d{d}" for d in range(draw.randint(1, 4))]
    lanes = {name: draw.choice((1, 1, 2, 3)) for name in devices}
    edges = SHAPES[draw.choice(sorted(SHAPES))](draw, draw.randint(3, 25))
    groups = {f"g{g}": draw.choice(devices) for g in range(draw.choice((0, 0, 1, 3)))}
    tasks = [_task(draw, t, devices, lanes, groups) for t in range(len(edges))]
    values: list[Data] = []
    for t in range(len(edges)):
        readers = [f"t{r}" for r, reads in enumerate(edges) if t in reads]
        # Some of the readers may read another of the values that a task makes.
        parts = [readers] if draw.random() < 0.8 else [readers[::2], readers[1::2]]
        values += [
            {"id": f"v{t}.{n}", "producer": f"t{t}", "consumers": part} for n, part in enumerate(parts)
        ]
    values += [
        {
            "id": f"in{n}",
            "producer": None,
            "home": draw.choice(devices),
            "consumers": [task["id"] for task in draw.sample(tasks, 2)],
        }
        for n in range(draw.choice((0, 0, 1, 2)))
    ]
    for value in values:
        value["bytes"] = draw.choice((0, draw.randint(1, 1000), draw.randint(1, 10_000)))
        if draw.random() < 0.1:
            value["deliver_to"] = draw.choice(devices)
    held = sum(v["bytes"] for v in values) + sum(t["state_bytes"] + t["workspace_bytes"] for t in tasks)
    tight = draw.random() < 0.5
    caps = {
        name: draw.randint(held // 4, held) if tight and draw.random() < 0.7 else None for name in devices
    }
    return {
        "name": f"varied {seed}",
        "tasks": tasks,
        "values": values,
        "devices": [{"name": name, "lanes": lanes[name], "memory_bytes": caps[name]} for name in devices],
        "links": _links(draw, devices),
    }


def _task(
    draw: random.Random, t: int, devices: list[str], lanes: dict[str, int], groups: dict[str, str]
) -> Data:
    task: Data = {
        "id": f"t{t}",
        "state_bytes": draw.choice((0, 0, draw.randint(0, 5000))),
        "workspace_bytes": draw.choice((0, 0, draw.randint(0, 5000))),
    }
    able = draw.sample(devices, draw.randint(1, len(devices)))
    if groups and draw.random() < 0.4:
        task["colocate"] = draw.choice(sorted(groups))
        able = [*{**dict.fromkeys(able), groups[task["colocate"]]: None}]
    elif draw.random() < 0.1:
        task["pin"] = draw.choice(able)
    task["seconds"] = {name: _seconds(draw, lanes[name]) for name in able}
    return task


def _seconds(draw: random.Random, lanes: int) -> Any:
    alone = draw.choice((0.0, draw.uniform(1e-6, 1e-5), draw.uniform(0.5e-3, 1.5e-3), 1e-3))
    if lanes == 1 or draw.random() < 0.7:
        return alone
    ways = {str(taken): alone / taken ** draw.uniform(-0.2, 1.0) for taken in range(1, lanes + 1)}
    kept = draw.sample(sorted(ways), draw.randint(1, lanes))
    return {taken: ways[taken] for taken in kept}


def _links(draw: random.Random, devices: list[str]) -> list[Data]:
    pairs = [(a, b) for a in devices for b in devices if a != b]
    if draw.random() < 0.4:
        pairs = [pair for pair in pairs if devices[0] in pair]
    links = []
    for src, dst in pairs:
        link: Data = {"src": src, "dst": dst, "latency_s": draw.choice((0.0, 1e-5)), "bytes_per_s": 1e7}
        wire = draw.choice(("own", None, "bus", f"into {dst}"))
        links.append(link if wire == "own" else {**link, "wire": wire})
    return links
