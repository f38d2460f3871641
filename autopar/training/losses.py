"""A model and what is minimised as one Module, so that a training step is one call to capture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture import Captured
from ..capture.functions import Function
from ..capture.signature import take_apart
from ..errors import CaptureError
from ..graph import Graph
from ..rewrites.rename import renamed
from ..wording import CRITERION

LOSS = "loss.tangent"
"""Path of the state that holds what the loss's gradient starts from: 1, or the scale of a GradScaler."""


class Loss(nn.Module):
    """`forward(inputs, *targets)` is `criterion(model(inputs), *targets)`, or `forward(*batch)` is
    `step_fn(model, *batch)`.

    A tuple of inputs is spread over the model's arguments, a dict over its keywords; anything else is the one
    argument. What comes back is the loss, or a tuple that begins with it, or a dict that has it under "loss";
    everything but the loss is detached.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Callable[..., Any] | None,
        step_fn: Callable[..., Any] | None,
    ) -> None:
        super().__init__()
        # Messages and pictures name what was trained.
        name = type(model).__name__
        parts = {"rule": _called(criterion, step_fn, name), "model": ""}
        members = {"forward": _form(step_fn is None), "autopar_parts": parts}
        self.__class__ = type(name, (type(self),), members)
        self.model = model
        self.rule = _module(criterion if step_fn is None else step_fn)

    def apart(self, output: Any) -> Any:
        """The output with all but the loss detached; CaptureError when there is no loss in it."""
        found = output
        if isinstance(output, Mapping):
            found = output.get("loss")
        elif isinstance(output, (tuple, list)):
            found = output[0] if output else None
        if not isinstance(found, torch.Tensor):
            raise CaptureError(
                f"{type(self).__name__}: no loss came back, but {_described(output)}; return the loss, a tensor, or "
                '(loss, more, …) or {"loss": loss, …}'
            )
        if found.numel() != 1:
            raise CaptureError(
                f"{type(self).__name__}: the loss is of shape {list(found.shape)}, and only one number can be "
                "minimised; take its .mean() or .sum()"
            )

        def detached(leaf: Any) -> Any:
            return leaf.detach() if isinstance(leaf, torch.Tensor) and leaf is not found else leaf

        return pytree.tree_map(detached, output)


def _described(output: Any) -> str:
    """What came back in place of a loss, in words."""
    if isinstance(output, Mapping):
        if "loss" not in output:
            return f'a {type(output).__name__} without "loss", of {", ".join(map(repr, output)) or "nothing"}'
        return f'a {type(output).__name__} with {type(output["loss"]).__name__} for "loss"'
    if isinstance(output, (tuple, list)):
        first = f"that begins with {type(output[0]).__name__}" if output else "of nothing"
        return f"a {type(output).__name__} {first}"
    if isinstance(output, (torch.SymFloat, torch.SymInt)):
        return "a Python number, which has no gradient"
    return type(output).__name__


def _form(of_criterion: bool) -> Callable[..., Any]:
    """The forward; arguments are named in messages as the user knows them."""

    def of_targets(self: Loss, inputs: Any, *targets: Any) -> Any:
        if isinstance(inputs, tuple):
            outputs = self.model(*inputs)
        elif isinstance(inputs, dict):
            outputs = self.model(**inputs)
        else:
            outputs = self.model(inputs)
        return self.apart(self.rule(outputs, *targets))

    def of_batch(self: Loss, *batch: Any) -> Any:
        return self.apart(self.rule(self.model, *batch))

    form = of_targets if of_criterion else of_batch
    # Python names it where arguments are missing.
    form.__qualname__ = "step"
    return form


def _called(criterion: Any, step_fn: Any, model: str) -> str:
    """What messages call a user's function beside the model."""
    function, role = (criterion, "criterion") if step_fn is None else (step_fn, "step_fn")
    name = getattr(function, "__name__", type(function).__name__)
    return f"the {role}{'' if name == '<lambda>' else f' {name}'} of {model}"


def _module(function: Any) -> nn.Module:
    return function if isinstance(function, nn.Module) else Function(function, take_apart((), {}))


def resident_tangent(captured: Captured, owner: dict[str, Any]) -> Captured:
    """The joint graph with the gradient that flows into the loss as state, which is `owner["tangent"]`.

    `owner` gets a tensor one of the loss's dtype at the home of the call. Raises CaptureError where no
    parameter needs a gradient.
    """
    graph = captured.graph
    if not captured.tangents:
        raise CaptureError(
            f"{graph.name}: the loss depends on no parameter that requires a gradient, so there is nothing to train; "
            "set requires_grad on what is to be trained, and do not detach what leads to the loss"
        )
    ((tangent, _),) = captured.tangents
    value = graph.value[tangent]
    owner["tangent"] = torch.ones(value.shape, dtype=getattr(torch, value.dtype), device=captured.home)
    values = tuple(
        replace(each, kind="state", path=LOSS) if each.name == tangent else each for each in graph.values
    )
    return replace(
        captured,
        graph=replace(
            graph,
            values=values,
            inputs=tuple(name for name in graph.inputs if name != tangent),
            state=(*graph.state, tangent),
        ),
        state={**captured.state, tangent: (owner, "tangent")},
        tangents=(),
    )


def trained(captured: Captured, parameters: set[int]) -> Captured:
    """The joint graph with the gradients of these parameters alone (ids of tensors), and no task that only others
    need."""
    graph, state = captured.graph, captured.state
    kept = tuple(
        (target, made)
        for target, made in captured.gradients
        if target in state and id(state[target][0][state[target][1]]) in parameters
    )
    if len(kept) == len(captured.gradients):
        return captured
    count = len(graph.outputs) - len(captured.gradients)
    outputs = (*graph.outputs[:count], *(made for _, made in kept))
    return replace(captured, graph=_needed(graph, outputs), gradients=kept)


def _needed(graph: Graph, outputs: tuple[str, ...]) -> Graph:
    """The graph without the tasks of its backward that nothing needs any more."""
    wanted = {*outputs, *(made for made, _ in graph.updates)}
    orders: set[str] = set()
    tasks = []
    for task in reversed(graph.tasks):
        if task.phase == "forward" or task.name in orders or not wanted.isdisjoint(task.outputs):
            tasks.append(task)
            wanted.update(task.inputs)
            orders.update(task.after)
    tasks.reverse()
    made = {name for task in tasks for name in task.outputs}
    names = {*graph.inputs, *graph.state, *made}
    values = tuple(
        value if value.storage in names else replace(value, storage=value.name)
        for value in graph.values
        if value.name in names
    )
    return replace(graph, values=values, tasks=tuple(tasks), outputs=outputs).check()


def own_paths(captured: Captured) -> Captured:
    """The graph with paths and names as they are in the model, not in the Module around it."""
    graph = captured.graph
    names = {value.name: own_path(value.name) for value in graph.values if value.name.startswith("model.")}
    graph = renamed(graph, {old: new for old, new in names.items() if new})
    now = dict(zip((value.name for value in captured.graph.values), (value.name for value in graph.values)))
    values = tuple(
        replace(value, path=own_path(value.path)) if value.kind == "state" else value
        for value in graph.values
    )
    tasks = tuple(replace(task, module=_own_module(task.module)) for task in graph.tasks)
    return replace(
        captured,
        graph=replace(graph, values=values, tasks=tasks),
        state={now[name]: slot for name, slot in captured.state.items()},
        gradients=tuple((now[target], now[made]) for target, made in captured.gradients),
        tangents=tuple((now[name], index) for name, index in captured.tangents),
        same=tuple((index, now[name]) for index, name in captured.same),
    )


def _own_module(path: str) -> str:
    """The module of a task as its author knows it."""
    rule, dot, inner = path.partition(".")
    return f"{CRITERION}{dot}{inner}" if rule == "rule" else own_path(path)


def own_path(path: str) -> str:
    """A path in the model, from that in the Module around it."""
    return "" if path == "model" else path.removeprefix("model.")
