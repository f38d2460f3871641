"""`joint`: one call of a model, forward and backward, as one graph.

`torch.export` records the call undecomposed, so that regions without gradient stay what they are, and AOTAutograd
differentiates the record. (To differentiate a decomposed program forgets `no_grad`; to differentiate the model
itself loses the module paths and refuses closures.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.export import ExportedProgram

from ..composites.draws import in_place
from ..errors import CaptureError
from ..graph import Graph, Ref, Task
from ..rewrites.rename import renamed
from ..rewrites.views import folded, own
from ..strides import fitting, strides_of
from .around import refuse_kept, refuse_levels, refuse_module_hooks
from .captured import Captured
from .convert import Conversion, live
from .differentiate import Joint, differentiate
from .export import Placeholders, refuse_stored, sources
from .functions import Call, Returned
from .locations import Origins
from .private import quiet
from .probe import probe, refuse_counters
from .refusals import Untraceable, explain
from .routes import taken
from .sharing import refuse_changes
from .watch import watched

_aten = torch.ops.aten


def joint(
    function: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Captured:
    """Turn one call of a model, or of a function of tensors, and its backward into one graph.

    `Captured.tangents` are inputs after those of the call, one for each output that requires grad, of its shape
    and dtype; `Captured.gradients` has the gradient of each parameter and input that requires grad and was used.
    Tasks that no output and no update needs are of phase "backward". A tensor that has several names is one value
    with one gradient. An output that is a tensor of the caller's own (`Captured.same`) has no tangent: what flows
    into it flows into that tensor. A tensor returned twice has one, at its first index.

    Grad mode and autocast are the caller's; grad mode must be on. The model, its buffers and every random
    generator are left as they were. Raises CaptureError, with the construct, the line and what to change, for
    what cannot be traced and for what a trace would lose in silence.
    """
    if not torch.is_grad_enabled():
        raise CaptureError(
            "no backward can be captured with grad mode off; leave torch.no_grad() for this call"
        )
    refuse_levels()
    notes: list[str] = []
    with taken(function, args, kwargs or {}, notes) as (call, name, paths):
        refuse_module_hooks(call.model, name)
        with refuse_kept(call.model, notes):
            captured = _captured(call, name, paths)
    graph, names = folded(captured.graph)
    gradients = tuple((target, names.get(name, name)) for target, name in captured.gradients)
    # A gradient that is also an answer, or a saved number, keeps the name it was made under.
    called = {
        name: f"{graph.value[target].path}.grad"
        for target, name in gradients
        if graph.value[name].kind == "made" and not graph.readers[name]
    }
    graph = renamed(own(graph), called)
    return dataclasses.replace(
        captured,
        graph=graph,
        gradients=tuple(
            zip(
                (target for target, _ in gradients),
                graph.outputs[len(captured.graph.outputs) - len(gradients) :],
            )
        ),
        notes=tuple(dict.fromkeys((*captured.notes, *notes))),
    )


def _captured(call: Call, name: str, paths: tuple[str, ...]) -> Captured:
    try:
        captured = assemble(trace(call, paths), call, name, paths)
        refuse_counters(call, name)
    except Exception as error:
        if isinstance(error, CaptureError) and not isinstance(error, Untraceable):
            raise
        probe(call, name)
        if isinstance(error, CaptureError):
            raise
        raise Untraceable(explain(name, error)) from error
    return captured


class Recorded(NamedTuple):
    """A call recorded and differentiated. For each output of the call `places` has its index among those of the
    record, None for a tensor of the caller's own.
    """

    program: ExportedProgram
    returned: Returned
    places: tuple[int | None, ...]
    joint: Joint


def trace(call: Call, paths: tuple[str, ...]) -> Recorded:
    """Record a call, then differentiate the record."""
    with quiet():
        with watched() as asked:
            program = torch.export.export(call, tuple(call.arguments.tensors), strict=False)
        places = _results(program, call)
        returned = call.returned
        if in_place(program.graph_module):
            returned = returned.without_strides()
        given = call.arguments.tensors
        found = sources(program, call)
        tensors = [given[source] if isinstance(source, int) else source.tensor for source in found]
        names = [paths[source] if isinstance(source, int) else source.path for source in found]
        _join_tied(program.graph, tensors)
        return Recorded(program, returned, places, differentiate(program.graph_module, tensors, names, asked))


def _results(program: ExportedProgram, call: Call) -> tuple[int | None, ...]:
    """Leave in a record what needs a gradient of its own; where each output of the call is now.

    What is the caller's own tensor goes, as does what is there already.
    """
    end = next(iter(reversed(program.graph.nodes)))
    results = list(end.args[0])
    returned = call.returned
    count = len(returned.grads)
    if len(results) > count:
        refuse_stored(program, results[count:], call)
    own = {index for index, _ in returned.same}
    left: dict[fx.Node, int] = {}
    places = tuple(
        None if index in own else left.setdefault(node, len(left))
        for index, node in enumerate(results[:count])
    )
    end.args = (tuple(left),)
    return places


def _join_tied(graph: fx.Graph, tensors: list[torch.Tensor]) -> None:
    """Let each tensor be read, and changed, by one placeholder."""
    first: dict[int, fx.Node] = {}
    for node, tensor in zip(graph.nodes, tensors):
        if first.setdefault(id(tensor), node) is not node:
            node.replace_all_uses_with(first[id(tensor)])


def assemble(recorded: Recorded, call: Call, name: str, paths: tuple[str, ...]) -> Captured:
    """The graph of a call that was differentiated, and its ties to the model."""
    program, returned, places, joint = recorded
    conversion = _Conversion(name, Origins(joint.graph))
    placed = Placeholders(conversion, program, call, paths, joint.inputs)
    first = {place: index for index, place in reversed(list(enumerate(places))) if place is not None}
    tangents = [
        (conversion.give(node, f"tangent_{first[place]}", "input", f"tangent_{first[place]}"), first[place])
        for place, node in joint.tangents
    ]
    forward = live(joint.graph, [*joint.outputs, *(node for _, node in joint.updates)])
    everything = live(joint.graph, [*forward, *(node for _, node in joint.gradients)])
    for node in forward:
        conversion.add(node)
    conversion.phase = "backward"
    done = set(forward)
    for node in everything:
        if node not in done:
            conversion.add(node)
    updates = tuple(
        (conversion.fresh(conversion.keep(node)), placed.values[index]) for index, node in joint.updates
    )
    updated = {to: made for made, to in updates}
    inputs = tuple(placed.inputs)
    kept = {slot.path: value for value, slot in placed.state.items()}
    same = {
        index: inputs[source] if isinstance(source, int) else kept[source] for index, source in returned.same
    }
    results = conversion.apart(joint.outputs)
    outputs = tuple(
        results[place] if place is not None else updated.get(same[index], same[index])
        for index, place in enumerate(places)
    )
    gradients = tuple((placed.values[index], conversion.keep(node)) for index, node in joint.gradients)
    read = {value for task in conversion.tasks for value in task.inputs}
    read |= {*outputs, *updated}
    tensors = dict(zip(inputs, call.arguments.tensors)) | {
        value: slot.tensor for value, slot in placed.state.items()
    }
    refuse_changes(name, tensors, read, updated)
    state = {value: slot for value, slot in placed.state.items() if value in read}
    graph = Graph(
        name,
        tuple(value for value in conversion.values.values() if value.kind != "state" or value.name in state),
        tuple(conversion.tasks),
        (*inputs, *(value for value, _ in tangents)),
        tuple(state),
        (*outputs, *(value for _, value in gradients)),
        updates,
    )
    differentiable = {index for _, index in tangents}
    return Captured(
        graph.check(),
        {value: (slot.owner, slot.key) for value, slot in state.items()},
        {},
        call.arguments.flatten,
        returned.rebuild,
        "export",
        call.home,
        tuple(
            first[place] in differentiable if place is not None else returned.grads[index]
            for index, place in enumerate(places)
        ),
        tuple(same.items()),
        fitting(returned.strides, [graph.value[name].shape for name in outputs]),
        tuple(strides_of(conversion.fakes.get(n)) == s for n, s in zip(outputs, returned.strides)),
        tangents=tuple(tangents),
        gradients=gradients,
    )


class _Conversion(Conversion):
    """A conversion of forward and backward."""

    def add(self, node: fx.Node) -> None:
        """Convert one call; `detach` is nothing where gradients are plain values."""
        if node.target is _aten.detach.default:
            self.made[node] = self.made[node.args[0]]
            return
        if node.target is _aten.native_batch_norm_backward.default and node.args[7]:
            # In training the running statistics are not read, and have other values by then.
            node.args = (*node.args[:3], None, None, *node.args[5:])
        super().add(node)

    def apart(self, nodes: tuple[fx.Node, ...]) -> list[str]:
        """The values of these results, no two the same: one that is there already has a view."""
        found: dict[str, None] = {}
        for node in nodes:
            name = self.keep(node)
            if name in found:
                view = self.free(f"{name}.view")
                self.values[view] = dataclasses.replace(self.values[name], name=view, kind="made", path="")
                self.fakes[view] = self.fakes[name]
                self.tasks.append(Task(view, "aten.alias.default", (Ref(name),), outputs=(view,), free=True))
                name = view
            found[name] = None
        return list(found)
