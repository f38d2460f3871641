"""Plans without a planner: every task its own run, any placement, naive times. For tests of what comes after
a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar.ir.costed import Cluster, CostedGraph, TaskCost
from autopar.ir.device import Device, Link
from autopar.ir.graph import Graph, Value
from autopar.ir.machine import Machine
from autopar.ir.plan import Plan
from autopar.ir.timeline import Placed, Transfer


def machine(lanes: int = 1, accelerators: int = 2, caps: Mapping[str, int] | None = None) -> Machine:
    """A CPU and some emulated accelerators, all linked with all."""
    caps = caps or {}
    devices = [Device("cpu", "cpu", lanes=lanes, memory_bytes=caps.get("cpu"))]
    devices += [
        Device(f"emulated:{index}", "emulated", memory_bytes=caps.get(f"emulated:{index}"))
        for index in range(accelerators)
    ]
    links = [Link(a.name, b.name, 1e-6, 1e9, None) for a in devices for b in devices if a is not b]
    return Machine(tuple(devices), tuple(links))


def value(
    name: str, shape: tuple[int, ...] = (4, 4), storage: str = "", kind: str = "made", dtype: str = "float32"
) -> Value:
    """A value with the bytes its shape says."""
    count = 1
    for size in shape:
        count *= size
    width = {"float32": 4, "float64": 8, "int64": 8, "int32": 4, "bool": 1, "complex64": 8, "object": 0}[
        dtype
    ]
    return Value(name, shape, dtype, count * width, storage or name, kind)  # type: ignore[arg-type]


def plan(
    graph: Graph,
    machine: Machine,
    where: Mapping[str, str] | Sequence[str],
    *,
    seconds: Mapping[str, float] | None = None,
    home: str = "cpu",
    deliver: str = "cpu",
    workspace: Mapping[str, int] | None = None,
) -> Plan:
    """`where` gives the device (or lane) of each task, as a mapping or in graph order; copies go as soon as
    they can.
    """
    graph.check()
    places = (
        dict(where)
        if isinstance(where, Mapping)
        else {t.name: where[i % len(where)] for i, t in enumerate(graph.tasks)}
    )
    seconds, workspace = seconds or {}, workspace or {}
    homes = tuple((name, home) for name in (*graph.inputs, *graph.state))
    delivered = tuple((name, deliver) for name in graph.outputs) + tuple(
        (made, home) for made, _ in graph.updates
    )
    costs = tuple(
        TaskCost(t.name, (seconds.get(t.name, 1.0),) * len(machine.devices), workspace.get(t.name, 0))
        for t in graph.tasks
    )
    clusters = tuple(
        Cluster(cost.task, (cost.task,), cost.seconds, 0.0, t.inputs, t.outputs, t.after)
        for cost, t in zip(costs, graph.tasks, strict=True)
    )
    costed = CostedGraph(graph, machine, costs, clusters, homes, delivered)
    ready = {f"{name}@{home}": 0.0 for name in (*graph.inputs, *graph.state)}
    free: dict[str, float] = {}
    ended: dict[str, float] = {}
    placed: list[Placed] = []
    transfers: list[Transfer] = []
    resident: dict[tuple[str, str], None] = {}

    def bring(name: str, src: str, device: str) -> float:
        if f"{name}@{device}" not in ready:
            lane = machine.copy_lane(src, device)
            able = ready[f"{name}@{src}"]
            start = max(able, free.get(lane, 0.0))
            end = start + seconds.get(f"copy {name}", 0.25)
            transfers.append(Transfer(name, src, device, lane, start, end, able, graph.value[name].bytes))
            ready[f"{name}@{device}"] = free[lane] = end
        return ready[f"{name}@{device}"]

    made_on = dict(homes)
    for index, task in enumerate(graph.tasks):
        device = places[task.name].split("/")[0]
        lanes = machine.device[device].compute_lanes
        lane = places[task.name] if "/" in places[task.name] else lanes[index % len(lanes)]
        arrives = [ended[name] for name in task.after]
        for name in task.inputs:
            if name in costed.graph.resident and device != home:
                resident[name, device] = None
            else:
                arrives.append(bring(name, made_on[name], device))
        start = max([free.get(lane, 0.0), *arrives])
        end = start + seconds.get(task.name, 1.0)
        free[lane] = ended[task.name] = end
        placed.append(Placed(task.name, device, lane, start, end))
        for name in task.outputs:
            ready[f"{name}@{device}"] = end
            made_on[name] = device
    for name, device in delivered:
        if (name, device) not in resident:
            bring(name, made_on[name], device)
    for made, target in graph.updates:
        for state, device in resident:
            if state == target and device != made_on[made]:
                bring(made, made_on[made], device)
    last = max([0.0, *ready.values()])
    key = lambda step: (step.start, step.end)  # noqa: E731
    return Plan(
        costed,
        "naive",
        tuple(sorted(placed, key=key)),
        tuple(sorted(transfers, key=key)),
        tuple(resident),
        (),
        last,
    )
