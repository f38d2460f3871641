"""The paper's latency and load of a placement, written from its integer programs and from nothing else here.

Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient algorithms for device placement of DNN graph
operators", NeurIPS 2020, appendix A (latency, one call for each accelerator) and section 5 (largest load).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar.errors import PlanError

from .partitioning import Partitioning


def strict_latency(graph: Partitioning, at: Sequence[int]) -> float:
    """Seconds of one sample with node v on the host (`at[v]` is 0) or on accelerator `at[v]`.

    A node on the host ends its own seconds after the last it reads (there are cores enough). An accelerator starts
    once all that its part reads from outside has ended and is busy for the sum of what it fetches, computes and
    sends; all of its part has then ended. Raises PlanError for a part that cannot be one call, that does not fit, for
    a node that cannot be there and for a class on two devices.
    """
    _sound(graph, at, graph.accelerators)
    busy = {part: _load(graph, at, part) for part in set(at) - {0}}
    ended = [0.0] * len(graph.nodes)
    # Ends only grow from nothing to the least that satisfies all constraints, in as many rounds as a way has steps.
    for _ in range(len(graph.nodes) + 1):
        starts: dict[int, float] = dict.fromkeys(busy, 0.0)
        own = [0.0] * len(graph.nodes)
        for edge in graph.edges:
            if at[edge.dst] == 0:
                own[edge.dst] = max(own[edge.dst], ended[edge.src])
            elif at[edge.src] != at[edge.dst]:
                starts[at[edge.dst]] = max(starts[at[edge.dst]], ended[edge.src])
        following = [
            own[v] + graph.nodes[v].cpu_s if part == 0 else starts[part] + busy[part]
            for v, part in enumerate(at)
        ]
        if following == ended:
            return max(ended, default=0.0)
        ended = following
    raise PlanError(
        "accelerators wait for each other: a part is left and entered again, so it is no single call"
    )


def strict_load(graph: Partitioning, at: Sequence[int]) -> float:
    """The largest load in seconds with node v on core `at[v]`, or on accelerator `at[v]` - `cpus`, both from 0.

    Cores pay for computing, accelerators for what they fetch and send as well. Raises PlanError as `strict_latency`.
    """
    cores = graph.cpus
    _sound(graph, [max(0, d - cores + 1) for d in at], graph.accelerators)
    for edge in _together(graph):
        if at[edge[0]] != at[edge[1]]:
            raise PlanError(f"nodes {edge[0]} and {edge[1]} share a class but not a core")
    loads = [0.0]
    for d in set(at):
        if d < cores:
            loads.append(sum(node.cpu_s for node, own in zip(graph.nodes, at) if own == d))
        else:
            loads.append(_load(graph, at, d))
    return max(loads)


def _load(graph: Partitioning, at: Sequence[int], part: int) -> float:
    fetched: dict[int, float] = {}
    sent: dict[int, float] = {}
    for edge in graph.edges:
        if at[edge.dst] == part and at[edge.src] != part:
            fetched[edge.src] = max(fetched.get(edge.src, 0.0), edge.seconds)
        if at[edge.src] == part and at[edge.dst] != part:
            sent[edge.src] = max(sent.get(edge.src, 0.0), edge.seconds)
    computed = sum(node.accelerator_s or 0.0 for node, own in zip(graph.nodes, at) if own == part)
    return computed + sum(fetched.values()) + sum(sent.values())


def _together(graph: Partitioning) -> list[tuple[int, int]]:
    first: dict[str, int] = {}
    return [
        (first.setdefault(node.color, v), v) for v, node in enumerate(graph.nodes) if node.color is not None
    ]


def _sound(graph: Partitioning, at: Sequence[int], accelerators: int) -> None:
    held: dict[int, int] = {}
    for node, part in zip(graph.nodes, at):
        if not 0 <= part <= accelerators:
            raise PlanError(f"node {node.name} is on accelerator {part} of {accelerators}")
        if part and node.accelerator_s is None:
            raise PlanError(f"node {node.name} cannot run on an accelerator")
        held[part] = held.get(part, 0) + (node.nbytes if part else 0)
    for part, nbytes in held.items():
        if nbytes > graph.cap:
            raise PlanError(f"accelerator {part} would hold {nbytes} of {graph.cap} bytes")
    for a, b in _together(graph):
        if at[a] != at[b]:
            raise PlanError(
                f"nodes {graph.nodes[a].name} and {graph.nodes[b].name} share a class but no device"
            )


def named(graph: Partitioning, placed: Mapping[str, str], devices: Sequence[str]) -> list[int]:
    """The position in `devices` of each node, from the device that a plan puts its name on."""
    number = {name: d for d, name in enumerate(devices)}
    return [number[placed[node.name]] for node in graph.nodes]
