"""The first route: `torch.export`, functionalised, composites kept whole."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..composites.draws import IN_PLACE, in_place
from ..errors import CaptureError
from ..graph import Graph
from ..strides import fitting, strides_of
from .captured import Captured
from .convert import Conversion, effect, live
from .functions import Call, Returned, reachable
from .locations import ROOT, Locations, line
from .lowered import Lowered
from .private import quiet
from .refusals import Untraceable, own_attribute
from .sharing import refuse_changes
from .states import Slot, find, slots

if TYPE_CHECKING:
    from .islands import Islands

_MUTATIONS = {
    OutputKind.BUFFER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
    *(kind for kind in OutputKind if kind.name == "PARAMETER_MUTATION"),
}


def export(call: Call, name: str, paths: tuple[str, ...], islands: Islands | None = None) -> Captured:
    """Capture through `torch.export.export(strict=False)` and an empty decomposition table.

    The table keeps linear, conv, layer_norm and attention whole, makes in-place operators functional, and
    hands changes of buffers and inputs out as outputs. Raises CaptureError, or whatever export raises.
    """
    with quiet(), islands.traced() if islands else contextlib.nullcontext():
        traced = trace(call)
    return assemble(traced, call, name, paths, islands.calls if islands else {})


class Traced(NamedTuple):
    """What export made of a call, what the call gave back besides tensors, and where its nodes come from."""

    program: ExportedProgram
    returned: Returned
    locations: Locations


def trace(call: Call, sizes: tuple[Any, ...] | None = None) -> Traced:
    """Export a call; `sizes` gives for each tensor the axes whose size is left open, as {axis: Dim}."""
    shapes = {"tensors": sizes} if sizes else None
    with Lowered():
        before = torch.export.export(call, tuple(call.arguments.tensors), strict=False, dynamic_shapes=shapes)
    returned = call.returned
    locations = Locations(before.graph_module)
    if in_place(before.graph_module):
        returned = returned.without_strides()
    return Traced(before.run_decompositions(IN_PLACE), returned, locations)


def assemble(
    traced: Traced, call: Call, name: str, paths: tuple[str, ...], calls: Mapping[str, Callable[..., Any]]
) -> Captured:
    """The graph of an exported program and its ties to the model, every size in it a plain number."""
    program, returned, locations = traced
    conversion = Conversion(name, locations, calls)
    placed = Placeholders(conversion, program, call, paths)
    *_, end = program.graph.nodes
    results = list(zip(program.graph_signature.output_specs, end.args[0]))
    kept = len(returned.grads) - sum(spec.kind is OutputKind.USER_OUTPUT for spec, _ in results)
    if kept:
        refuse_stored(program, [node for _, node in results[kept:]], call)
        results = results[:kept]
    for node in live(program.graph, [node for _, node in results]):
        conversion.add(node)
    inputs = tuple(placed.inputs)
    outputs, updates = [], []
    for spec, node in results:
        if spec.kind is OutputKind.USER_OUTPUT:
            outputs.append(conversion.keep(node))
        elif spec.kind in _MUTATIONS:
            updates.append((conversion.fresh(conversion.keep(node)), placed.target(spec.target)))
        else:
            raise CaptureError(
                f"{name}: export returned an output of kind {spec.kind.name}, which no graph can hold"
            )
    used = {value for task in conversion.tasks for value in task.inputs} | {
        *outputs,
        *(to for _, to in updates),
    }
    tensors = dict(zip(inputs, call.arguments.tensors)) | {
        value: slot.tensor for value, slot in placed.state.items()
    }
    refuse_changes(name, tensors, used, (target for _, target in updates))
    state = {value: slot for value, slot in placed.state.items() if value in used}
    graph = Graph(
        name,
        tuple(v for v in conversion.values.values() if v.kind != "state" or v.name in state),
        tuple(conversion.tasks),
        inputs,
        tuple(state),
        tuple(outputs),
        tuple(updates),
    )
    slot_values = {slot.path: value for value, slot in placed.state.items()}
    same = tuple(
        (index, inputs[source] if isinstance(source, int) else slot_values[source])
        for index, source in returned.same
        if isinstance(source, int) or source in slot_values
    )
    return Captured(
        graph.check(),
        {value: (slot.owner, slot.key) for value, slot in state.items()},
        dict(calls),
        call.arguments.flatten,
        returned.rebuild,
        "export",
        call.home,
        call.grads(len(outputs)) if calls else returned.grads,
        same,
        fitting(returned.strides, [graph.value[name].shape for name in outputs]),
        tuple(strides_of(conversion.fakes[n]) == s for n, s in zip(outputs, returned.strides)),
    )


def refuse_stored(program: ExportedProgram, results: list[Any], call: Call) -> None:
    """Untraceable when an attribute keeps what depends on the call: the next call would read what this
    one left, and a number would be that of the first call for ever.
    """
    varies: set[Any] = set()
    users = {s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT}
    for node in program.graph.nodes:
        if (
            node.name in users
            or not varies.isdisjoint(node.all_input_nodes)
            or (node.op != "output" and effect(node))
        ):
            varies.add(node)
    stored = next((node for node in results if node in varies), None)
    if stored is None:
        return
    number = not isinstance(stored.meta.get("val"), torch.Tensor)
    kinds = _NUMBERS if number else torch.Tensor
    changed = call.returned.changed
    holds = (
        path
        for path, item in changed.items()
        if any(isinstance(leaf, kinds) for leaf in pytree.tree_leaves(item))
    )
    path = own_attribute(call.model, next(holds, next(iter(changed))))
    source, code = line(stored.meta.get("stack_trace") or "")
    place = (f" at {source}" if source else "") + (f": `{code}`" if code else "")
    if number:
        raise Untraceable(
            f"forward makes a Python number of a tensor (.item() or the like){place} and keeps it in self.{path}, "
            "where a graph would leave that of the first call; return the tensor and call .item() on it outside, or "
            "keep it in a buffer that is changed in place (register_buffer, copy_)"
        )
    raise Untraceable(
        f"forward stores a tensor of the call in self.{path}{place}, which the next call may "
        "read; register it with register_buffer and update it in place, or return it and pass it back in"
    )


_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Placeholders:
    """The inputs and state of an exported program, given to a conversion; tied tensors become one value.

    `nodes` stand for the inputs where they are not those of the program itself. `values` has the value of each.
    """

    def __init__(
        self,
        conversion: Conversion,
        program: ExportedProgram,
        call: Call,
        paths: tuple[str, ...],
        nodes: Sequence[Node] | None = None,
    ) -> None:
        self.inputs: list[str] = []
        self.state: dict[str, Slot] = {}
        self.names: dict[str, str] = {}
        nodes = nodes or [node for node in program.graph.nodes if node.op == "placeholder"]
        found = list(zip(program.graph_signature.input_specs, sources(program, call), nodes))
        given: dict[int, str] = {}
        for spec, source, node in found:
            if isinstance(source, int):
                name = conversion.give(node, paths[source], "input", paths[source])
                self.names[spec.arg.name] = given[id(node)] = name
                self.inputs.append(name)
        known: dict[int, str] = {}
        for spec, source, node in found:
            if isinstance(source, int):
                continue
            if id(source.tensor) in known:
                name = known[id(source.tensor)]
                conversion.same(node, name)
            else:
                name = known[id(source.tensor)] = conversion.give(node, source.path, "state", source.path)
                self.state[name] = source
            self.names[spec.target] = given[id(node)] = name
        self.values = [given[id(node)] for node in nodes]

    def target(self, target: str) -> str:
        """The input or state value that a mutation goes back to."""
        return self.names[target]


def sources(program: ExportedProgram, call: Call) -> list[Slot | int]:
    """What each input of a program is: the number of a tensor of the call, or where the model, or the program,
    holds it. A tensor with several places has the first.
    """
    first: dict[int, Slot] = {}
    for slot in slots(call.model):
        first.setdefault(id(slot.tensor), slot)
    constants: dict[str, Any] = {}
    found: list[Slot | int] = []
    users = itertools.count()
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            found.append(next(users))
            continue
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise Untraceable(
                f"{spec.target} is a {spec.kind.name.lower()}, which is no tensor; pass tensors, or keep it out "
                "of forward"
            )
        slot = _slot(spec, program, call, constants)
        found.append(first.get(id(slot.tensor), slot))
    return found


def _slot(spec: Any, program: ExportedProgram, call: Call, constants: dict[str, Any]) -> Slot:
    path = spec.target.removeprefix(ROOT + ".")
    slot = find(call.model, path) if spec.target.startswith(ROOT + ".") else None
    if spec.kind is not InputKind.CONSTANT_TENSOR:
        if slot is None:
            raise CaptureError(f"{spec.target} is not in the model any more; was it replaced during forward?")
        return slot
    tensor = program.constants[spec.target]
    if slot is not None and slot.tensor is tensor:
        return slot
    origin = tensor if tensor.requires_grad else _unregistered(tensor, call)
    if origin is not None:
        raise CaptureError(
            f"tensor {_called(origin, path, call)} requires grad, belongs to no module and would be "
            "frozen as a constant; make it an nn.Parameter of a module that the function uses (in a list or dict of "
            "a module: nn.ParameterList, nn.ParameterDict), pass it as an argument, or detach and clone it"
        )
    constants[path] = tensor
    return Slot(path, constants, path)


def _unregistered(constant: torch.Tensor, call: Call) -> torch.Tensor | None:
    """The trainable parameter of no module of the call whose detached alias export took for a constant."""
    if not torch.is_grad_enabled() or not (constant.is_floating_point() or constant.is_complex()):
        return None
    storage = _stored(constant)
    if storage < 0 or storage in {_stored(slot.tensor) for slot in slots(call.model)}:
        return None
    return next(
        (
            item
            for item in gc.get_objects()
            if type(item) is nn.Parameter and item.requires_grad and _stored(item) == storage
        ),
        None,
    )


def _stored(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else -1


def _called(tensor: torch.Tensor, otherwise: str, call: Call) -> str:
    (function,) = call.function
    return repr(next((name for name, item in reachable(function) if item is tensor), otherwise))
