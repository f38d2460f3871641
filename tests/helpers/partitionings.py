"""Small graphs of the dnn-partitioning set, made at random, and every placement of one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from benchmarks.strict_model.graph import classes
from benchmarks.strict_model.partitioning import Partitioning, partitioning


def data(
    draw: random.Random, nodes: int = 7, *, training: bool = False, cores: int = 1, tight: bool = False
) -> dict[str, Any]:
    """A graph as its JSON: up to `nodes` nodes, costs of 0 and unsupported nodes among them, two accelerators. With
    `training` each node has a backward one of its class; `tight` accelerators hold about half of all."""
    count = draw.randint(2, nodes)
    listed = [
        {
            "id": v,
            "supportedOnFpga": int(draw.random() < 0.85),
            "cpuLatency": draw.choice([0.0, draw.uniform(1, 10)]),
            "fpgaLatency": draw.choice([0.0, draw.uniform(0.1, 3)]),
            "isBackwardNode": 0,
            "size": draw.choice([0, draw.randint(1, 10)]),
        }
        for v in range(count)
    ]
    cost = [draw.choice([0.0, draw.uniform(0, 2)]) for _ in listed]
    edges = [(a, b) for b in range(count) for a in range(b) if draw.random() < 0.35]
    for _ in range(draw.randint(0, 2)):
        a, b = draw.sample(range(count), 2)
        listed[a]["colorClass"] = listed[b]["colorClass"] = 70 + a
    if training:
        for v in range(count):
            listed[v].setdefault("colorClass", 200 + v)
            listed.append({**listed[v], "id": count + v, "isBackwardNode": 1, "size": 0})
        edges += [(count + b, count + a) for a, b in edges] + [(v, count + v) for v in range(count)]
        cost += cost
    return {
        "maxSizePerFPGA": sum(node["size"] for node in listed) / 2 + 1 if tight else 1000,
        "maxFPGAs": 2,
        "maxCPUs": cores,
        "nodes": listed,
        "edges": [{"sourceId": a, "destId": b, "cost": cost[a]} for a, b in edges],
    }


def graph(seed: int, **more: Any) -> Partitioning:
    """A graph from a seed."""
    return partitioning(data(random.Random(seed), **more))


def placements(graph: Partitioning, devices: int) -> Iterator[list[int]]:
    """Every placement of the classes on so many devices, as the device of each node."""
    found, group = classes(graph)
    for at in product(range(devices), repeat=len(found)):
        yield [at[c] for c in group]
