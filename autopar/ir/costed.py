"""Costed graph, the input of the planner: `TaskCost`, `Cluster` and `CostedGraph`.

Tasks too short to place one by one are fused into clusters (`fuse`); the planner places clusters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from .graph import Graph
from .machine import Machine

TAPED = "autopar.scaled_dot_product_attention.default"
"""Target of attention in training, whose last output is a tape (see `ops.composites`). If it draws random numbers, its
cluster and those that read the tape are one colocate group."""


@dataclass(frozen=True, slots=True)
class TaskCost:
    """Cost of one task on each device.

    seconds: by device, in the machine's order; None: cannot run there.
    workspace_bytes: scratch memory while it runs.
    how: `roofline` or `measured`.
    """

    task: str
    seconds: tuple[float | None, ...]
    workspace_bytes: int = 0
    how: str = "roofline"

    @property
    def least(self) -> float:
        """Seconds on the fastest device; 0 if it can run on none."""
        return min((seconds for seconds in self.seconds if seconds is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Tasks that are placed together and run one after the other on one lane.

    seconds: by device, dispatch included; None if it cannot run there.
    dispatch_s: the share of the host's Python in these seconds; it is serial over all lanes (the GIL).
    reads: values from outside the cluster.
    makes: values needed outside, by another cluster or the caller.
    colocate: group of clusters that must share a device.
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

    def on(self, device: int) -> Cluster:
        """Return the cluster bound to one device, by its number in the machine."""
        seconds = tuple(s if d == device else None for d, s in enumerate(self.seconds))
        return replace(self, seconds=seconds)


@dataclass(frozen=True)
class CostedGraph:
    """A graph, a machine, and the costs of each task and cluster on each device.

    homes: (value, device) of each input and state value before the call; "": state only where it is read.
    deliver: (value, device) of each output, then of each update: where it must be in the end.
    consumed: True if the memory of inputs is freed after their last use.
    call_s: seconds of a call on the caller's thread outside of tasks, such as the guards of `torch.compile`; in no
    makespan.

    Resident state (`Graph.resident`) is on each device that reads it before the call, and stays; it costs
    memory but no time. Everything else is transferred in every call.
    """

    graph: Graph
    machine: Machine
    costs: tuple[TaskCost, ...]
    clusters: tuple[Cluster, ...]
    homes: tuple[tuple[str, str], ...]
    deliver: tuple[tuple[str, str], ...]
    consumed: bool = False
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
        """Name of each task's cluster."""
        return {task: cluster.name for cluster in self.clusters for task in cluster.tasks}

    @cached_property
    def producer(self) -> dict[str, str]:
        """Name of the cluster that makes each value used outside its cluster."""
        return {value: cluster.name for cluster in self.clusters for value in cluster.makes}

    @cached_property
    def home(self) -> dict[str, str]:
        """Device of each input and state value before the call."""
        return dict(self.homes)

    def seconds(self, cluster: str, device: str) -> float | None:
        """Return the seconds of a cluster on a device; None if it cannot run there."""
        return self.cluster[cluster].seconds[self.index[device]]

    @cached_property
    def index(self) -> dict[str, int]:
        """Number of each device in the machine."""
        return {device.name: position for position, device in enumerate(self.machine.devices)}
