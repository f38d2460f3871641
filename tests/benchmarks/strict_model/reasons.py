"""Why nodes are where they are under the strict model, and what one change of its machine would bring."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autopar.ir.plan import Reason
from autopar.planner.reasons import LazyReasons
from autopar.planner.throughput.balance import balance
from autopar.planner.throughput.loads import Standing
from autopar.planner.throughput.objective import listed, reason_by_period
from autopar.system.text import seconds

from .bound import bound
from .calls import Calls
from .graph import classes
from .loads import strict_loads
from .partitioning import Partitioning
from .search import resplit
from .splits import splits

NEGLIGIBLE = 1e-9
"""Share of the latency that is no reason for anything."""
FINAL = 2
"""Changes whose loads are balanced anew: those of which most is to be hoped."""


class StrictReasons(LazyReasons):
    """A reason for each node (`runs` is the order of the plan's runs): the latency with its class on each other part,
    all else where it is. `at` is the part of each class."""

    def __init__(
        self, graph: Partitioning, clusters: Sequence[str], at: Sequence[int], called: Sequence[str]
    ) -> None:
        super().__init__(clusters, lambda: self.work_out)
        self.graph, self.at, self.called = graph, list(at), called
        self.calls = Calls.of(graph)
        self.node = {node.name: v for v, node in enumerate(graph.nodes)}

    def work_out(self, r: int) -> Reason:
        """The reason of run `r`."""
        calls, c = self.calls, self.calls.group[self.node[self.clusters[r]]]
        was = calls.latency(self.at)
        ends: dict[str, tuple[float, list[str]]] = {}
        for part in range(calls.parts + 1):
            if part == self.at[c] or (part and not calls.able[c]):
                continue
            moved = [part if other == c else own for other, own in enumerate(self.at)]
            latency = calls.latency(moved) if calls.fits(moved) else math.inf
            if not calls.fits(moved):
                what = "no room"
            elif latency == math.inf:
                what = "a call would be in two pieces"
            else:
                what = seconds(latency) if latency > was * (1 + NEGLIGIBLE) else "no longer"
            ends.setdefault(what, (latency, []))[1].append(self.called[part])
        if not ends:
            return Reason(self.clusters[r], f"It can only run on {self.called[self.at[c]]}.")
        return Reason(self.clusters[r], listed("latency", ends))

    def changes(self) -> Iterator[tuple[str, float]]:
        """What the latency would be, for each change of the machine."""
        was = self.calls.latency(self.at)
        for what, changed in _changed(self.graph):
            yield what, min(was, resplit(Calls.of(changed), self.at))


class StrictShares(LazyReasons):
    """A reason for each node of a plan for throughput. `at` is the core or accelerator of each class."""

    def __init__(
        self, graph: Partitioning, clusters: Sequence[str], at: Sequence[int], called: Sequence[str]
    ) -> None:
        _, group = classes(graph)
        of = {node.name: group[v] for v, node in enumerate(graph.nodes)}
        groups = [of[cluster] for cluster in clusters]
        loads = strict_loads(graph)
        super().__init__(clusters, lambda: reason_by_period(clusters, groups, loads, at, called))
        self.graph, self.at, self.period = graph, tuple(at), Standing(loads, at).period

    def changes(self) -> Iterator[tuple[str, float]]:
        """What the period would be, for each change of the machine."""
        hoped = []
        for position, (what, changed) in enumerate(_changed(self.graph, cores=True)):
            loads = strict_loads(changed)
            # A core more comes before the accelerators.
            at = [d + changed.cpus - self.graph.cpus if d >= self.graph.cpus else d for d in self.at]
            found = min(self.period, Standing(loads, at).period)
            hoped.append((bound(loads), position, what, loads, found))
        hoped.sort(key=lambda each: each[:2])
        for rank, (least, _, what, loads, found) in enumerate(hoped):
            better = balance(loads, starts=splits(loads))[0] if rank < FINAL and least < found else None
            yield what, found if better is None else min(found, Standing(loads, better).period)


def _changed(graph: Partitioning, cores: bool = False) -> Iterator[tuple[str, Partitioning]]:
    """The graph on a machine that is better in one thing."""
    if cores:
        yield "one more CPU core", replace(graph, cpus=graph.cpus + 1)
    if any(node.accelerator_s is not None for node in graph.nodes):
        yield "one more accelerator", replace(graph, accelerators=graph.accelerators + 1)
    if graph.accelerators:
        quick = [
            replace(node, accelerator_s=None if node.accelerator_s is None else node.accelerator_s / 2)
            for node in graph.nodes
        ]
        yield "all accelerators twice as fast", replace(graph, nodes=tuple(quick))
        edges = tuple(replace(edge, seconds=edge.seconds / 2) for edge in graph.edges)
        yield "transfers twice as fast", replace(graph, edges=edges)
        total = sum(node.nbytes for node in graph.nodes)
        if graph.cap < total:
            yield "no memory cap on accelerators", replace(graph, cap=total)
    halved = tuple(replace(node, cpu_s=node.cpu_s / 2) for node in graph.nodes)
    yield "the CPU twice as fast", replace(graph, nodes=halved)
