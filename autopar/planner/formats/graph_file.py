"""The graph file of autopar: tasks, values, devices and links as JSON, as a `CostedGraph`.

{"format": "autopar graph 1",
"tasks": [{"id": "a", "seconds": {"cpu": 1.0, "cuda:0": 0.2}, "state_bytes": 0, "workspace_bytes": 0, "colocate": "g",
"pin": "cpu"}], "values": [{"id": "v", "producer": "a", "consumers": ["b"], "bytes": 4096, "deliver_to": "cpu"},
{"id": "x", "producer": null, "home": "cpu", "consumers": ["a"], "bytes": 64}], "devices": [{"name": "cpu", "lanes": 2,
"memory_bytes": null}], "links": [{"src": "cpu", "dst": "cuda:0", "latency_s": 1e-5, "bytes_per_s": 2.5e10, "wire":
"pcie0"}]}

A task cannot run on devices that its `seconds` lack.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import networkx

from ...errors import PlanError
from ...ir.costed import Cluster, CostedGraph, TaskCost
from ...ir.device import Device, Link
from ...ir.graph import Graph, Ref, Task, Value
from ...ir.machine import Machine
from ...ir.serialize import require_format
from ..model.toposort import topological
from .fields import LARGEST, SMALLEST, JsonObject, known, seconds

TASK = frozenset(("id", "seconds", "state_bytes", "workspace_bytes", "colocate", "pin"))
"""Keys of a task."""
VALUE = frozenset(("id", "producer", "home", "consumers", "bytes", "deliver_to"))
"""Keys of a value."""
DEVICE = frozenset(("name", "lanes", "memory_bytes"))
"""Keys of a device."""
FORMAT = "autopar graph 1"
LINK = frozenset(("src", "dst", "latency_s", "bytes_per_s", "wire"))
"""Keys of a link."""
TARGET = "task"
"""Target of the tasks of a file, which have no operator and cannot run."""

Ends = list[tuple[str, str]]
"""Values, each with the device where it starts or must be delivered."""

log = logging.getLogger("autopar")


@dataclass(slots=True)
class _Row:
    """A task of the file; `before`: numbers of the tasks that it waits for."""

    name: str
    seconds: tuple[float | None, ...]
    colocate: str | None
    state: int
    workspace: int
    reads: list[str] = field(default_factory=list)
    makes: list[str] = field(default_factory=list)
    before: list[int] = field(default_factory=list)


def costed(data: Any, name: str = "graph", machine: Machine | None = None) -> CostedGraph:
    """Build the graph that `data` describes; `machine` replaces its devices and links.

    Unknown keys are ignored, but a near miss of a known key is refused. Raises PlanError with one sentence for the
    first error. Near linear in tasks, values and their consumers.
    """
    whole = JsonObject(data, "the graph")
    if "format" in whole.data:
        require_format(
            whole.data, FORMAT, f"the graph {name!r}", "give a file as docs/formats.md describes", PlanError
        )
    # A file name may contain lone surrogates, which no text can encode.
    name = name.encode(errors="replace").decode()
    entries = _listed(whole, "tasks")
    on = machine.check() if machine else read_machine(whole)
    position = {device.name: index for index, device in enumerate(on.devices)}
    tasks: dict[str, int] = {}
    rows: list[_Row] = []
    for entry in entries:
        task = _task(entry, position)
        if task.name in tasks:
            raise PlanError(f"two tasks have the id {task.name!r}; give each an id of its own")
        tasks[task.name] = len(rows)
        rows.append(task)
    values, deliver, homes = _values(_listed(whole, "values"), rows, tasks, position)
    order = _in_order(rows)
    return _assemble(name, _used(on, rows), [rows[t] for t in order], values, deliver, homes)


def _used(on: Machine, rows: Sequence[_Row]) -> Machine:
    """Return the machine without lanes that would be idle if all tasks ran at once: each lane costs planning time."""
    if all(device.lanes <= len(rows) for device in on.devices):
        return on
    devices = (replace(device, lanes=min(device.lanes, max(1, len(rows)))) for device in on.devices)
    return replace(on, devices=tuple(devices))


def _task(entry: JsonObject, position: Mapping[str, int]) -> _Row:
    name = entry.name("task", TASK)
    by_device = JsonObject(entry.need("seconds"), f"'seconds' of {entry.called}", such='{"cpu": 1.0}').data
    times: list[float | None] = [None] * len(position)
    for device, cost in by_device.items():
        if type(cost) is float and device in position and SMALLEST <= cost <= LARGEST:
            times[position[device]] = cost
            continue
        d = known(device, position, "device", f"a device in 'seconds' of task {name!r}")
        times[d] = seconds(cost, f"the time of task {name!r} on {device!r}")
    if entry.data.get("pin") is not None:
        d = entry.among("pin", position, "device")
        if times[d] is None:
            raise PlanError(
                f"task {name!r} is pinned to {entry.data['pin']!r}, which cannot run it; give its seconds there"
            )
        times = [s if d == e else None for e, s in enumerate(times)]
    if times.count(None) == len(times):
        raise PlanError(
            f"no device can run task {name!r}; give its seconds on at least one of {', '.join(position)}"
        )
    group, state, workspace = (
        entry.text("colocate", None), entry.nbytes("state_bytes", 0), entry.nbytes("workspace_bytes", 0)
    )  # fmt: skip
    return _Row(name, tuple(times), group, state, workspace)


def _values(
    entries: Sequence[JsonObject], rows: Sequence[_Row], tasks: Mapping[str, int], position: Mapping[str, int]
) -> tuple[list[Value], Ends, Ends]:
    """Return the values of the file, their deliveries, and the homes of those that no task makes."""
    values: dict[str, Value] = {}
    deliver: Ends = []
    homes: Ends = []
    both: list[str] = []
    for entry in entries:
        name = entry.name("value", VALUE)
        if name in values:
            raise PlanError(f"two values have the id {name!r}; give each an id of its own")
        size, maker, home = entry.nbytes("bytes"), -1, entry.data.get("home", "")
        if entry.data.get("producer") is not None:
            maker = entry.among("producer", tasks, "task")
            rows[maker].makes.append(name)
            both += [name] if home else []
        else:
            if "home" not in entry.data:
                entry.called += ", which has no producer,"
            entry.among("home", position, "device")
            homes.append((name, home))
        consumers = entry.items("consumers")
        try:
            readers = dict.fromkeys([tasks[reader] for reader in consumers])
        except (KeyError, TypeError):
            what = f"a consumer of value {name!r}"
            readers = dict.fromkeys([known(each, tasks, "task", what) for each in consumers])
        for t in readers:
            rows[t].reads.append(name)
            if maker >= 0:
                rows[t].before.append(maker)
        values[name] = Value(name, (), "", size, name, "made" if maker >= 0 else "input")
        if entry.data.get("deliver_to") is not None:
            entry.among("deliver_to", position, "device")
            deliver.append((name, entry.data["deliver_to"]))
    if both:
        others = f" and {len(both) - 1} more" if both[1:] else ""
        log.warning("value %r%s: 'home' is not heeded where there is a 'producer'", both[0], others)
    return list(values.values()), deliver, homes


def _in_order(rows: Sequence[_Row]) -> list[int]:
    """Return the task numbers in topological order, as close to file order as possible. PlanError names the tasks of a
    cycle."""
    if all(p < t for t, row in enumerate(rows) for p in row.before):
        return list(range(len(rows)))
    order = topological({t: row.before for t, row in enumerate(rows)})
    if len(order) == len(rows):
        return order
    graph = networkx.DiGraph((p, t) for t, row in enumerate(rows) for p in row.before)
    cycle = networkx.find_cycle(graph)
    circle = [rows[t].name for t in (cycle[0][0], *(t for _, t in cycle))]
    shown = circle if len(circle) <= 8 else [*circle[:4], "…", *circle[-3:]]
    raise PlanError(
        f"the tasks wait for each other in a circle: {' → '.join(map(repr, shown))}; take one of these values out"
    )


def _assemble(
    name: str, on: Machine, rows: Sequence[_Row], values: list[Value], deliver: Ends, homes: Ends
) -> CostedGraph:
    names = {value.name for value in values}
    inputs = tuple(home for home, _ in homes)
    state: list[str] = []
    tasks, costs, clusters = [], [], []
    for row in rows:
        reads = row.reads
        if row.state:
            held = f"{row.name}.state"
            while held in names:
                held += "'"
            state.append(held)
            values.append(Value(held, (), "", row.state, held, "state", held))
            reads = [*reads, held]
        tasks.append(Task(row.name, TARGET, tuple(map(Ref, reads)), outputs=tuple(row.makes)))
        costs.append(TaskCost(row.name, row.seconds, row.workspace, "given"))
        clusters.append(
            Cluster(row.name, (row.name,), row.seconds, 0.0, tuple(reads), tuple(row.makes), (), row.colocate,
                row.workspace)
        )  # fmt: skip
    outputs = tuple(value for value, _ in deliver)
    graph = Graph(name, tuple(values), tuple(tasks), inputs, tuple(state), outputs)
    nowhere = tuple((held, "") for held in state)
    return CostedGraph(
        graph, on, tuple(costs), tuple(clusters), (*homes, *nowhere), tuple(deliver), consumed=True
    )


def _listed(data: JsonObject, key: str) -> list[JsonObject]:
    """Return the entries of one of the lists of a graph file."""
    if key not in data.data:
        raise PlanError(
            f'the graph has no "{key}"; it needs the lists "tasks", "values", "devices" and "links"'
        )
    return data.entries(key)


def read_machine(data: JsonObject) -> Machine:
    """Read the machine of a graph file: transfers wait only for buses; a link without `wire` has its own.

    Raises PlanError for an invalid machine. A link from a device to itself is ignored.
    """
    devices: dict[str, Device] = {}
    for entry in _listed(data, "devices"):
        name = entry.name("device", DEVICE, "name")
        if name in devices:
            raise PlanError(f"two devices are called {name!r}; give each a name of its own")
        lanes, cap = entry.count("lanes", 1), entry.nbytes("memory_bytes", None)
        devices[name] = Device(name, name.split(":")[0], lanes=lanes, memory_bytes=cap)
    if not devices:
        raise PlanError('the list "devices" is empty; give at least one, such as {"name": "cpu", "lanes": 1}')
    position = {name: index for index, name in enumerate(devices)}
    alone = len(devices) == 1 and "links" not in data.data
    links: dict[tuple[str, str], Link] = {}
    entries = [] if alone else _listed(data, "links")
    named = {str(entry.data.get("wire")) for entry in entries}
    for entry in entries:
        link = _link(entry, position, named)
        if (link.src, link.dst) in links:
            raise PlanError(f"two links lead from {link.src!r} to {link.dst!r}; leave one out")
        if link.src != link.dst:
            links[link.src, link.dst] = link
    return Machine(tuple(devices.values()), tuple(links.values()), absent=True, queued=False)


def _link(entry: JsonObject, position: Mapping[str, int], named: Container[str]) -> Link:
    names = [*position]
    src, dst = (names[entry.among(end, position, "device")] for end in ("src", "dst"))
    default = f"{src} → {dst}"
    entry.called = f"the link {default}"
    entry.spelt(LINK)
    latency, rate = entry.seconds("latency_s"), entry.number("bytes_per_s", "bytes a second")
    if rate < 1 / LARGEST:
        raise PlanError(
            f"'bytes_per_s' of {entry.called} is {rate}; it must be more than 0, or leave the link out"
        )
    while default in named:
        default += "'"
    wire = None if entry.data.get("wire", default) is None else entry.text("wire", default)
    return Link(src, dst, latency, rate, wire)
