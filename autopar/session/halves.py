"""A joint plan divided into a forward and a backward program, and the memory that they really need.

Autograd keeps all saved values from their creation to the end of the backward, and the caller keeps inputs and
outputs. The halves may therefore need more than the joint plan, which frees each value after its last reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from ..costs.clustering import unfused
from ..costs.roofline import cost
from ..errors import MemoryCapError, RunError
from ..ir.costed import CostedGraph
from ..ir.display_names import LOSS
from ..ir.graph import Graph, Value
from ..ir.open_size import resized
from ..ir.plan import Plan
from ..ir.program import Program
from ..ir.timeline import Memory
from ..lowering.memory_bound import Peak
from ..planner import place
from ..runtime.bind_program import keeps_caps
from ..transform.divide import alive, constants, divide, reached
from .stages import deliveries, homes_with_slices, proved

STANDING = "standing on "
"""Prefix of the names of stand-in states, each for all that a device holds and a half does not read."""
HELD = "what else is held there"
"""Display name of a stand-in state."""


_Stands: TypeAlias = dict[tuple[str, str], int]
"""Bytes of storages by (device, name)."""


@dataclass(frozen=True)
class Half:
    """The plan of one half, its program, and its peak bytes on each device over all orders of the lanes."""

    plan: Plan
    program: Program
    peaks: tuple[Peak, ...]


class Halves:
    """The forward and backward halves of a `joint` plan for a graph closed by a loss: plans and programs.

    gradients: (leaf, gradient) of the original graph.
    homes: devices of inputs and state before the call.
    outputs: as in `Options`.
    names: outputs of the call without repetitions.
    saved, tangents: inputs of the backward.
    """

    def __init__(
        self, joint: Plan, gradients: Sequence[tuple[str, str]], homes: Mapping[str, str], outputs: str
    ) -> None:
        self.joint, self.gradients = joint, tuple(gradients)
        self.machine, self._delivery = joint.costed.machine, outputs
        # Joint plans count the transfers of changed weights, which each call makes before its program runs.
        graph = replace(joint.costed.graph, changing=())
        self.homes = homes_with_slices(graph, homes)
        self.forward_graph, self.backward_graph = divide(graph, len(self.gradients))
        self.outputs = graph.outputs[: len(graph.outputs) - len(self.gradients)]
        self.names = list(dict.fromkeys(self.outputs))
        self.saved = self.forward_graph.outputs[len(self.outputs) :]
        self.tangents = self.backward_graph.inputs[len(self.saved) :]
        self._sizes: Sequence[float] = ()
        self.where = {task: joint.place[run].device for task, run in joint.costed.cluster_of.items()}
        self.single = all(len(run.tasks) == 1 for run in joint.costed.clusters)

    def at(self, sizes: Sequence[float]) -> Halves | None:
        """Return the halves of the same plan in a call with other sizes; None if the bytes of a value are not known."""
        costed = self.joint.costed
        graph = resized(costed.graph, sizes)
        if graph is None:
            return None
        joint = replace(self.joint, costed=replace(costed, graph=graph))
        halves = Halves(joint, self.gradients, self.homes, self._delivery)
        halves._sizes = sizes
        return halves

    def fits(self, plan: Plan, program: Program) -> bool:
        """Return True if the program of a half, made for other sizes, keeps every memory cap `at` these."""
        graph = resized(plan.costed.graph, self._sizes)
        if graph is None:
            return False
        standing = {f"{STANDING}{device}": count for device, count in self._standing(graph).items()}
        values = (
            replace(value, bytes=standing.get(value.name, 0)) if value.name.startswith(STANDING) else value
            for value in graph.values
        )
        return standing.keys() <= graph.value.keys() and keeps_caps(
            program, replace(graph, values=tuple(values))
        )

    @cached_property
    def saved_at(self) -> dict[str, str]:
        """Device where each saved value waits for the backward: a reader's, if possible where it was made."""
        producer, readers = self.forward_graph.producer, self.backward_graph.readers
        places = {}
        for name in self.saved:
            wanted = [self.where[task] for task in readers[name] if task in self.where]
            maker = self.where.get(producer.get(name, ""), self.homes.get(name, ""))
            places[name] = maker if maker in wanted or not wanted else wanted[0]
        return places

    @cached_property
    def forward(self) -> Half:
        """The forward."""
        return _half(self._forward_costs())

    @cached_property
    def full_backward(self) -> Half:
        """The backward if every output has a gradient."""
        return _half(self._backward_costs(self.tangents))

    @property
    def both(self) -> tuple[Half, Half]:
        """The forward and the full backward. Raises MemoryCapError if one exceeds a cap."""
        return self.forward, self.full_backward

    def backward(self, live: tuple[str, ...]) -> tuple[Half, tuple[bool, ...]]:
        """Return the backward for these tangents, and for each leaf whether it has a gradient.

        Raises RunError if an output without a gradient leaves a leaf without one: the graph does not tell whether
        eager would run the backward that makes it.
        """
        whole = live == self.tangents
        if not whole and (invented := constants(self.backward_graph, self.tangents)):
            value = self.joint.costed.graph.value
            pairs = zip(self.gradients, self.backward_graph.outputs)
            paths = ", ".join(value[target].path for (target, _), name in pairs if name in invented)
            raise RunError(
                f"{self.joint.costed.graph.name}: the gradient of {paths} depends on no output's (a custom backward "
                "makes it up), and some outputs have none, so it is unknown whether it is due; let the loss "
                "depend on every output"
            )
        half = self.full_backward if whole else _half(self._backward_costs(live))
        return half, reached(self.backward_graph, self.tangents, live)

    @cached_property
    def memory(self) -> tuple[Memory, ...]:
        """Memory of forward and backward on each device, on the clock of the joint plan.

        Each peak is proven: no order of the lanes uses more.
        """
        joint = self.joint
        costed = joint.costed
        loss_at = next(
            joint.place[costed.cluster_of[task.name]].start
            for task in costed.graph.tasks
            if task.target == LOSS
        )
        halves = ((self.forward, 0.0, loss_at), (self.full_backward, loss_at, joint.makespan))
        steps: dict[str, list[tuple[float, int]]] = {name: [] for name in self.machine.device}
        for half, begin, end in halves:
            scale = (end - begin) / half.plan.makespan if half.plan.makespan else 0.0
            for memory in _proven(half):
                steps[memory.device] += ((begin + at * scale, count) for at, count in memory.steps)
        return tuple(replace(known, steps=tuple(steps[known.device])) for known in joint.memory)

    @property
    def plan(self) -> Plan:
        """The joint plan with the memory of its halves."""
        return replace(self.joint, memory=self.memory)

    @property
    def tight(self) -> bool:
        """True if a half may exceed a cap: the joint plan plus everything kept during the backward does."""
        held = _excess(self._during, {})
        return any(m.cap is not None and m.peak + held.get(m.device, 0) > m.cap for m in self.joint.memory)

    def room(self) -> dict[str, int]:
        """Return each device's cap in bytes, minus the excess of a half over the joint plan."""
        whole = {memory.device: memory.peak for memory in self.joint.memory}
        left = {memory.device: memory.cap for memory in self.joint.memory if memory.cap is not None}
        for costed in (self._forward_costs(), self._backward_costs(self.tangents)):
            lifted = replace(costed, machine=costed.machine.uncapped)
            for memory in place(lifted, "follow").memory:
                cap = costed.machine.device[memory.device].memory_bytes
                if cap is not None:
                    more = max(0, memory.peak - whole.get(memory.device, 0))
                    left[memory.device] = min(left.get(memory.device, cap), cap - more)
        return left

    def _forward_costs(self) -> CostedGraph:
        graph, count = self.forward_graph, len(self.outputs)
        known = deliveries(graph, self.machine, self.homes, self._delivery)
        saved = tuple(self.saved_at.items())
        return self._costed(graph, self.homes, (*known[:count], *saved, *known[count + len(saved) :]))

    def _backward_costs(self, live: tuple[str, ...]) -> CostedGraph:
        graph = alive(self.backward_graph, self.tangents, live)
        wanted = reached(self.backward_graph, self.tangents, live)
        targets = [target for (target, _), has in zip(self.gradients, wanted) if has]
        deliver = tuple(
            (name, self.homes.get(target, self.machine.host)) for name, target in zip(graph.outputs, targets)
        )
        return self._costed(graph, self._backward_homes, deliver)

    def _standing(self, graph: Graph) -> dict[str, int]:
        """Return the bytes on each device that stay while a half runs and that it does not read."""
        if graph.name == self.forward_graph.name:
            here = {**self._call_tensors(graph), **self._copies(graph)}
            # From the second call on, the replicas that the backward reads are there as well.
            return _excess({**self._copies(self.backward_graph), **here}, here)
        here = {}
        for name in (*graph.inputs, *graph.state):
            if not name.startswith(STANDING):
                key = self._backward_homes[name], graph.value[name].storage
                here.setdefault(key, graph.value[name].bytes)
        here.update(self._copies(graph))
        return _excess(self._during, here)

    @cached_property
    def _backward_homes(self) -> dict[str, str]:
        """Device of each input and state of the backward."""
        return {**self.homes, **self.saved_at, **dict.fromkeys(self.tangents, self._arrives)}

    @cached_property
    def _arrives(self) -> str:
        """Device on which tangents arrive: the device of the outputs."""
        delivered = dict(self.joint.costed.deliver)
        return next((delivered[name] for name in self.names if delivered.get(name)), self.machine.host)

    def _costed(
        self, graph: Graph, homes: Mapping[str, str], deliver: tuple[tuple[str, str], ...]
    ) -> CostedGraph:
        """Return a half with tasks placed as in the joint plan, and what stands beside it as stand-in states."""
        standing = self._standing(graph)
        stands = {f"{STANDING}{device}": (device, nbytes) for device, nbytes in standing.items()}
        values = (Value(name, (n,), "uint8", n, name, "state", HELD) for name, (_, n) in stands.items())
        graph = replace(graph, values=(*graph.values, *values), state=(*graph.state, *stands))
        homes = {**homes, **{name: device for name, (device, _) in stands.items()}}
        pins = {task.name: self.where[task.name] for task in graph.tasks if task.name in self.where}
        costed = cost(graph, self.machine, homes=homes, deliver=deliver, pins=pins)
        return unfused(costed) if self.single else costed

    @cached_property
    def _during(self) -> _Stands:
        """Everything kept while the backward runs, read or not."""
        graph = self.forward_graph
        held = {**self._call_tensors(graph), **self._copies(graph), **self._copies(self.backward_graph)}
        known = deliveries(graph, self.machine, self.homes, self._delivery)
        for name, device in self.saved_at.items():
            # A saved view keeps all the memory of its base.
            where, nbytes = self._root(name, device)
            held.setdefault(where, nbytes)
        for name, device in dict(known[: len(self.outputs)]).items():
            at = device or self.where.get(graph.producer.get(name, ""), self.homes.get(name, ""))
            where, nbytes = self._root(name, at)
            if where in held and where != (at, name):
                # The bridge copies this output, so the caller may change it in place.
                where, nbytes = (at, f"{name} of the caller"), graph.value[name].bytes
            held.setdefault(where, nbytes)
        for name in self.tangents:
            held[self._arrives, name] = self.backward_graph.value[name].bytes
        return held

    def _call_tensors(self, graph: Graph) -> _Stands:
        """Return inputs and state of the call, at home."""
        held: _Stands = {}
        for name in (*graph.inputs, *graph.state):
            key = self.homes.get(name, self.machine.host), graph.value[name].storage
            held[key] = max(held.get(key, 0), graph.value[name].bytes)
        return held

    def _copies(self, graph: Graph) -> _Stands:
        """Return the replicas that a half reads and that are kept between calls."""
        joint = self.joint.costed.graph
        copies: _Stands = {}
        for task in graph.tasks:
            for name in task.inputs:
                if name in graph.resident and self.where.get(task.name, "") not in ("", self.homes.get(name)):
                    storage, nbytes = joint.copies[name]
                    copies[self.where[task.name], storage] = nbytes
        return copies

    def _root(self, name: str, device: str) -> tuple[tuple[str, str], int]:
        """Return the storage that a value of the forward keeps alive on a device, and its bytes."""
        graph = self.forward_graph
        while True:
            value, maker = graph.value[name], graph.producer.get(name)
            if maker is None and self.homes.get(name, self.machine.host) == device:
                return (device, value.storage), max(value.bytes, graph.value[value.storage].bytes)
            itself = (device, name), value.bytes
            if maker is None or self.where[maker] != device or value.storage == name:
                return itself
            whole = (n for n in graph.task[maker].inputs if graph.value[n].storage == value.storage)
            name = next(whole, "")
            if not name:
                return itself


def _excess(all_of_it: _Stands, counted: _Stands) -> dict[str, int]:
    """Return the bytes on each device by which the first set exceeds the second."""
    excess: dict[str, int] = {}
    for stands, sign in ((all_of_it, 1), (counted, -1)):
        for (device, _), nbytes in stands.items():
            excess[device] = excess.get(device, 0) + sign * nbytes
    return {device: nbytes for device, nbytes in excess.items() if nbytes > 0}


def _half(costed: CostedGraph) -> Half:
    """Return a half on its devices, ordered by urgency, or in graph order if that needs too much memory."""
    try:
        plan = place(costed, "single" if costed.machine.serial else "heft")
    except MemoryCapError:
        plan = place(costed, "follow")
    return Half(plan, *proved(plan))


def _proven(half: Half) -> Iterator[Memory]:
    """Yield the memory of a plan, with its largest step raised to the peak that is proven for its program."""
    peaks = {peak.device: peak.bytes for peak in half.peaks}
    for memory in half.plan.memory:
        steps = [*memory.steps] or [(0.0, 0)]
        at, (second, nbytes) = max(enumerate(steps), key=lambda step: step[1][1])
        steps[at] = second, max(nbytes, peaks.get(memory.device, 0))
        yield replace(memory, steps=tuple(steps))
