"""SAGA's model: related machines, each edge with data of its own, links that carry everything at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .judging import Data

SCALE = 1e12
"""Bytes for a unit of data: sizes are whole bytes in a graph file, and rounding must not be seen."""


@dataclass(frozen=True)
class Instance:
    """`work[task]` ÷ `speed[node]` is seconds; `size[source, target]` ÷ `rate[a, b]`, a < b, is too, between nodes;
    data that stays on a node is there at once."""

    name: str
    work: Mapping[str, float]
    size: Mapping[tuple[str, str], float]
    speed: Mapping[str, float]
    rate: Mapping[tuple[str, str], float]

    def graph(self) -> Data:
        """The same as a graph file's data."""
        return {
            "name": self.name,
            "tasks": [
                {"id": task, "seconds": {node: work / speed for node, speed in self.speed.items()}}
                for task, work in self.work.items()
            ],
            "values": [
                {"id": f"{a} → {b}", "producer": a, "consumers": [b], "bytes": round(size * SCALE)}
                for (a, b), size in self.size.items()
            ],
            "devices": [{"name": node, "lanes": 1, "memory_bytes": None} for node in self.speed],
            "links": [
                {"src": src, "dst": dst, "latency_s": 0.0, "bytes_per_s": rate * SCALE, "wire": None}
                for (a, b), rate in self.rate.items()
                for src, dst in ((a, b), (b, a))
                if rate > 0
            ],
        }

    def plan(self, placed: list[tuple[str, str, float, float]]) -> Data:
        """A schedule of (task, node, start, end) as a plan's data: everything leaves as soon as it is made."""
        where: dict[str, list[tuple[str, float]]] = {}
        for task, node, _, end in placed:
            where.setdefault(task, []).append((node, end))
        transfers = []
        for (a, b), size in self.size.items():
            if a not in where or b not in where:
                continue
            (src, ready), (dst, _) = where[a][0], where[b][0]
            rate = self.rate.get((min(src, dst), max(src, dst)), 0.0)
            if src != dst and rate > 0:
                seconds = round(size * SCALE) / (rate * SCALE)
                transfers.append(
                    {
                        "value": f"{a} → {b}",
                        "src": src,
                        "dst": dst,
                        "start_s": ready,
                        "end_s": ready + seconds,
                    }
                )
        tasks: list[dict[str, Any]] = [
            {"id": task, "device": node, "lane": 0, "start_s": start, "end_s": end}
            for task, node, start, end in placed
        ]
        last = max((step["end_s"] for step in (*tasks, *transfers)), default=0.0)
        return {"makespan_s": last, "lower_bound_s": 0.0, "tasks": tasks, "transfers": transfers}
