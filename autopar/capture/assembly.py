"""A traced region as the `Captured` of one call's sizes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx, nn

from ..ir.graph import Graph, Task
from ..transform.rewrites import folded, own, renamed
from .captured import Captured, fitting, strides_of
from .convert import Conversion, Find, live
from .functional_trace import OPEN, is_open
from .refusals import Untraceable, waiting
from .region import Region
from .source_locations import located, origins
from .tracing import Traced, through, trace


class _Sizes:
    """The numbers of one capture's symbols in one call.

    `fakes`: of its placeholders. `given`: the call's arguments. None of this makes a guard: computing a number from a
    symbol itself would fix it for all calls.
    """

    def __init__(self, fakes: Sequence[Any], given: Sequence[Any]) -> None:
        self.numbers: dict[Any, Any] = {}
        self.known: dict[Any, Any] = {}
        self.storages: dict[int, Any] = {}
        for fake, actual in zip(fakes, given):
            if isinstance(fake, torch.Tensor):
                for size, number in zip((*fake.shape, *fake.stride()), (*actual.shape, *actual.stride())):
                    self._learn(size, number)
            else:
                self._learn(fake, actual)

    def _learn(self, size: Any, number: Any) -> None:
        if isinstance(size, OPEN) and size.node.expr.is_Symbol:
            self.numbers.setdefault(size.node.expr, sympy.sympify(number))

    def number(self, size: Any) -> Any:
        """Return a size as a plain number. Raises Untraceable if it depends on the values in a tensor."""
        if not isinstance(size, OPEN):
            return size
        expression = size.node.expr
        if expression not in self.known:
            found = expression.xreplace(self.numbers)
            if not found.is_number and found not in (sympy.true, sympy.false):
                found = size.node.shape_env.replace(expression).xreplace(self.numbers)
            if not found.is_number and found not in (sympy.true, sympy.false):
                raise Untraceable(f"the size {expression} depends on the values in a tensor")
            self.known[expression] = _plain(size, found)
        return self.known[expression]

    def at(self, value: Any) -> Any:
        """Return a fake result with plain sizes; tensors that share memory still share it."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.at, value))
        if isinstance(value, OPEN):
            return self.number(value)
        return self._tensor(value) if is_open(value) else value

    def _tensor(self, fake: torch.Tensor) -> torch.Tensor:
        shape = [self.number(size) for size in fake.shape]
        strides = [self.number(step) for step in fake.stride()]
        offset = self.number(fake.storage_offset())
        memory = fake.untyped_storage()._cdata
        if memory not in self.storages:
            # Of a view of something larger no symbol of the call says how large: it grows with what is seen of it.
            self.storages[memory] = torch.UntypedStorage(0, device="meta")
        made = torch.empty(0, dtype=fake.dtype, device="meta")
        return made.set_(self.storages[memory], offset, shape, strides)

    def settle(self, values: Mapping[fx.Node, Any]) -> None:
        """Set the results of these nodes to those at these sizes."""
        for node, value in values.items():
            node.meta["val"] = self.at(value)


def _plain(size: Any, found: Any) -> Any:
    if isinstance(size, torch.SymBool):
        return bool(found)
    return int(found) if isinstance(size, torch.SymInt) else float(found)


class Assembly:
    """A traced region from which the graph for any sizes is made.

    `renamed`: paths of the module in which it was traced and of its current module, if they differ.
    """

    def __init__(self, region: Region, traced: Traced) -> None:
        self.region, self.traced, self.renamed = region, traced, ("", "")
        self.held: dict[str, Any] = {node.name: tensor for node, tensor in traced.constants}
        nodes = (*traced.graph.nodes,)
        self.open = {node: node.meta["val"] for node in nodes if is_open(node.meta.get("val"))}
        self.find: Find = origins(traced.graph).__getitem__ if traced.tangents else located
        ends = [*traced.outputs, *(node for _, node in traced.updates)]
        self.forward = live(traced.graph, ends)
        done = set(self.forward)
        every = live(traced.graph, [*self.forward, *(node for _, node in traced.gradients)])
        self.backward = [node for node in every if node not in done] if traced.tangents else []

    def at(self, given: Sequence[Any], divisible: bool = True) -> Captured:
        """Return the graph for the arguments of one call, with cuts if `divisible`.

        Raises Untraceable if a size depends on values.
        """
        sizes = _Sizes(self.region.fakes, given)
        sizes.settle(self.open)
        captured = self._captured(given, sizes, divisible)
        return _finished(captured) if self.traced.tangents else captured

    def of(self, region: Region) -> Assembly:
        """Return the same region of another module."""
        pairs = ((a.path, b.path) for a, b in zip(self.region.places, region.places) if a.path != b.path)
        ours, theirs = (path.split(".") for path in next(pairs, ("", "")))
        while ours and theirs and ours[-1] == theirs[-1]:
            ours.pop()
            theirs.pop()
        # What is open in the graph was read before any sizes were put into it.
        other = copy.copy(self)
        other.region, other.renamed = region, (".".join(ours), ".".join(theirs))
        return other

    def _at_home(self, task: Task) -> Task:
        """Return a task with the path of its own module."""
        was, now = self.renamed
        if not was or not f"{task.module}.".startswith(f"{was}."):
            return task
        return dataclasses.replace(task, module=now + task.module[len(was) :])

    def _captured(self, given: Sequence[Any], sizes: _Sizes, divisible: bool) -> Captured:
        region, traced = self.region, self.traced
        conversion = Conversion(region.name, self.find, divisible, bool(traced.tangents))
        values, inputs, state = self._given(conversion, sizes)
        first = {result.index: at for at, result in reversed(list(enumerate(region.results)))}
        tangents: list[tuple[str, int]] = []
        for index, node in traced.tangents:
            name = f"tangent_{len(tangents)}"
            tangents.append((conversion.give(node, name, "input", name), index))
        for node in self.forward:
            conversion.add(node)
        conversion.phase = "backward"
        for node in self.backward:
            conversion.add(node)
        updates = tuple(
            (conversion.fresh(conversion.keep(node)), values[index]) for index, node in traced.updates
        )
        updated = {to: made for made, to in updates}
        computed = (
            conversion.apart(traced.outputs) if traced.tangents else [*map(conversion.keep, traced.outputs)]
        )
        tensors = [at for at, result in enumerate(region.results) if isinstance(result.fake, torch.Tensor)]
        results = [region.results[at] for at in tensors]
        same = [(index, values[result.same]) for index, result in enumerate(results) if result.same >= 0]
        back = dict(same)
        outputs = [
            updated.get(back[index], back[index]) if index in back else computed[result.index]
            for index, result in enumerate(results)
        ]
        made = dict(traced.gradients)
        gradients = tuple(
            (values[index], conversion.keep(made[index])) for index in region.by_parameter(list(made))
        )
        read = {value for task in conversion.tasks for value in task.inputs} | {*outputs, *updated}
        kept = {name: slot for name, slot in state.items() if name in read}
        names = tuple(values[number] for number in inputs)
        graph = Graph(
            region.name,
            tuple(v for v in conversion.values.values() if v.kind != "state" or v.name in kept),
            tuple(map(self._at_home, conversion.tasks)),
            (*names, *(name for name, _ in tangents)),
            tuple(kept),
            (*outputs, *(name for _, name in gradients)),
            updates,
            paths=region.paths,
        )
        strides = [strides_of(sizes.at(region.results[at].fake)) for at in tensors]
        known = [sizes.at(result.number) for result in region.results]

        def rebuild(values: Sequence[Any]) -> list[Any]:
            """Return the results of the region, tensors and plain numbers, from the outputs of the graph."""
            found = list(known)
            for place, value in zip(tensors, values):
                found[place] = value
            return found

        # A result that is returned in several places is one output, which has one gradient.
        places = {index: tensors.index(first[index]) for index in {i for _, i in tangents}}
        return Captured(
            graph.check(),
            kept,
            {},
            lambda args: [args[number] for number in inputs],
            rebuild,
            _home(given),
            tuple(same),
            fitting(strides, [graph.value[name].shape for name in outputs]),
            tuple(strides_of(conversion.fakes.get(n)) == s for n, s in zip(outputs, strides)),
            tangents=tuple((name, places[index]) for name, index in tangents),
            gradients=gradients,
        )

    def _given(
        self, conversion: Conversion, sizes: _Sizes
    ) -> tuple[list[str], list[int], dict[str, tuple[Mapping[str, Any], str]]]:
        """Return the values of the placeholders ("" for sizes), those that are inputs, and the owners of the state."""
        values: list[str] = []
        inputs: list[int] = []
        state: dict[str, tuple[Mapping[str, Any], str]] = {}
        for number, (place, node) in enumerate(zip(self.region.places, self.traced.inputs)):
            if place.kind == "size":
                conversion.made[node] = sizes.number(place.fake)
                values.append("")
                continue
            values.append(conversion.give(node, place.path, place.kind, place.path))
            if place.kind == "input":
                inputs.append(number)
            else:
                state[values[-1]] = place.owner, place.key
        for node, _ in self.traced.constants:
            state[conversion.give(node, node.name, "state", node.name)] = self.held, node.name
        return values, inputs, state


def assembled(
    module: fx.GraphModule, examples: Sequence[Any], root: nn.Module | None, parameters: Sequence[str]
) -> Assembly:
    """Trace a graph captured by Dynamo with these arguments, with its backward if grad mode is on and an output
    requires grad.

    `root` and `parameters` as in `Region`. Raises Untraceable for what no graph can hold, and torch's errors.
    """
    waits = waiting(module)
    if waits is not None:
        raise waits
    region = Region(module, examples, root, parameters)
    if region.empty:
        raise Untraceable("nothing is computed")
    if torch.is_grad_enabled() and region.changed:
        raise through(region.changed)
    training = torch.is_grad_enabled() and bool(region.differentiable)
    names = [place.path for place in region.places]
    traced = trace(module, region.fakes, names, region.wanted, training)
    if training and [index for index, _ in sorted(traced.tangents)] != region.differentiable:
        raise Untraceable("its backward as traced is not that of all outputs which require grad")
    return Assembly(region, traced)


def _home(given: Sequence[Any]) -> torch.device:
    """Return the device of a call: that of its first tensor, else the default device."""
    return next((item.device for item in given if isinstance(item, torch.Tensor)), torch.get_default_device())


def _finished(captured: Captured) -> Captured:
    """Return a graph of forward and backward with views folded, and gradients named after what they are gradients
    of."""
    graph, names = folded(captured.graph)
    gradients = tuple((target, names.get(name, name)) for target, name in captured.gradients)
    # A gradient that is also an answer, or a saved number, keeps the name it was made under.
    called = {
        name: f"{graph.value[target].path}.grad"
        for target, name in gradients
        if graph.value[name].kind == "made" and not graph.readers[name]
    }
    graph = renamed(own(graph), called)
    count = len(captured.graph.outputs) - len(gradients)
    made = tuple(zip((target for target, _ in gradients), graph.outputs[count:]))
    return dataclasses.replace(captured, graph=graph, gradients=made)
