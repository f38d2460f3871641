"""True if a plan of a graph file can be carried out as it says: judged from the format's definitions alone.

Plain JSON data in, sentences out. Nothing here knows how plans are made, or imports what makes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

TOLERANCE = 1e-9
"""Share of the makespan by which two moments may differ and still be one."""

Data = Mapping[str, Any]


def infeasibilities(graph: Data, plan: Data) -> list[str]:
    """Everything that is wrong with a plan, a sentence each; empty when it can be carried out as it says.

    `graph` is a graph file and `plan` what was written for it, both as parsed JSON; the graph is taken to be well
    formed. O(n log n) in tasks, transfers and reads.
    """
    return _Check(graph, plan).sentences


class _Check:
    def __init__(self, graph: Data, plan: Data) -> None:
        self.task = {task["id"]: task for task in graph["tasks"]}
        self.value = {value["id"]: value for value in graph["values"]}
        self.device = {device["name"]: device for device in graph["devices"]}
        self.link = {(link["src"], link["dst"]): link for link in graph.get("links", ())}
        self.reads: dict[str, list[str]] = {name: [] for name in self.task}
        self.makes: dict[str, list[str]] = {name: [] for name in self.task}
        for name, value in self.value.items():
            if value.get("producer") is not None:
                self.makes[value["producer"]].append(name)
            for reader in dict.fromkeys(value["consumers"]):
                self.reads[reader].append(name)
        self.sentences: list[str] = []
        known = self._known(plan)
        self.placed: list[Data] = known[0]
        self.transfers: list[Data] = known[1]
        self.last = max((step["end_s"] for step in (*self.placed, *self.transfers)), default=0.0)
        self.slack = TOLERANCE * max(self.last, 1e-9)
        self.since = self._since()
        self._tasks()
        self._together()
        self._transfers()
        self._reads()
        self._busy()
        self._memory()
        self._ends(plan)

    def say(self, text: str) -> None:
        self.sentences.append(text)

    def _known(self, plan: Data) -> tuple[list[Data], list[Data]]:
        """The entries that name what there is; the others are complained of here."""
        placed, transfers = [], []
        for step in plan["tasks"]:
            if not _timed(step):
                self.say(f"task {step['id']!r} is said to take from {step['start_s']} to {step['end_s']} s")
            elif step["id"] not in self.task:
                self.say(f"the plan places {step['id']!r}, which is not a task")
            elif step["device"] not in self.device:
                self.say(f"task {step['id']!r} is placed on {step['device']!r}, which is not a device")
            else:
                placed.append(step)
        for step in plan["transfers"]:
            if not _timed(step):
                self.say(
                    f"value {step['value']!r} is said to travel from {step['start_s']} to {step['end_s']} s"
                )
            elif step["value"] not in self.value:
                self.say(f"the plan moves {step['value']!r}, which is not a value")
            elif (step["src"], step["dst"]) not in self.link:
                self.say(
                    f"value {step['value']!r} goes from {step['src']!r} to {step['dst']!r}, which no link joins"
                )
            else:
                transfers.append(step)
        return placed, transfers

    def _since(self) -> dict[tuple[str, str], float]:
        """From when on each value is on each device where it ever is: where it is made or at home, and where it comes
        to from there. Two transfers that take no time cannot bring a value to each other."""
        since: dict[tuple[str, str], float] = {}
        leaving: dict[tuple[str, str], list[Data]] = {}
        for step in self.transfers:
            leaving.setdefault((step["value"], step["src"]), []).append(step)
        found: list[tuple[str, str]] = []

        def there(value: str, device: str, time: float) -> None:
            if time < since.get((value, device), math.inf):
                since[value, device] = time
                found.append((value, device))

        for name, value in self.value.items():
            if value.get("producer") is None:
                there(name, value["home"], 0.0)
        for step in self.placed:
            for name in self.makes[step["id"]]:
                there(name, step["device"], step["end_s"])
        for key in found:
            for step in leaving.get(key, ()):
                if since[key] <= step["start_s"] + self.slack:
                    there(step["value"], step["dst"], step["end_s"])
        return since

    def _tasks(self) -> None:
        """Every task once, where it may be, for as long as it takes."""
        where: dict[str, list[str]] = {name: [] for name in self.task}
        for step in self.placed:
            name, device = step["id"], step["device"]
            if where[name]:
                self.say(f"task {name!r} is placed twice, on {where[name][0]} and {device}")
            where[name].append(device)
            task = self.task[name]
            if task.get("pin") not in (None, device):
                self.say(f"task {name!r} is on {device} but pinned to {task['pin']}")
            width = int(self.device[device].get("lanes", 1))
            if step["lane"] not in range(width):
                self.say(f"task {name!r} is on lane {step['lane']} of {device}, which has {width}")
            cost = task["seconds"].get(device)
            if cost is None:
                self.say(f"task {name!r} cannot run on {device}")
            elif abs(step["end_s"] - step["start_s"] - cost) > self.slack:
                self.say(f"task {name!r} takes {step['end_s'] - step['start_s']} s on {device}, not {cost}")
            if step["start_s"] < -self.slack:
                self.say(f"task {name!r} starts before the beginning")
        for name, devices in where.items():
            if not devices:
                self.say(f"task {name!r} is not placed")

    def _together(self) -> None:
        groups: dict[str, set[str]] = {}
        for step in self.placed:
            group = self.task[step["id"]].get("colocate")
            if group is not None:
                groups.setdefault(group, set()).add(step["device"])
        for group, devices in groups.items():
            if len(devices) > 1:
                self.say(f"the group {group!r} is on {', '.join(sorted(devices))} and must be on one device")

    def _transfers(self) -> None:
        seen = set()
        for step in self.transfers:
            name, src, dst = step["value"], step["src"], step["dst"]
            link = self.link[src, dst]
            cost = link["latency_s"] + self.value[name]["bytes"] / link["bytes_per_s"]
            if abs(step["end_s"] - step["start_s"] - cost) > self.slack:
                self.say(
                    f"value {name!r} takes {step['end_s'] - step['start_s']} s from {src} to {dst}, not {cost}"
                )
            if (
                self.since.get((name, src), math.inf) > step["start_s"] + self.slack
                or step["start_s"] < -self.slack
            ):
                self.say(f"value {name!r} leaves {src} for {dst} before it is there")
            if (name, dst) in seen:
                self.say(f"value {name!r} comes to {dst} twice")
            seen.add((name, dst))

    def _reads(self) -> None:
        for step in self.placed:
            for name in self.reads[step["id"]]:
                if self.since.get((name, step["device"]), math.inf) > step["start_s"] + self.slack:
                    self.say(f"task {step['id']!r} reads {name!r} on {step['device']} before it is there")
        for name, value in self.value.items():
            if value.get("deliver_to") is not None and (name, value["deliver_to"]) not in self.since:
                self.say(f"value {name!r} never comes to {value['deliver_to']}, where it must be delivered")

    def _busy(self) -> None:
        """Lanes and wires do one thing at a time."""
        used: dict[str, list[tuple[float, float, str]]] = {}
        for step in self.placed:
            key = f"lane {step['lane']} of {step['device']}"
            used.setdefault(key, []).append((step["start_s"], step["end_s"], f"task {step['id']!r}"))
        for step in self.transfers:
            link = self.link[step["src"], step["dst"]]
            wire = (
                f"the wire {link['wire']!r}" if "wire" in link else f"the link {step['src']} → {step['dst']}"
            )
            if "wire" not in link or link["wire"] is not None:
                used.setdefault(wire, []).append((step["start_s"], step["end_s"], f"value {step['value']!r}"))
        for what, spans in used.items():
            first, *rest = sorted(spans)
            for start, end, other in rest:
                # What takes no time may be where another begins or ends, and not amid it.
                if start < first[1] - self.slack and end > first[0] + self.slack:
                    self.say(f"{what} has {first[2]} and {other} at {start} s")
                first = max(first, (start, end, other), key=lambda span: span[1])

    def _memory(self) -> None:
        """State for ever, scratch while it is used, values from their beginning to their last local use."""
        begins: dict[tuple[str, str], float] = {}
        ends: dict[tuple[str, str], float] = {}

        def use(value: str, device: str, start: float, end: float) -> None:
            key = value, device
            begins[key] = min(start, begins.get(key, start))
            ends[key] = max(end, ends.get(key, end))

        held: list[tuple[str, float, float, int]] = []
        for name, value in self.value.items():
            if value.get("producer") is None:
                use(name, value["home"], 0.0, 0.0)
        for step in self.placed:
            task, device, start, end = self.task[step["id"]], step["device"], step["start_s"], step["end_s"]
            held.append((device, 0.0, math.inf, task.get("state_bytes", 0)))
            held.append((device, start, end, task.get("workspace_bytes", 0)))
            for name in self.makes[step["id"]]:
                use(name, device, start, end)
        for step in self.transfers:
            use(step["value"], step["dst"], step["start_s"], step["end_s"])
        for step in self.placed:
            for name in self.reads[step["id"]]:
                if (name, step["device"]) in begins:
                    use(name, step["device"], step["end_s"], step["end_s"])
        for step in self.transfers:
            if (step["value"], step["src"]) in begins:
                use(step["value"], step["src"], step["end_s"], step["end_s"])
        held += [(key[1], begins[key], ends[key], self.value[key[0]]["bytes"]) for key in begins]
        for device, peak, time in self._peaks(held):
            cap = self.device[device].get("memory_bytes")
            # Whole bytes are counted to the last one; sums of fractions depend on their order.
            if cap is not None and peak > cap * (1 if isinstance(peak, int) else 1 + TOLERANCE):
                self.say(f"{device} holds {peak} bytes at {time} s and has {cap}")

    def _peaks(self, held: Iterable[tuple[str, float, float, int]]) -> Iterable[tuple[str, int, float]]:
        changes: dict[str, list[tuple[float, int]]] = {device: [] for device in self.device}
        for device, start, end, nbytes in held:
            if nbytes:
                changes[device] += [(start, nbytes), (max(start, end - self.slack), -nbytes)]
        for device, steps in changes.items():
            level, peak, when = 0, 0, 0.0
            for time, change in sorted(steps):
                level += change
                if level > peak:
                    peak, when = level, time
            yield device, peak, when

    def _ends(self, plan: Data) -> None:
        makespan = plan["makespan_s"]
        if not abs(makespan - self.last) <= self.slack:
            self.say(f"the makespan is said to be {makespan} s, but the last step ends at {self.last} s")
        if not 0 <= plan["lower_bound_s"] <= makespan * (1 + TOLERANCE):
            self.say(
                f"the lower bound {plan['lower_bound_s']} s is above the makespan {makespan} s, or below 0"
            )


def _timed(step: Data) -> bool:
    return math.isfinite(step["start_s"]) and math.isfinite(step["end_s"])
