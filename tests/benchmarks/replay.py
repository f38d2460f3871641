"""Replay of a plan with its placement and its orders alone: everything as early as it can be.

Plain JSON data in and out. Nothing here knows how plans are made, or imports what makes them.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Any

from autopar.planner.model.toposort import topological

Data = Mapping[str, Any]


def replay(graph: Data, plan: Data, *, noise: float = 0.0, seed: int = 0) -> dict[str, Any]:
    """The plan with new times, as plans of a graph file are written.

    Each lane keeps its order of tasks (those that begin and end together go as they are listed, unless one reads
    what another makes); which values go from where to where is kept too, and each wire takes transfers as they become
    ready (of those ready together, the one the plan lists first). Everything starts as early as it can. With `noise`
    0.1 every time is off by up to ± 10 %, drawn from `seed`. Raises ValueError when the orders wait for each other, or
    when something is read where it never comes.
    """
    return _Replay(graph, plan, noise, random.Random(seed)).result(plan)


class _Replay:
    """Steps are numbers: the entries of `tasks`, then those of `transfers`, by start."""

    def __init__(self, graph: Data, plan: Data, noise: float, draw: random.Random) -> None:
        self.tasks = _in_order(graph, plan["tasks"])
        self.moves = sorted(plan["transfers"], key=_by_start)
        self.steps: list[Data] = [*self.tasks, *self.moves]
        self.count = len(self.tasks)
        task = {entry["id"]: entry for entry in graph["tasks"]}
        value = {entry["id"]: entry for entry in graph["values"]}
        link = {(entry["src"], entry["dst"]): entry for entry in graph.get("links", ())}
        self.lane = [(step["device"], step["lane"]) for step in self.tasks]
        self.wire: list[Any] = []
        self.length: list[float] = []
        for step in self.tasks:
            self.length.append(task[step["id"]]["seconds"][step["device"]])
        for step in self.moves:
            ends = step["src"], step["dst"]
            by = link[ends]
            self.wire.append(by.get("wire", ends))
            self.length.append(by["latency_s"] + value[step["value"]]["bytes"] / by["bytes_per_s"])
        if noise:
            self.length = [seconds * draw.uniform(1 - noise, 1 + noise) for seconds in self.length]
        self._waits(value)
        self.start, self.end = [0.0] * len(self.steps), [0.0] * len(self.steps)
        self._run()

    def _waits(self, value: Mapping[str, Data]) -> None:
        """Return the step that each step waits for: the one that first brings a value to where it is read."""
        source: dict[tuple[str, str], int] = {}
        since: dict[tuple[str, str], float] = {}

        def bring(key: tuple[str, str], n: int) -> None:
            if self.steps[n]["end_s"] < since.get(key, math.inf):
                since[key], source[key] = self.steps[n]["end_s"], n

        made: dict[str, list[str]] = {}
        read: dict[str, list[str]] = {}
        for name, entry in value.items():
            for reader in dict.fromkeys(entry["consumers"]):
                read.setdefault(reader, []).append(name)
            if entry.get("producer") is None:
                source[name, entry["home"]], since[name, entry["home"]] = -1, -math.inf
            else:
                made.setdefault(entry["producer"], []).append(name)
        for n, step in enumerate(self.tasks):
            for name in made.get(step["id"], ()):
                bring((name, step["device"]), n)
        for n, step in enumerate(self.moves, self.count):
            bring((step["value"], step["dst"]), n)
        self.waiting: list[list[int]] = [[] for _ in self.steps]
        self.missing = [0] * len(self.steps)
        for n, step in enumerate(self.steps):
            needed = (
                [(name, step["device"]) for name in read.get(step["id"], ())]
                if n < self.count
                else [(step["value"], step["src"])]
            )
            for key in needed:
                if key not in source:
                    raise ValueError(f"value {key[0]!r} is read on {key[1]} and never comes there")
                if source[key] >= 0:
                    self.waiting[source[key]].append(n)
                    self.missing[n] += 1

    def _run(self) -> None:
        orders: dict[tuple[str, int], deque[int]] = {}
        for n, lane in enumerate(self.lane):
            orders.setdefault(lane, deque()).append(n)
        asking: dict[Any, deque[int]] = {wire: deque() for wire in self.wire}
        taken: set[Any] = set()
        ended, ready = 0, 1
        events: list[tuple[float, int, int]] = [
            (0.0, ready, n) for n, count in enumerate(self.missing) if not count
        ]
        heapq.heapify(events)
        left = len(self.steps)

        def begin(n: int, now: float) -> None:
            self.start[n], self.end[n] = now, now + self.length[n]
            heapq.heappush(events, (self.end[n], ended, n))

        def compute(n: int, now: float) -> None:
            """Start a task if it is ready, and first in line on its lane, and the lane is idle."""
            lane = self.lane[n]
            if self.missing[n] or lane in taken or not orders[lane] or orders[lane][0] != n:
                return
            orders[lane].popleft()
            taken.add(lane)
            begin(n, now)

        def carry(wire: Any, now: float) -> None:
            if asking[wire] and wire not in taken:
                taken.add(wire)
                begin(asking[wire].popleft(), now)

        while events:
            now, kind, n = heapq.heappop(events)
            if kind == ready:
                if n < self.count:
                    compute(n, now)
                elif self.wire[n - self.count] is None:
                    begin(n, now)
                else:
                    asking[self.wire[n - self.count]].append(n)
                    carry(self.wire[n - self.count], now)
                continue
            left -= 1
            for later in self.waiting[n]:
                self.missing[later] -= 1
                if not self.missing[later]:
                    heapq.heappush(events, (now, ready, later))
            if n < self.count:
                taken.discard(self.lane[n])
                if orders[self.lane[n]]:
                    compute(orders[self.lane[n]][0], now)
            elif self.wire[n - self.count] is not None:
                taken.discard(self.wire[n - self.count])
                carry(self.wire[n - self.count], now)
        if left:
            raise ValueError(f"the orders of the plan wait for each other: {left} steps never start")

    def result(self, plan: Data) -> dict[str, Any]:
        timed = [
            {**step, "start_s": start, "end_s": end}
            for step, start, end in zip(self.steps, self.start, self.end)
        ]
        return {
            **plan,
            "makespan_s": max(self.end, default=0.0),
            "tasks": timed[: self.count],
            "transfers": timed[self.count :],
        }


def _in_order(graph: Data, tasks: Collection[Data]) -> list[Data]:
    """Entries of tasks by start and end. Where these are equal, as of tasks that take no time, as listed; but each
    after those of them whose results it reads."""
    makers: dict[str, list[str]] = {}
    for value in graph["values"]:
        if value.get("producer") is not None:
            for reader in value["consumers"]:
                makers.setdefault(reader, []).append(value["producer"])
    found: list[Data] = []
    for _, group in groupby(sorted(tasks, key=_by_start), key=_by_start):
        tied = [*group]
        own = {step["id"]: n for n, step in enumerate(tied)}
        before = {
            n: [own[name] for name in makers.get(step["id"], ()) if name in own]
            for n, step in enumerate(tied)
        }
        found += [tied[n] for n in topological(before)]
    return found


def _by_start(step: Data) -> tuple[float, float]:
    return step["start_s"], step["end_s"]
