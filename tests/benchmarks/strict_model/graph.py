"""Orders, classes and outputs of a graph of the set."""

from __future__ import annotations

from autopar.errors import PlanError

from .partitioning import Partitioning


def outputs(graph: Partitioning) -> list[tuple[list[int], float]]:
    """For each node those that read its output, each once, and the seconds between an accelerator and the host: where
    its edges differ, the most."""
    readers: list[dict[int, None]] = [{} for _ in graph.nodes]
    cost = [0.0] * len(graph.nodes)
    for edge in graph.edges:
        readers[edge.src][edge.dst] = None
        cost[edge.src] = max(cost[edge.src], edge.seconds)
    return [(list(own), seconds) for own, seconds in zip(readers, cost)]


def order(graph: Partitioning, broad: bool = False) -> list[int]:
    """A topological order that stays on a branch until it ends, or (`broad`) goes on with all in turn. Raises
    PlanError for a cycle."""
    readers = [own for own, _ in outputs(graph)]
    missing = [0] * len(readers)
    for own in readers:
        for w in own:
            missing[w] += 1
    ready = [v for v, count in enumerate(missing) if not count]
    ready.reverse()
    found: list[int] = []
    head = 0
    while len(ready) > head if broad else ready:
        if broad:
            v = ready[head]
            head += 1
        else:
            v = ready.pop()
        found.append(v)
        for w in readers[v]:
            missing[w] -= 1
            if not missing[w]:
                ready.append(w)
    if len(found) < len(readers):
        stuck = next(v for v, count in enumerate(missing) if count)
        raise PlanError(f"node {graph.nodes[stuck].name} waits for itself; take an edge of the cycle away")
    return found


def classes(graph: Partitioning) -> tuple[list[list[int]], list[int]]:
    """The nodes, by position, of each class that shares a device, in the order of their first, and the class of each
    node."""
    number: dict[tuple[str, object], int] = {}
    found: list[list[int]] = []
    of = []
    for v, node in enumerate(graph.nodes):
        key = ("own", v) if node.color is None else ("color", node.color)
        if key not in number:
            number[key] = len(found)
            found.append([])
        found[number[key]].append(v)
        of.append(number[key])
    return found, of
