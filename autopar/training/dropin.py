"""The drop-in door to training: a compiled model in the user's own loop.

    loss = criterion(fast(x), y); loss.backward(); optimizer.step()

The joint graph of forward and backward is cut, priced and placed as a whole; then it is taken apart into a
forward and a backward program with the same placement, joined by one `autograd.Function`. Weights that an
optimizer has stepped are copied to their devices within the forward program, beside what does not need them
yet; where nothing has changed a second program goes without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import torch

from ..capture import Captured
from ..cost import CostedGraph
from ..errors import MemoryCapError
from ..graph import Graph
from ..options import Options
from ..placement import place
from ..plans import Plan
from ..programs import Program
from ..rewrites.phases import Halves, alive, divide, reached
from ..roofline import cost
from ..runtime import Executor
from ..runtime.bridge import Bridge, own
from ..runtime.memory import Replicas
from ..stages import Prepared, bind, deliveries
from ..timeline import Timeline

Recorder: TypeAlias = Callable[[], list[Timeline] | None]
"""Where the timelines of calls go at the moment; None: they are not measured."""


class Training:
    """One signature of a model in training: the plan of both halves, their programs, and the calls.

    `forward` runs after the weights have changed, `again` while they have not. Backward programs are made at
    their first use, one for each set of outputs that had a gradient.
    """

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        homes: Mapping[str, str],
        options: Options,
        pool: Replicas,
        recorder: Recorder,
    ) -> None:
        self.captured, self.plan, self.options, self.pool = captured, plan, options, pool
        self.recorder = recorder
        self.homes = dict(homes)
        graph = plan.costed.graph
        self.halves: Halves = divide(graph, len(captured.gradients))
        self.where = {task: plan.place[run].device for task, run in plan.costed.run_of.items()}
        self._names = list(dict.fromkeys(graph.outputs[: self.halves.forward_outputs]))
        self._first = {captured.graph.outputs[index]: name for name, index in reversed(captured.tangents)}
        self._backward: dict[tuple[str, ...], tuple[Prepared, tuple[bool, ...]]] = {}
        self._lock = threading.Lock()

    @cached_property
    def saved_at(self) -> dict[str, str]:
        """The device on which each saved value waits for the backward: where it is read first, or was made."""
        halves = self.halves
        producer, readers = halves.forward.producer, halves.backward.readers
        found = {}
        for name in halves.saved:
            wanted = [self.where[task] for task in readers[name] if task in self.where]
            made = self.where.get(producer.get(name, ""), self.homes.get(name, ""))
            found[name] = made if made in wanted or not wanted else wanted[0]
        return found

    @property
    def tight(self) -> bool:
        """Whether a half may need more than a cap: the whole with all that is saved does."""
        value, kept = self.halves.backward.value, dict.fromkeys(self.plan.costed.machine.device, 0)
        for name, device in self.saved_at.items():
            kept[device] += value[name].bytes
        return any(m.cap is not None and m.peak + kept[m.device] > m.cap for m in self.plan.memory)

    def bind(self) -> None:
        """Make the programs of both halves now. Raises MemoryCapError."""
        self.forward, self.backward(self.halves.tangents)

    def room(self) -> dict[str, int]:
        """What is left of each device's cap, in bytes, without what a half needs there above the whole."""
        whole = {memory.device: memory.peak for memory in self.plan.memory}
        left = {memory.device: memory.cap for memory in self.plan.memory if memory.cap is not None}
        for costed in (self._ahead(self.halves.forward), self._behind(self.halves.tangents)[0]):
            free = tuple(replace(device, memory_bytes=None) for device in costed.machine.devices)
            lifted = replace(costed, machine=replace(costed.machine, devices=free))
            for memory in place(lifted, "follow").memory:
                cap = costed.machine.device[memory.device].memory_bytes
                if cap is not None:
                    more = max(0, memory.peak - whole.get(memory.device, 0))
                    left[memory.device] = min(left.get(memory.device, cap), cap - more)
        return left

    @cached_property
    def forward(self) -> Prepared:
        """The forward that brings changed weights to the devices that read them."""
        return self._forward(self.halves.forward)

    @cached_property
    def again(self) -> Prepared:
        """The forward for weights that are where they are needed."""
        return self._forward(replace(self.halves.forward, changing=()))

    def _forward(self, graph: Graph) -> Prepared:
        return self._bound(self._ahead(graph))

    def _ahead(self, graph: Graph) -> CostedGraph:
        machine = self.plan.costed.machine
        count = self.halves.forward_outputs
        known = deliveries(graph, machine, self.homes, self.options.outputs)
        saved = tuple((name, self.saved_at[name]) for name in self.halves.saved)
        return self._costed(graph, self.homes, (*known[:count], *saved, *known[count + len(saved) :]))

    def backward(self, live: tuple[str, ...]) -> tuple[Prepared, tuple[bool, ...]]:
        """The backward for these tangents, and for each leaf whether it has a gradient."""
        with self._lock:
            if live not in self._backward:
                costed, wanted = self._behind(live)
                self._backward[live] = self._bound(costed), wanted
            return self._backward[live]

    def _behind(self, live: tuple[str, ...]) -> tuple[CostedGraph, tuple[bool, ...]]:
        halves, machine = self.halves, self.plan.costed.machine
        whole = halves.backward
        graph = alive(whole, halves.tangents, live)
        homes = {**self.homes, **self.saved_at, **dict.fromkeys(halves.tangents, self._arrives())}
        wanted = reached(whole, halves.tangents, live)
        targets = [target for (target, _), has in zip(self.captured.gradients, wanted) if has]
        deliver = tuple(
            (name, self.homes.get(target, machine.host)) for name, target in zip(graph.outputs, targets)
        )
        return self._costed(graph, homes, deliver), wanted

    def _arrives(self) -> str:
        """The device on which tangents arrive: that of the outputs."""
        delivered = dict(self.plan.costed.deliver)
        return next(
            (delivered[name] for name in self._names if delivered.get(name)), self.plan.costed.machine.host
        )

    def _bound(self, costed: CostedGraph) -> Prepared:
        return bind(self.captured, _placed(costed), self.pool)

    def _costed(
        self, graph: Graph, homes: Mapping[str, str], deliver: tuple[tuple[str, str], ...]
    ) -> CostedGraph:
        """A half with every task where the plan of the whole has it."""
        machine = self.plan.costed.machine
        pins = {task.name: self.where[task.name] for task in graph.tasks if task.name in self.where}
        return cost(graph, machine, homes=homes, deliver=deliver, pins=pins)

    @property
    def program(self) -> Program:
        """The program of the forward."""
        return self.forward.program

    @property
    def single_s(self) -> float | None:
        """Not timed: a race would have to train."""
        return None

    @cached_property
    def stateful(self) -> bool:
        """Whether a call leaves something behind that the next one reads: a buffer, a generator's state."""
        return bool(self.captured.graph.mutated) or any(
            task.random or task.writes for task in self.captured.graph.tasks
        )

    @property
    def executor(self) -> Executor:
        """What runs the forward."""
        return self.forward.executor

    def leaves(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The caller's own tensors that have a gradient, in the order of `captured.gradients`."""
        given = dict(zip(self.captured.graph.inputs, inputs))
        state = self.captured.state
        return [
            state[name][0][state[name][1]] if name in state else given[name]
            for name, _ in self.captured.gradients
        ]

    def outputs(self, inputs: Sequence[Any]) -> list[Any]:
        """One call, as a function of the leaves to autograd; outputs in the order of the graph."""
        found = dict(zip(self._names, Bridge.apply(self, inputs, *self.leaves(inputs))))
        return [found[name] for name in self.captured.graph.outputs[: self.halves.forward_outputs]]

    def tried(self, inputs: Sequence[Any], tangents: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        """Outputs and gradients of one call for given tangents, by name, without autograd."""
        outputs, saved, _ = self.ahead(inputs)
        given = [tangents.get(self._first.get(name, "")) for name in self._names]
        found = dict(zip(self._names, outputs))
        names = self.captured.graph.outputs[: self.halves.forward_outputs]
        return [found[name] for name in names], self.back(saved, given)

    def ahead(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """See `bridge.Halved`."""
        settled = self.forward.program.keeps and self.executor.current()
        prepared = self.again if settled else self.forward
        results = self._executed(prepared, inputs)
        count = self.halves.forward_outputs
        values = dict(zip(self.halves.forward.outputs[:count], results))
        state = self.captured.state
        watched = [state[name][0][state[name][1]] for name in self.halves.backward.state]
        saved = results[count:]
        outputs = own([values[name] for name in self._names], (*inputs, *watched), saved)
        return outputs, saved, watched

    def smooth(self, outputs: Sequence[Any]) -> list[Any]:
        """See `bridge.Halved`."""
        return [value for name, value in zip(self._names, outputs) if name in self._first]

    def back(self, saved: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """See `bridge.Halved`."""
        given = {
            self._first[name]: tangent
            for name, tangent in zip(self._names, tangents)
            if tangent is not None and name in self._first
        }
        live = tuple(name for name in self.halves.tangents if name in given)
        prepared, wanted = self.backward(live)
        values = {**dict(zip(self.halves.saved, saved)), **given}
        made = iter(self._executed(prepared, [values[name] for name in prepared.plan.costed.graph.inputs]))
        return [next(made) if has else None for has in wanted]

    def _executed(self, prepared: Prepared, inputs: Sequence[Any]) -> list[Any]:
        calls = self.recorder()
        if calls is None:
            return prepared.executor(inputs)
        outputs, timeline = prepared.executor.run(inputs)
        assert timeline is not None
        ahead = f"{self.captured.graph.name} backward" != timeline.title
        if not ahead and calls and calls[-1].title == self.captured.graph.name:
            calls[-1] = calls[-1].then(timeline)
        else:
            calls.append(timeline)
        return outputs

    def close(self) -> None:
        """Stop the threads of all its programs."""
        for prepared in self._made():
            prepared.executor.close()

    def _made(self) -> list[Prepared]:
        made = [self.__dict__[name] for name in ("forward", "again") if name in self.__dict__]
        return [*made, *(prepared for prepared, _ in self._backward.values())]


def _placed(costed: CostedGraph) -> Plan:
    """The plan of a half whose devices are given: its order by urgency, else, where that needs too much memory, as in
    the graph."""
    try:
        return place(costed, "heft")
    except MemoryCapError:
        return place(costed, "follow")
