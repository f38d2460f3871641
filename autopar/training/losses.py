"""A model and its loss as one module, so that a training step is one call to capture."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from ..capture import Captured
from ..capture import autocast as casting
from ..capture.refusals import fails_alone
from ..capture.region import positional
from ..errors import CaptureError
from ..ir.display_names import CRITERION
from ..session.compare import untouched
from ..transform.divide import needed

LOSS = "loss.tangent"
"""Path of the state that holds the gradient of the loss: 1, or the scale of a GradScaler."""


@torch.compiler.allow_in_graph
def minimised(loss: torch.Tensor) -> torch.Tensor:
    """Return the loss unchanged; its call marks the loss among the results of a captured graph."""
    return loss.view_as(loss)


class _Refused(threading.local):
    """Thread-local reason why the result captured last is not a loss; "" if it is one."""

    text = ""


refused = _Refused()


@torch.compiler.assume_constant_result
def _refuse(text: str) -> None:
    # Dynamo calls this while it traces; the text of an exception in traced code would be lost.
    refused.text = text


class Loss(nn.Module):
    """`forward(inputs, *targets)` is `criterion(model(inputs), *targets)`, or `forward(*batch)` is `step_fn(model,
    *batch)`.

    A tuple of inputs is unpacked as positional arguments, a dict as keywords; anything else is one argument.
    Returns the loss, a tuple that begins with it, or a dict with "loss"; everything but the loss is detached.
    """

    def __init__(
        self, model: nn.Module, criterion: Callable[..., Any] | None, step_fn: Callable[..., Any] | None
    ) -> None:
        super().__init__()
        # Messages and pictures show the name of the model's class.
        name = type(model).__name__
        self.__class__ = type(name, (type(self),), {"forward": _form(step_fn is None)})
        self.model = model
        rule, role = (criterion, "criterion") if step_fn is None else (step_fn, "step_fn")
        assert rule is not None
        called = getattr(rule, "__name__", type(rule).__name__)
        self.called = f"the {role}{'' if called == '<lambda>' else f' {called}'} of {name}"
        """Name of the user's function and its model, for messages."""
        self.rule = rule if isinstance(rule, nn.Module) else _Rule(rule)
        names = {path.partition(".")[0] for path, _ in (*model.named_parameters(), *model.named_buffers())}
        self.path = CRITERION if CRITERION not in names else f"{CRITERION}_"
        """Path of the function's own tensors; the model has no such path."""
        arguments = positional(rule)[1:]
        self.arguments = (
            arguments
            if criterion is None
            else ["inputs", *(f"targets.{number}" for number in range(len(arguments)))]
        )
        """Names of the positional arguments."""

    @property
    def function(self) -> Callable[..., Any]:
        """The criterion or `step_fn` as the user gave it."""
        function: Callable[..., Any] = self.rule.function[0] if isinstance(self.rule, _Rule) else self.rule
        return function

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yield all modules by the paths that the user knows: the model's as in the model, the function's
        below "criterion"."""
        memo = set() if memo is None else memo
        yield prefix, self
        yield from self.model.named_modules(memo, prefix, remove_duplicate)
        rule = f"{prefix}.{self.path}" if prefix else self.path
        yield from self.rule.named_modules(memo, rule, remove_duplicate)

    def _loss_alone(self, output: Any) -> Any:
        """Return the output with everything but the loss detached. Raises CaptureError if there is no loss in it."""
        candidate = output
        if isinstance(output, Mapping):
            candidate = output.get("loss")
        elif isinstance(output, (tuple, list)):
            candidate = output[0] if output else None
        if not isinstance(candidate, torch.Tensor):
            _refuse(
                f"no loss came back, but {_described(output)}; return the loss, a tensor, or "
                '(loss, more, …) or {"loss": loss, …}'
            )
            raise CaptureError("no loss")
        if candidate.numel() != 1:
            _refuse(
                f"the loss is of shape {list(candidate.shape)}, and only one number can be minimised; take its "
                ".mean() or .sum()"
            )
            raise CaptureError("no loss")
        loss = minimised(candidate)

        def detached(leaf: Any) -> Any:
            if leaf is candidate:
                return loss
            return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf

        return pytree.tree_map(detached, output)

    def raise_own(self, batch: Sequence[Any], autocast: torch.dtype | None) -> None:
        """Run a call as written, for the error that the user's code raises; restore buffers and generators.

        Raises CaptureError, also of the class of that error; none if the call returns.
        """
        try:
            with untouched(self), torch.enable_grad(), casting.on(batch, autocast):
                self(*batch)
        except CaptureError:
            pass  # of `_loss_alone`, not of the user's code
        except Exception as error:
            whose = self.called if in_rule(traceback.extract_tb(error.__traceback__)) else type(self).__name__
            raise fails_alone(whose, error) from error


class _Rule(nn.Module):
    """The user's function as a module, to distinguish its tasks from the model's."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = (function,)

    def forward(self, *args: Any) -> Any:
        return self.function[0](*args)


def _described(output: Any) -> str:
    """Return a description of an output that is not a loss."""
    if isinstance(output, Mapping):
        if "loss" not in output:
            return f'a {type(output).__name__} without "loss", of {", ".join(map(repr, output)) or "nothing"}'
        return f'a {type(output).__name__} with {type(output["loss"]).__name__} for "loss"'
    if isinstance(output, (tuple, list)):
        first = f"that begins with {type(output[0]).__name__}" if output else "of nothing"
        return f"a {type(output).__name__} {first}"
    if isinstance(output, (int, float, torch.SymFloat, torch.SymInt)):
        return "a Python number, which has no gradient"
    return type(output).__name__


def _form(of_criterion: bool) -> Callable[..., Any]:
    """Return the forward, with the argument names that the user knows from messages."""

    def of_targets(self: Loss, inputs: Any, *targets: Any) -> Any:
        if isinstance(inputs, tuple):
            outputs = self.model(*inputs)
        elif isinstance(inputs, dict):
            outputs = self.model(**inputs)
        else:
            outputs = self.model(inputs)
        return self._loss_alone(self.rule(outputs, *targets))

    def of_batch(self: Loss, *batch: Any) -> Any:
        return self._loss_alone(self.rule(self.model, *batch))

    form = of_targets if of_criterion else of_batch
    # Python's message about missing arguments shows this name.
    form.__qualname__ = "step"
    return form


def the_loss(module: fx.GraphModule, name: str) -> None:
    """Make the loss the only result of a captured graph that requires grad; other results are detached.

    Raises CaptureError if the loss depends on no parameter that requires grad.
    """
    graph = module.graph
    end = next(iter(reversed(graph.nodes)))
    marked = [node for node in graph.nodes if node.target is minimised]
    losses = {node.args[0] for node in marked}
    for node in marked:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    if not any(_differentiable(node) and node.op != "placeholder" for node in losses):
        raise CaptureError(
            f"{name}: the loss depends on no parameter that requires a gradient, so there is nothing to train; "
            "set requires_grad on what is to be trained, and do not detach what leads to the loss"
        )
    results = []
    for node in end.args[0]:
        if _differentiable(node) and node not in losses:
            with graph.inserting_before(end):
                detached = graph.call_method("detach", (node,))
            detached.meta = {**node.meta, "example_value": node.meta["example_value"].detach()}
            node = detached
        results.append(node)
    end.args = (tuple(results),)
    module.recompile()


def _differentiable(node: Any) -> bool:
    fake = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return isinstance(fake, torch.Tensor) and fake.requires_grad


def resident_tangent(captured: Captured, owner: dict[str, Any]) -> Captured:
    """Return the joint graph with the gradient of the loss as the state `owner["tangent"]`.

    Sets this state to 1, in the loss's dtype and on the home device.
    """
    graph = captured.graph
    ((tangent, _),) = captured.tangents
    value = graph.value[tangent]
    owner["tangent"] = torch.ones(value.shape, dtype=getattr(torch, value.dtype), device=captured.home)
    values = tuple(
        replace(each, kind="state", path=LOSS) if each.name == tangent else each for each in graph.values
    )
    inputs = tuple(name for name in graph.inputs if name != tangent)
    graph = replace(graph, values=values, inputs=inputs, state=(*graph.state, tangent))
    state = {**captured.state, tangent: (owner, "tangent")}
    return replace(captured, graph=graph, state=state, tangents=())


def only_gradients_of(captured: Captured, parameters: set[int]) -> Captured:
    """Return the joint graph with only the gradients of these parameters (by `id`), without the tasks that
    only other gradients need."""
    graph, state = captured.graph, captured.state
    gradients = tuple(
        (target, gradient)
        for target, gradient in captured.gradients
        if target in state and id(state[target][0][state[target][1]]) in parameters
    )
    if len(gradients) == len(captured.gradients):
        return captured
    count = len(graph.outputs) - len(captured.gradients)
    outputs = (*graph.outputs[:count], *(gradient for _, gradient in gradients))
    needs = [*outputs, *(gradient for gradient, _ in graph.updates)]
    tasks = needed(graph.tasks, needs, lambda task: task.phase == "forward")
    return replace(captured, graph=graph.with_tasks(tasks, outputs=outputs), gradients=gradients)


def in_rule(stack: Iterable[traceback.FrameSummary]) -> bool:
    """Return True if the stack of an error is in the user's function, not in the model."""
    frames = [frame for frame in stack if frame.filename == __file__]
    return bool(frames) and any(
        text in (frames[-1].line or "") for text in ("self.rule(", "self.function[0](")
    )
