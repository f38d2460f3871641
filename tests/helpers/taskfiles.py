"""Task graphs as graph files, made at random or by hand, for what plans and checks them without torch."""

from __future__ import annotations

import json
import random
from typing import Any

from benchmarks.judging import described

from autopar.planner import schedule


def link(src: str, dst: str, **more: Any) -> dict[str, Any]:
    """A link of 1 ms and 1 kB/ms; `wire=` and the like on top."""
    return {"src": src, "dst": dst, "latency_s": 1e-3, "bytes_per_s": 1e6, **more}


def small() -> dict[str, Any]:
    """Three tasks on a CPU of two lanes and an accelerator, with everything the format has."""
    return {
        "tasks": [
            {"id": "a", "seconds": {"cpu": 1.0, "gpu": 0.2}, "state_bytes": 1000},
            {"id": "b", "seconds": {"cpu": 1.0}, "workspace_bytes": 500},
            {"id": "c", "seconds": {"cpu": 2.0, "gpu": 0.5}, "pin": "gpu"},
        ],
        "values": [
            {"id": "x", "producer": None, "home": "cpu", "consumers": ["a"], "bytes": 64},
            {"id": "v", "producer": "a", "consumers": ["b", "c"], "bytes": 4096},
            {"id": "w", "producer": "b", "consumers": ["c"], "bytes": 2048},
            {"id": "y", "producer": "c", "consumers": [], "bytes": 8, "deliver_to": "cpu"},
        ],
        "devices": [
            {"name": "cpu", "lanes": 2, "memory_bytes": None},
            {"name": "gpu", "lanes": 1, "memory_bytes": 100_000},
        ],
        "links": [link("cpu", "gpu", wire="bus"), link("gpu", "cpu", wire="bus")],
    }


def planned(graph: dict[str, Any]) -> dict[str, Any]:
    """The plan of a graph file as it would be read back."""
    return json.loads(json.dumps(described(schedule(graph))))


def randomly(
    draw: random.Random, tasks: int = 12, *, tight: bool = False, wired: bool = True
) -> dict[str, Any]:
    """A graph of up to `tasks` tasks on up to four devices; any device is reached from any other, perhaps through
    `d0`. `tight` caps the memory of devices, `wired` False has every link carry any number at once."""
    devices = [f"d{index}" for index in range(draw.randint(1, 4))]
    lanes = {name: draw.randint(1, 3) for name in devices}
    names = [f"t{index}" for index in range(draw.randint(1, tasks))]
    groups = {name: draw.choice("gh") for name in names if draw.random() < 0.2}
    places = {group: draw.choice(devices) for group in "gh"}
    found = []
    for name in names:
        able = [d for d in devices if draw.random() < 0.8] or [draw.choice(devices)]
        entry: dict[str, Any] = {"id": name, "seconds": {d: _seconds(draw) for d in able}}
        if name in groups:
            entry["colocate"] = groups[name]
            entry["seconds"].setdefault(places[groups[name]], draw.uniform(0.1, 2.0))
        elif draw.random() < 0.15:
            entry["pin"] = draw.choice(able)
        if draw.random() < 0.3:
            entry["state_bytes"] = draw.randint(0, 3000)
        if draw.random() < 0.3:
            entry["workspace_bytes"] = draw.randint(0, 3000)
        found.append(entry)
    values: list[dict[str, Any]] = []
    for index, name in enumerate(names):
        for which in range(draw.choice((0, 1, 1, 2))):
            readers = [later for later in names[index + 1 : index + 6] if draw.random() < 0.4]
            values.append({"id": f"{name}.{which}", "producer": name, "consumers": readers})
    for which in range(draw.randint(0, 2)):
        readers = draw.sample(names, min(len(names), 2))
        values.append(
            {"id": f"in{which}", "producer": None, "home": draw.choice(devices), "consumers": readers}
        )
    for value in values:
        value["bytes"] = draw.choice((0, draw.randint(1, 4000)))
        if draw.random() < 0.15:
            value["deliver_to"] = draw.choice(devices)
    links = []
    for src in devices:
        for dst in devices:
            if src != dst and ("d0" in (src, dst) or draw.random() < 0.6):
                wire = draw.choice(({}, {"wire": None}, {"wire": "bus"}, {"wire": f"into {dst}"}))
                links.append(link(src, dst, **(wire if wired else {"wire": None})))
    draw.shuffle(found)
    caps = {d: draw.randint(8_000, 30_000) if tight else None for d in devices}
    machine = [{"name": d, "lanes": lanes[d], "memory_bytes": caps[d]} for d in devices]
    return {"tasks": found, "values": values, "devices": machine, "links": links}


def _seconds(draw: random.Random) -> float:
    return draw.choice((0.0, draw.uniform(0.1, 2.0), draw.uniform(0.001, 0.01)))
