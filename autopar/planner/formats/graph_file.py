"""The graph file of autopar: tasks, values, devices and links as JSON, as a `CostedGraph`.

{"tasks": [{"id": "a", "seconds": {"cpu": 1.0, "cuda:0": 0.2}, "state_bytes": 0, "workspace_bytes": 0, "colocate": "g",
"pin": "cpu"}], "values": [{"id": "v", "producer": "a", "consumers": ["b"], "bytes": 4096, "deliver_to": "cpu"},
{"id": "x", "producer": null, "home": "cpu", "consumers": ["a"], "bytes": 64}], "devices": [{"name": "cpu", "lanes": 2,
"memory_bytes": null}], "links": [{"src": "cpu", "dst": "cuda:0", "latency_s": 1e-5, "bytes_per_s": 2.5e10, "wire":
"pcie0"}]}

A device that `seconds` lacks cannot run the task; `{"cpu": {"1": 1.0, "2": 0.6}}` are seconds by lanes taken.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import PlanError
from ...ir.costed import CostedGraph, Run, TaskCost
from ...ir.graph import Graph, Ref, Task, Value
from ...ir.machine import Machine
from . import fields
from .machine_file import LISTS
from .machine_file import machine as read_machine
from .order import in_order
from .reach import check_reach

TASK = frozenset(("id", "seconds", "state_bytes", "workspace_bytes", "colocate", "pin"))
"""What is said of a task."""
VALUE = frozenset(("id", "producer", "home", "consumers", "bytes", "deliver_to"))
"""What is said of a value."""
TARGET = "task"
"""What a task of a file calls: nothing that could be run."""

Modes = tuple[tuple[int, int, float], ...]

log = logging.getLogger("autopar")


@dataclass(slots=True)
class _Row:
    """A task of the file."""

    name: str
    seconds: tuple[float | None, ...]
    modes: Modes
    colocate: str | None
    state: int
    workspace: int
    reads: list[str] = field(default_factory=list)
    makes: list[str] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


def costed(data: Any, name: str = "graph", machine: Machine | None = None) -> CostedGraph:
    """The graph that `data` describes; `machine` takes the place of its devices and links.

    Keys that the format does not have are not looked at, but one that is nearly a word of it is refused. Raises
    PlanError with one sentence for the first thing that is wrong. Near linear in tasks, values and their consumers.
    """
    data = fields.row(data, "the graph")
    # A file may be called what no text can hold.
    name = name.encode(errors="replace").decode()
    listed = fields.rows(data, "tasks", LISTS)
    on = machine.check() if machine else read_machine(data)
    position = {device.name: index for index, device in enumerate(on.devices)}
    lanes = [device.lanes for device in on.devices]
    tasks: dict[str, int] = {}
    rows: list[_Row] = []
    for index, item in enumerate(listed):
        task = _task(item, index, position, lanes)
        if task.name in tasks:
            raise PlanError(f"two tasks have the id {task.name!r}; give each an id of its own")
        tasks[task.name] = len(rows)
        rows.append(task)
    _share(rows, [device.name for device in on.devices])
    values, deliver, homes = _values(fields.rows(data, "values", LISTS), rows, tasks, position)
    order = in_order([task.name for task in rows], [task.before for task in rows])
    check_reach(on, rows, deliver, homes)
    return _assemble(name, _used(on, rows), [rows[t] for t in order], values, deliver, homes)


def _used(on: Machine, rows: Sequence[_Row]) -> Machine:
    """The machine without lanes that would stay idle if all tasks ran at once: each lane costs time to plan."""
    if all(device.lanes <= len(rows) for device in on.devices):
        return on
    most = [max(1, len(rows))] * len(on.devices)
    for task in rows:
        for d, taken in {d: taken for d, taken, _ in task.modes}.items():
            most[d] += taken - 1
    devices = (replace(device, lanes=min(device.lanes, most[d])) for d, device in enumerate(on.devices))
    return replace(on, devices=tuple(devices))


def _task(item: Any, index: int, position: Mapping[str, int], lanes: Sequence[int]) -> _Row:
    entry = fields.row(item, "tasks[{}]", index)
    name = fields.text(fields.need(entry, "id", "tasks[{}]", index), "the id of tasks[{}]", index)
    fields.spelt(entry, TASK, "task {!r}", name)
    given = fields.need(entry, "seconds", "task {!r}", name)
    given = fields.row(given, "'seconds' of task {!r}", name, such='{"cpu": 1.0}')
    seconds: list[float | None] = [None] * len(position)
    modes: list[tuple[int, int, float]] = []
    for device, cost in given.items():
        if type(cost) is float and device in position and fields.SMALLEST <= cost <= fields.LARGEST:
            seconds[position[device]] = cost
            continue
        d = fields.known(device, position, "device", "a device in 'seconds' of task {!r}", name)
        if isinstance(cost, dict):
            ways = _ways(cost, name, device, lanes[d])
            seconds[d] = min((s for _, s in ways), default=None)
            modes += [(d, taken, s) for taken, s in ways]
        else:
            seconds[d] = fields.seconds(cost, "the time of task {!r} on {!r}", name, device)
    pin = entry.get("pin")
    if pin is not None:
        d = fields.known(pin, position, "device", "the pin of task {!r}", name)
        if seconds[d] is None:
            raise PlanError(
                f"task {name!r} is pinned to {pin!r}, which cannot run it; give its seconds there"
            )
        seconds = [s if d == e else None for e, s in enumerate(seconds)]
        modes = [mode for mode in modes if mode[0] == d]
    if seconds.count(None) == len(seconds):
        few = f", for as many lanes as it has ({', '.join(map(str, lanes))}) or fewer" if given else ""
        raise PlanError(
            f"no device can run task {name!r}; give its seconds on at least one of {', '.join(position)}{few}"
        )
    state, workspace, together = (
        entry.get("state_bytes", 0),
        entry.get("workspace_bytes", 0),
        entry.get("colocate"),
    )
    return _Row(
        name,
        tuple(seconds),
        tuple(modes),
        None if together is None else fields.text(together, "'colocate' of task {!r}", name),
        fields.nbytes(state, "'state_bytes' of task {!r}", name),
        fields.nbytes(workspace, "'workspace_bytes' of task {!r}", name),
    )


def _ways(cost: Mapping[str, Any], name: str, device: str, lanes: int) -> list[tuple[int, float]]:
    """(lanes taken, seconds) that the device has lanes enough for, by lanes."""
    ways: list[tuple[int, float]] = []
    for key, value in cost.items():
        if not (str(key).isdecimal() and len(str(key)) < 10 and int(key)):
            raise PlanError(
                f"task {name!r} has seconds for {key!r} lanes of {device!r}; write a number from 1 on"
            )
        taken = int(key)
        if any(taken == other for other, _ in ways):
            raise PlanError(f"task {name!r} has two times on {taken} lanes of {device!r}; leave one out")
        ways.append(
            (taken, fields.seconds(value, "the time of task {!r} on {} lanes of {!r}", name, taken, device))
        )
    return sorted(way for way in ways if way[0] <= lanes)


def _share(rows: Sequence[_Row], devices: Sequence[str]) -> None:
    """Refuse groups that no device can hold together."""
    groups: dict[str, tuple[str, set[int]]] = {}
    for task in rows:
        if task.colocate is None:
            continue
        able = {d for d, s in enumerate(task.seconds) if s is not None}
        other, shared = groups.get(task.colocate, (task.name, able))
        if not shared & able:
            ways = [" or ".join(devices[d] for d in sorted(on)) for on in (shared, able)]
            raise PlanError(
                f"tasks of the group {task.colocate!r} must share a device, but {other!r} leaves {ways[0]} and "
                f"{task.name!r} can only run on {ways[1]}; pin them to one device, or part the group"
            )
        groups[task.colocate] = (task.name, shared & able) if not shared <= able else (other, shared)


def _values(
    listed: Sequence[Any], rows: Sequence[_Row], tasks: Mapping[str, int], position: Mapping[str, int]
) -> tuple[list[Value], list[tuple[str, str]], list[tuple[str, str]]]:
    """The values of the file, where they must come to, and where those are that no task makes."""
    found: dict[str, Value] = {}
    deliver, homes, both = [], [], []
    for index, item in enumerate(listed):
        # What is as it should be is seen at once: a large graph has several values for each task.
        entry = item if type(item) is dict else fields.row(item, "values[{}]", index)
        name = entry.get("id")
        if type(name) is not str or not name or not name.isascii():
            name = fields.text(fields.need(entry, "id", "values[{}]", index), "the id of values[{}]", index)
        fields.spelt(entry, VALUE, "value {!r}", name)
        if name in found:
            raise PlanError(f"two values have the id {name!r}; give each an id of its own")
        size = entry.get("bytes")
        if type(size) is not int or not 0 <= size <= fields.LARGEST:
            size = fields.need(entry, "bytes", "value {!r}", name)
            size = fields.nbytes(size, "'bytes' of value {!r}", name)
        producer = entry.get("producer")
        maker = -1
        if producer is not None:
            maker = tasks.get(producer, -1) if type(producer) is str else -1
            if maker < 0:
                maker = fields.known(producer, tasks, "task", "the producer of value {!r}", name)
            if entry.get("home") is not None:
                both.append(name)
            rows[maker].makes.append(name)
        else:
            home = fields.need(entry, "home", "value {!r}, which has no producer,", name)
            fields.known(home, position, "device", "the home of value {!r}", name)
            homes.append((name, home))
        consumers = entry.get("consumers")
        if type(consumers) is not list:
            consumers = fields.need(entry, "consumers", "value {!r}", name)
            consumers = fields.items(consumers, "'consumers' of value {!r}", name)
        try:
            readers = [tasks[reader] for reader in consumers]
        except (KeyError, TypeError):
            readers = [
                fields.known(each, tasks, "task", "a consumer of value {!r}", name) for each in consumers
            ]
        for t in readers if len(readers) < 2 else dict.fromkeys(readers):
            rows[t].reads.append(name)
            if maker >= 0:
                rows[t].before.append(maker)
        found[name] = Value(name, (), "", size, name, "made" if maker >= 0 else "input")
        wanted = entry.get("deliver_to")
        if wanted is not None:
            fields.known(wanted, position, "device", "'deliver_to' of value {!r}", name)
            deliver.append((name, wanted))
    if both:
        others = f" and {len(both) - 1} more" if both[1:] else ""
        log.warning("value %r%s: 'home' is not heeded where there is a 'producer'", both[0], others)
    return list(found.values()), deliver, homes


def _assemble(
    name: str,
    on: Machine,
    rows: Sequence[_Row],
    values: list[Value],
    deliver: Sequence[tuple[str, str]],
    homes: Sequence[tuple[str, str]],
) -> CostedGraph:
    taken = {value.name for value in values}
    inputs = tuple(home for home, _ in homes)
    state: list[str] = []
    tasks, costs, runs = [], [], []
    for row in rows:
        reads = row.reads
        if row.state:
            held = f"{row.name}.state"
            while held in taken:
                held += "'"
            state.append(held)
            values.append(Value(held, (), "", row.state, held, "state", held))
            reads = [*reads, held]
        tasks.append(Task(row.name, TARGET, tuple(map(Ref, reads)), outputs=tuple(row.makes)))
        costs.append(TaskCost(row.name, row.seconds, row.workspace, "given"))
        runs.append(
            Run(row.name, (row.name,), row.seconds, 0.0, tuple(reads), tuple(row.makes), (), row.colocate,
                row.workspace, row.modes)
        )  # fmt: skip
    outputs = tuple(value for value, _ in deliver)
    graph = Graph(name, tuple(values), tuple(tasks), inputs, tuple(state), outputs)
    nowhere = tuple((held, "") for held in state)
    return CostedGraph(
        graph, on, tuple(costs), tuple(runs), (*homes, *nowhere), tuple(deliver), consumed=True
    )
