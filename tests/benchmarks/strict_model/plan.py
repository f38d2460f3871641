"""Plans of the strict model: what was found, as times of tasks and transfers."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from autopar.errors import MemoryCapError, PlanError
from autopar.ir.costed import CostedGraph
from autopar.ir.plan import Plan
from autopar.ir.timeline import Memory, Placed, Transfer
from autopar.planner.formats.graph_file import costed
from autopar.planner.formats.read import dnn_partitioning
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Play, Schedule
from autopar.planner.model.timing import timing
from autopar.planner.model.toposort import topological
from autopar.planner.throughput.balance import balance
from autopar.planner.throughput.loads import Standing

from .bound import bound
from .calls import Calls
from .graph import classes, order, outputs
from .loads import strict_loads
from .partitioning import Partitioning
from .reasons import StrictReasons, StrictShares
from .search import search
from .splits import splits

STRICT = "strict-msr"
"""The policy of plans under this model."""


def strict_plan(graph: Partitioning, name: str = "graph", budget_s: float | None = None) -> Plan:
    """The plan of the shortest latency found for a graph of the set, with as many cores as it uses at once.

    What an accelerator fetches comes right before, and what it sends right after, what it computes. The search counts
    its budget in steps; `budget_s` is a ceiling in seconds. `lower_bound` is the longest way with each node where it
    is quickest. Raises PlanError for a cycle.
    """
    graph = _even(graph)
    nodes = order(graph)
    calls = Calls.of(graph)
    until = math.inf if budget_s is None else time.monotonic() + budget_s
    at, cut = search(calls, until)
    where = [at[c] for c in calls.group]
    plan = _timed(graph, name, nodes, where, "time" if cut else "")
    called = [device.name for device in plan.costed.machine.devices]
    reasons = StrictReasons(graph, [cluster.name for cluster in plan.costed.clusters], at, called)
    return replace(plan, reasons=reasons)


def strict_throughput(graph: Partitioning, name: str = "graph", budget_s: float | None = None) -> Plan:
    """The plan of the smallest largest load found for a graph of the set: `period`, in seconds.

    Its steps are one call on a machine that is freer (devices compute while they move data); lane c of the host is
    core c. Raises MemoryCapError when the nodes do not fit, PlanError for a cycle or without any device.
    """
    graph = _even(graph)
    nodes = order(graph)
    if not graph.cpus and not graph.accelerators:
        raise PlanError("maxCPUs and maxFPGAs are both 0; give at least one device")
    stuck = next((n for n in graph.nodes if n.accelerator_s is None and not graph.cpus), None)
    if stuck:
        raise PlanError(f"node {stuck.name} cannot run on an accelerator and maxCPUs is 0; give a CPU core")
    loads = strict_loads(graph)
    until = math.inf if budget_s is None else time.monotonic() + budget_s
    at, cut = balance(loads, until, splits(loads))
    if at is None:
        total = sum(node.nbytes for node in graph.nodes)
        raise MemoryCapError(
            f"the nodes need {total} bytes, and {graph.accelerators} accelerators of {graph.cap} bytes were not filled "
            "with them; raise maxSizePerFPGA or maxFPGAs, or give CPU cores"
        )
    period = Standing(loads, at).period
    _, group = classes(graph)
    built = costed(dnn_partitioning(graph.data), name)
    lanes: dict[str, list[str]] = {}
    for v in nodes:
        device = built.machine.devices[0 if at[group[v]] < graph.cpus else at[group[v]] - graph.cpus + 1]
        lane = device.compute_lanes[at[group[v]] if at[group[v]] < graph.cpus else 0]
        lanes.setdefault(lane, []).append(graph.nodes[v].name)
    cores = built.machine.devices[0].compute_lanes[: graph.cpus]
    called = [*cores, *(device.name for device in built.machine.devices[1:])]
    orders = {lane: tuple(names) for lane, names in lanes.items()}
    found = timing(Play(Instance(built), Schedule(STRICT, orders)))
    return Plan(
        costed=built,
        policy=STRICT,
        placed=found.placed,
        transfers=found.transfers,
        resident=found.resident,
        memory=found.memory,
        makespan=found.makespan,
        lower_bound=bound(loads),
        reasons=StrictShares(graph, [cluster.name for cluster in built.clusters], at, called),
        stopped="time" if cut else "",
        period=period,
    )


OBJECTIVES: dict[str, Callable[..., Plan]] = {"latency": strict_plan, "throughput": strict_throughput}
"""The function of a graph of the set, its name and `budget_s=` for each objective."""


def _even(graph: Partitioning) -> Partitioning:
    """The graph with all edges of a node as dear as its dearest: what moves is one output."""
    dearest = [seconds for _, seconds in outputs(graph)]
    edges = tuple(replace(edge, seconds=dearest[edge.src]) for edge in graph.edges)
    return replace(graph, edges=tuple(dict.fromkeys(edges)))


def _timed(graph: Partitioning, name: str, nodes: Sequence[int], where: Sequence[int], stopped: str) -> Plan:
    reads: list[list[int]] = [[] for _ in graph.nodes]
    moves = outputs(graph)
    for v, (readers, _) in enumerate(moves):
        for w in readers:
            reads[w].append(v)
    parts: dict[int, list[int]] = {}
    for v in nodes:
        if where[v]:
            parts.setdefault(where[v], []).append(v)
    start, end, given = ([0.0] * len(nodes) for _ in range(3))
    copies: list[tuple[int, int, bool, float, float]] = []
    for v, part in _steps(graph, nodes, where, reads):
        if not part:
            start[v] = max((given[u] for u in reads[v]), default=0.0)
            end[v] = given[v] = start[v] + graph.nodes[v].cpu_s
            continue
        members = parts[part]
        outside = dict.fromkeys(u for w in members for u in reads[w] if where[u] != part)
        at = max((given[u] for u in outside), default=0.0)
        for u in outside:
            copies.append((u, part, True, at, at + moves[u][1]))
            at += moves[u][1]
        for w in members:
            start[w] = at
            at += graph.nodes[w].accelerator_s or 0.0
            end[w] = at
        for w in members:
            if any(where[reader] != part for reader in moves[w][0]):
                copies.append((w, part, False, at, at + moves[w][1]))
                at += moves[w][1]
        for w in members:
            given[w] = at
    lane, width = _cores(graph, where, start, end)
    built = costed(dnn_partitioning({**graph.data, "maxCPUs": max(1, width)}), name)
    return _plan(graph, built, where, (start, end), lane, copies, stopped)


def _steps(
    graph: Partitioning, nodes: Sequence[int], where: Sequence[int], reads: Sequence[Sequence[int]]
) -> list[tuple[int, int]]:
    """Nodes of the host and parts, (node, 0) or (-1, part), each after all it reads from others."""
    parts = graph.accelerators + 1
    step = [part or parts + v for v, part in enumerate(where)]
    before: dict[int, set[int]] = {s: set() for s in step}
    for v in nodes:
        before[step[v]].update(step[u] for u in reads[v] if step[u] != step[v])
    return [(s - parts, 0) if s >= parts else (-1, s) for s in topological(before)]


def _cores(
    graph: Partitioning, where: Sequence[int], start: Sequence[float], end: Sequence[float]
) -> tuple[list[int], int]:
    """A core for each node of the host, and how many there must be."""
    lane = [0] * len(where)
    free: list[tuple[float, int]] = []
    width = 0
    for v in sorted((v for v, part in enumerate(where) if not part), key=lambda v: (start[v], end[v], v)):
        if free and free[0][0] <= start[v]:
            lane[v] = heapq.heappop(free)[1]
        else:
            lane[v] = width
            width += 1
        heapq.heappush(free, (end[v], lane[v]))
    return lane, width


def _plan(
    graph: Partitioning,
    built: CostedGraph,
    where: Sequence[int],
    times: tuple[list[float], list[float]],
    lane: Sequence[int],
    copies: Sequence[tuple[int, int, bool, float, float]],
    stopped: str,
) -> Plan:
    start, end = times
    machine, values = (
        built.machine,
        {built.producer[value]: value for cluster in built.clusters for value in cluster.makes},
    )
    nodes = order(graph)
    # Nodes that take no time share their moment with others, and are listed in the order in which they are computed.
    placed = [
        Placed(
            graph.nodes[v].name,
            machine.devices[where[v]].name,
            machine.devices[where[v]].compute_lanes[lane[v]],
            start[v],
            end[v],
        )
        for v in nodes
    ]
    transfers = []
    for v, part, fetched, begun, ended in copies:
        value, accelerator = values[graph.nodes[v].name], machine.devices[part].name
        ends = ("cpu", accelerator) if fetched else (accelerator, "cpu")
        nbytes = built.graph.value[value].bytes
        transfers.append(Transfer(value, *ends, machine.copy_lane(*ends), begun, ended, begun, nbytes))
    used = [0] * len(machine.devices)
    for v, part in enumerate(where):
        used[part] += graph.nodes[v].nbytes
    way = [0.0] * len(where)
    readers = [own for own, _ in outputs(graph)]
    for v in nodes:
        node = graph.nodes[v]
        way[v] += node.cpu_s if node.accelerator_s is None else min(node.cpu_s, node.accelerator_s)
        for reader in readers[v]:
            way[reader] = max(way[reader], way[v])
    makespan = max([*end, *(ended for *_, ended in copies)], default=0.0)
    return Plan(
        costed=built,
        policy=STRICT,
        placed=tuple(sorted(placed, key=lambda step: (step.start, step.end))),
        transfers=tuple(sorted(transfers, key=lambda step: (step.start, step.end))),
        resident=(),
        memory=tuple(
            Memory(device.name, ((0.0, nbytes),), device.memory_bytes)
            for device, nbytes in zip(machine.devices, used)
        ),
        makespan=makespan,
        lower_bound=max(way, default=0.0),
        stopped=stopped,
    )
