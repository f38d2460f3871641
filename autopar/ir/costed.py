"""Costed graph, the planner's input: `TaskCost`, `Cluster` and `CostedGraph`.

Tasks too short to be worth placing one by one are fused into clusters (`fuse`); a cluster is what the planner places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from .graph import Graph
from .machine import Machine


@dataclass(frozen=True, slots=True)
class TaskCost:
    """Seconds of one task on each device of the machine, in its order; None where it cannot run.

    `workspace_bytes` is scratch memory while it runs. `how` is `roofline` or `measured`.
    """

    task: str
    seconds: tuple[float | None, ...]
    workspace_bytes: int = 0
    how: str = "roofline"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Tasks that are placed together and executed one after the other on one lane.

    `seconds` is one entry for each device (None: cannot run there), dispatch included. `dispatch_s` of it is the
    host's Python, of which there is one (the GIL), whichever lane it is for. `reads` are values from outside,
    `makes` the values that somebody outside (another cluster, the caller) needs. Clusters of one `colocate` group
    share a device. `modes` are the ways in which it can take several lanes of a device: (position of the device, lanes,
    seconds), each device's one-lane way among them; `seconds` is then the quickest of each device.
    """

    name: str
    tasks: tuple[str, ...]
    seconds: tuple[float | None, ...]
    dispatch_s: float
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    after: tuple[str, ...] = ()
    colocate: str | None = None
    workspace_bytes: int = 0
    modes: tuple[tuple[int, int, float], ...] = ()

    def on(self, device: int) -> Cluster:
        """The cluster bound to a device, by its position in the machine."""
        seconds = tuple(s if d == device else None for d, s in enumerate(self.seconds))
        return replace(self, seconds=seconds, modes=tuple(mode for mode in self.modes if mode[0] == device))


@dataclass(frozen=True)
class CostedGraph:
    """A graph, a machine, and what each task and cluster of one costs on the other.

    `homes` says on which device each input and state value is before the call; `deliver` to which device each
    output (and each update) must come, in the order of `graph.outputs` then `graph.updates`; a pair is
    (value, device). State that no task changes is resident: copied to each device that reads it before the first
    call and kept, so it costs memory there and no time. Everything else is copied in every call. State whose home
    is "" is nowhere but where it is read. `consumed`: the memory of inputs is given up after their last use.
    `again` names the clusters, tasks and values that are others computed once more, on a second device, and those
    others: (copy, original). `call_s` are seconds of a call that are no task's, on the caller's thread: the guards and
    arguments of `torch.compile`. They are in no makespan.
    """

    graph: Graph
    machine: Machine
    costs: tuple[TaskCost, ...]
    clusters: tuple[Cluster, ...]
    homes: tuple[tuple[str, str], ...]
    deliver: tuple[tuple[str, str], ...]
    consumed: bool = False
    again: tuple[tuple[str, str], ...] = ()
    call_s: float = 0.0

    @cached_property
    def cluster(self) -> dict[str, Cluster]:
        """Clusters by name."""
        return {cluster.name: cluster for cluster in self.clusters}

    @cached_property
    def cost(self) -> dict[str, TaskCost]:
        """Task costs by task name."""
        return {cost.task: cost for cost in self.costs}

    @cached_property
    def cluster_of(self) -> dict[str, str]:
        """Name of the cluster each task is in."""
        return {task: cluster.name for cluster in self.clusters for task in cluster.tasks}

    @cached_property
    def producer(self) -> dict[str, str]:
        """Name of the cluster that makes each value that leaves its cluster."""
        return {value: cluster.name for cluster in self.clusters for value in cluster.makes}

    @cached_property
    def home(self) -> dict[str, str]:
        """Device of each input and state value before the call."""
        return dict(self.homes)

    @cached_property
    def resident(self) -> frozenset[str]:
        """State that stays on each device that reads it from call to call."""
        return self.graph.resident

    @cached_property
    def before(self) -> dict[str, tuple[str, ...]]:
        """Names of the clusters each cluster waits for, through values or order, each once."""
        found = {}
        for cluster in self.clusters:
            names = dict.fromkeys(self.producer[value] for value in cluster.reads if value in self.producer)
            names.update(dict.fromkeys(cluster.after))
            names.pop(cluster.name, None)
            found[cluster.name] = tuple(names)
        return found

    def seconds(self, cluster: str, device: str) -> float | None:
        """Seconds of a cluster on a device, None where it cannot run."""
        return self.cluster[cluster].seconds[self.index[device]]

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each device in the machine."""
        return {device.name: position for position, device in enumerate(self.machine.devices)}


def repeatable(costed: CostedGraph, cluster: Cluster) -> bool:
    """True if a cluster may be computed twice: it draws nothing, waits for values alone, is bound to no other cluster
    and is no copy itself."""
    tasks = [costed.graph.task[name] for name in cluster.tasks]
    free = not cluster.after and cluster.colocate is None and cluster.name not in dict(costed.again)
    return free and not any(task.random or task.after or task.home for task in tasks)
