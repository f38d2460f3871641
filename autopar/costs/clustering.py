"""Task clustering: tasks too short to place alone are fused into clusters.

Contracting an edge u → v of a DAG keeps it acyclic if v is u's only successor or u is v's only predecessor.
One pass over the tasks in order therefore decides these fusions, in time linear in tasks and edges. A second
pass fuses tasks with the same neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from networkx.utils import UnionFind

from ..errors import PlanError
from ..ir.costed import TAPED, Cluster, CostedGraph, TaskCost
from ..ir.graph import JOIN, PART, SUM, Graph, Task
from ..ir.machine import Machine
from ..planner.model.toposort import topological

SHORTEST_S = 50e-6
"""Target seconds of a cluster on its fastest device: several times a hand-off between lanes and the dispatch of a
task."""


def fuse(
    graph: Graph, machine: Machine, costs: Sequence[TaskCost], *, shortest_s: float = SHORTEST_S
) -> tuple[Cluster, ...]:
    """Partition the tasks into clusters of about `shortest_s` seconds on the fastest device, in topological order.

    A cluster never joins tasks that may run on different devices, tasks of different parts of the batch, or a
    JOIN, PART or SUM with anything. The lighter end of an edge joins the heavier one only if its own inputs
    or outputs, to be transferred instead, have hardly more bytes, and if the delay by fusion is below
    `shortest_s`. `shortest_s` 0: each task is a cluster. Raises PlanError for a task without cost or device.
    """
    by_task = {cost.task: cost for cost in costs}
    for task in graph.tasks:
        if task.name not in by_task:
            raise PlanError(f"{task.where} has no cost")
        if all(seconds is None for seconds in by_task[task.name].seconds):
            raise PlanError(f"{task.where} can run on no device of {', '.join(machine.device)}; remove a pin")
    pieces = _Pieces(graph, machine, by_task, shortest_s)
    if shortest_s > 0:
        for number in range(len(graph.tasks)):
            pieces.place(number)
        pieces.join_siblings()
    return _clusters(graph, machine, by_task, pieces.root)


def as_clustered(costed: CostedGraph, clusters: Sequence[Cluster]) -> CostedGraph:
    """Return the graph with its tasks in these clusters, under these clusters' names, whatever the tasks cost
    now. Raises PlanError if clusters would then wait for each other."""
    number = {task: position for position, cluster in enumerate(clusters) for task in cluster.tasks}
    tasks, costs = costed.graph.tasks, costed.cost
    fused = _clusters(costed.graph, costed.machine, costs, lambda position: number[tasks[position].name])
    if len(fused) < len(clusters):
        left = next(one for one in clusters if not any({*one.tasks} & {*other.tasks} for other in fused))
        raise PlanError(f"cluster {left.name!r} waits for itself in {costed.graph.name!r}: plan again")
    name = {cluster.name: clusters[number[cluster.tasks[0]]].name for cluster in fused}
    named = (
        replace(cluster, name=name[cluster.name], after=tuple(name[other] for other in cluster.after))
        for cluster in fused
    )
    return replace(costed, clusters=tuple(named))


def unfused(costed: CostedGraph) -> CostedGraph:
    """Return the graph with each task as a cluster. Single tasks may fit where clusters do not, because a
    cluster holds its inputs and outputs while any of its tasks runs."""
    return replace(costed, clusters=fuse(costed.graph, costed.machine, costed.costs, shortest_s=0))


def repriced(costed: CostedGraph, costs: Sequence[TaskCost]) -> CostedGraph:
    """Return the same clusters with other costs of their tasks."""
    by_task = {cost.task: cost for cost in costs}

    def priced(cluster: Cluster) -> Cluster:
        seconds, dispatch = _seconds(
            [costed.graph.task[name] for name in cluster.tasks], costed.machine, by_task
        )
        return replace(cluster, seconds=seconds, dispatch_s=dispatch)

    return replace(costed, costs=tuple(costs), clusters=tuple(map(priced, costed.clusters)))


class _Pieces:
    """Clusters under construction: a union-find over task numbers with the figures of each root."""

    def __init__(
        self, graph: Graph, machine: Machine, costs: Mapping[str, TaskCost], shortest_s: float
    ) -> None:
        self.graph = graph
        self.shortest_s = shortest_s
        self.parent = list(range(len(graph.tasks)))
        rate = max((link.bytes_per_s for link in machine.links), default=0.0)
        # Bytes that the fastest link moves in a tenth of the shortest cluster are not worth a cluster of their own.
        self.slack = rate * shortest_s / 10
        number = {task.name: position for position, task in enumerate(graph.tasks)}
        resident = graph.resident
        wanted = {*graph.results}
        self.heaviest = [costs[task.name].least for task in graph.tasks]
        self.total = list(self.heaviest)
        self.kind = [_kind(task, costs[task.name]) for task in graph.tasks]
        self.maker = {name: number[task] for name, task in graph.producer.items()}
        # For each value, how many readers are outside the cluster that makes it; the caller counts as one.
        self.left = {name: len(readers) + (name in wanted) for name, readers in graph.readers.items()}
        self.inputs = [tuple(name for name in task.inputs if name not in resident) for task in graph.tasks]
        self.reads = [dict.fromkeys(names) for names in self.inputs]
        self.read_bytes = [sum(graph.value[name].bytes for name in names) for names in self.inputs]
        self.made_bytes = [
            sum(graph.value[n].bytes for n in task.outputs if self.left[n]) for task in graph.tasks
        ]
        self.before: list[dict[int, None]] = []
        self.after: list[dict[int, None]] = [{} for _ in graph.tasks]
        for position, task in enumerate(graph.tasks):
            makers = (self.maker[name] for name in task.inputs if name in self.maker)
            self.before.append(dict.fromkeys((*makers, *(number[name] for name in task.after))))
            for p in self.before[position]:
                self.after[p][position] = None

    def root(self, number: int) -> int:
        """Return the representative of a task's cluster."""
        while self.parent[number] != number:
            self.parent[number] = self.parent[self.parent[number]]
            number = self.parent[number]
        return number

    def place(self, task: int) -> None:
        """Fuse the task with earlier clusters if that is safe and worth it. All earlier tasks have been placed."""
        earlier = dict.fromkeys(self.root(p) for p in self.before[task])
        current = task
        for cluster in earlier:
            # If fused, `cluster` waits for all that `current` reads, and other readers of it for `current`.
            waits, delays = len(earlier) > 1, len(self.after[cluster]) > 1
            if waits and delays:
                continue
            if (waits and self.total[cluster] >= self.shortest_s) or (
                delays and self.total[current] >= self.shortest_s
            ):
                continue
            if self._worth(cluster, current, task):
                self._merge(cluster, current, task)
                current = cluster

    def join_siblings(self) -> None:
        """Fuse short clusters with the same predecessors and successors: nothing can come between them."""
        before: dict[int, set[int]] = {self.root(task): set() for task in range(len(self.parent))}
        after: dict[int, set[int]] = {cluster: set() for cluster in before}
        for task, earlier in enumerate(self.before):
            cluster = self.root(task)
            for p in earlier:
                if self.root(p) != cluster:
                    before[cluster].add(self.root(p))
                    after[self.root(p)].add(cluster)
        growing: dict[tuple[object, ...], int] = {}
        for cluster, earlier_clusters in before.items():
            if self.kind[cluster] is None or self.total[cluster] >= self.shortest_s:
                continue
            key = (self.kind[cluster], frozenset(earlier_clusters), frozenset(after[cluster]))
            first = growing.setdefault(key, cluster)
            if first == cluster:
                continue
            heaviest = max(self.heaviest[first], self.heaviest[cluster])
            if self.total[first] + self.total[cluster] - heaviest > self.shortest_s:
                growing[key] = cluster
                continue
            self.parent[cluster] = first
            self.total[first] += self.total[cluster]
            self.heaviest[first] = heaviest
            if self.total[first] >= self.shortest_s:
                del growing[key]

    def _between(self, cluster: int, task: int) -> list[str]:
        return [
            name
            for name in self.inputs[task]
            if name in self.maker and self.root(self.maker[name]) == cluster
        ]

    def _worth(self, cluster: int, current: int, task: int) -> bool:
        if self.kind[cluster] is None or self.kind[cluster] != self.kind[current]:
            return False
        beside = (
            self.total[cluster] + self.total[current] - max(self.heaviest[cluster], self.heaviest[current])
        )
        if min(self.total[cluster], self.total[current]) >= self.shortest_s or beside > self.shortest_s:
            return False
        between = sum(self.graph.value[name].bytes for name in self._between(cluster, task))
        limit = 1.25 * between + self.slack
        tail = self.heaviest[cluster] >= self.heaviest[current] and self.made_bytes[current] <= limit
        head = self.heaviest[cluster] <= self.heaviest[current] and self.read_bytes[cluster] <= limit
        return tail or head

    def _merge(self, cluster: int, current: int, task: int) -> None:
        for name in self._between(cluster, task):
            nbytes = self.graph.value[name].bytes
            self.left[name] -= 1
            if not self.left[name]:
                self.made_bytes[cluster] -= nbytes
            if name in self.reads[current]:
                del self.reads[current][name]
                self.read_bytes[current] -= nbytes
        self.parent[current] = cluster
        self.total[cluster] += self.total[current]
        self.heaviest[cluster] = max(self.heaviest[cluster], self.heaviest[current])
        self.made_bytes[cluster] += self.made_bytes[current]
        del self.after[cluster][task]
        # The smaller dictionary is poured into the larger one, so that all merges together stay near-linear.
        small, large = sorted((self.reads[cluster], self.reads[current]), key=len)
        self.read_bytes[cluster] += self.read_bytes[current]
        self.read_bytes[cluster] -= sum(self.graph.value[name].bytes for name in small if name in large)
        large.update(small)
        self.reads[cluster] = large
        fewer, more = sorted((self.after[cluster], self.after[current]), key=len)
        more.update(fewer)
        self.after[cluster] = more


def _kind(task: Task, cost: TaskCost) -> tuple[object, ...] | None:
    if task.target in (JOIN, PART, SUM):
        return None
    return (tuple(seconds is None for seconds in cost.seconds), task.part)


def _clusters(
    graph: Graph, machine: Machine, costs: Mapping[str, TaskCost], root: Callable[[int], int]
) -> tuple[Cluster, ...]:
    tasks = graph.tasks
    cluster_of = {task.name: root(number) for number, task in enumerate(tasks)}
    members: dict[int, list[Task]] = {}
    for task in tasks:
        members.setdefault(cluster_of[task.name], []).append(task)
    name_of = {
        cluster: max(held, key=lambda task: costs[task.name].least).name for cluster, held in members.items()
    }
    wanted = {*graph.results}
    groups = _groups(graph, cluster_of)
    before: dict[int, dict[int, None]] = {}
    fused: dict[int, Cluster] = {}
    for cluster, held in members.items():
        inputs = dict.fromkeys(name for task in held for name in task.inputs)
        reads = tuple(name for name in inputs if cluster_of.get(graph.producer.get(name, "")) != cluster)
        outside = dict.fromkeys(cluster_of[name] for task in held for name in task.after)
        outside.pop(cluster, None)
        makes = tuple(
            name
            for task in held
            for name in task.outputs
            if name in wanted or any(cluster_of[reader] != cluster for reader in graph.readers[name])
        )
        before[cluster] = dict.fromkeys(
            (*(cluster_of[graph.producer[n]] for n in reads if n in graph.producer), *outside)
        )
        times, dispatch = _seconds(held, machine, costs)
        fused[cluster] = Cluster(
            name=name_of[cluster],
            tasks=tuple(task.name for task in held),
            seconds=times,
            dispatch_s=dispatch,
            reads=reads,
            makes=makes,
            after=tuple(name_of[other] for other in outside),
            colocate=groups.get(cluster),
            workspace_bytes=_scratch(graph, held, makes, costs),
        )
    return tuple(fused[cluster] for cluster in topological(before))


def _groups(graph: Graph, cluster_of: Mapping[str, int]) -> dict[int, str]:
    """Return the colocate group of each cluster that the tape of a random task binds to others."""
    bound: UnionFind[int] = UnionFind()
    for task in graph.tasks:
        if task.target == TAPED and task.random:
            bound.union(*(cluster_of[name] for name in (task.name, *graph.readers[task.outputs[-1]])))
    sets = [sorted(members) for members in bound.to_sets()]
    return {cluster: f"tape {members[0]}" for members in sets if len(members) > 1 for cluster in members}


def _seconds(
    held: Sequence[Task], machine: Machine, costs: Mapping[str, TaskCost]
) -> tuple[tuple[float | None, ...], float]:
    """Return the sequential seconds of tasks on each device, and their dispatch by the host's Python, which
    is at most their seconds on the host."""
    columns = list(zip(*(costs[task.name].seconds for task in held)))
    host = machine.device[machine.host]
    dispatch = host.dispatch_s * sum(not task.free for task in held)
    there = _total(columns[machine.devices.index(host)], 0.0)
    dispatch = dispatch if there is None else min(dispatch, there)
    return tuple(_total(column, dispatch) for column in columns), dispatch


def _total(column: tuple[float | None, ...], dispatch: float) -> float | None:
    known = [seconds for seconds in column if seconds is not None]
    # A queue cannot be quicker than the Python that feeds it.
    return max(sum(known), dispatch) if len(known) == len(column) else None


def _scratch(graph: Graph, held: list[Task], makes: tuple[str, ...], costs: Mapping[str, TaskCost]) -> int:
    """Return the peak bytes internal to a cluster: workspace and values that nothing outside reads."""
    leaving = {graph.value[name].storage for name in makes}
    inside = {name for task in held for name in task.outputs if graph.value[name].storage == name} - leaving
    last: dict[str, int] = {}
    for position, task in enumerate(held):
        for name in (*task.inputs, *task.outputs):
            if graph.value[name].storage in inside:
                last[graph.value[name].storage] = position
    ends: dict[int, int] = {}
    for storage, position in last.items():
        ends[position] = ends.get(position, 0) + graph.value[storage].bytes
    live = peak = 0
    for position, task in enumerate(held):
        live += sum(graph.value[name].bytes for name in task.outputs if name in inside)
        peak = max(peak, live + costs[task.name].workspace_bytes)
        live -= ends.get(position, 0)
    return peak
