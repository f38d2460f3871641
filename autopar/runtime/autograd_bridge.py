"""The `autograd.Function` that joins a forward program and its backward program.

As in eager, gradients through an unused output are None and cost nothing. Saved values go through
`save_for_backward`: weights changed in between raise, and saved-tensor hooks work. Each call owns its saved
values, so two forwards may precede one backward. A backward program has no derivative: `create_graph=True`
runs the call again in eager for its gradients or, if that is impossible, makes gradients that raise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from ..capture.torch_private import keeps_graph, memory, packs_saved, raising
from ..ops.composites.define import drawn

EagerCall: TypeAlias = Callable[[Mapping[int, torch.Tensor]], Sequence[torch.Tensor] | None]
"""A function that repeats a call in eager, with other tensors in place of the tensors with these ids; returns the
outputs, None if a tensor that the call takes has changed since."""


class _Bridge(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, training: Any, inputs: Sequence[Any], eager: EagerCall | None, *leaves: torch.Tensor
    ) -> tuple[Any, ...]:
        """Return the outputs of the forward half, and save what its backward needs."""
        ctx.set_materialize_grads(False)
        outputs, saved, held = training.forward(inputs)
        ctx.training, ctx.saved, ctx.leaves, ctx.eager = training, len(saved), leaves, eager
        # Keep the tensors themselves, since saved-tensor hooks may return copies.
        ctx.held = held
        ctx.save_for_backward(*saved, *(tensor for tensor, _ in held))
        # A copy of a tape has no graph.
        ctx.drawn = drawn(saved) if packs_saved() else {}
        # Without saved values, autograd allows another backward.
        ctx.once = bool(saved or held)
        smooth = {id(tensor) for tensor in training.smooth(outputs)}
        # Autograd would give a gradient to any view of an output that has one.
        outputs = [
            tensor.detach() if id(tensor) not in smooth and tensor._is_view() else tensor
            for tensor in outputs
        ]
        ctx.mark_non_differentiable(*(tensor for tensor in outputs if id(tensor) not in smooth))
        return tuple(outputs)

    @staticmethod
    @torch.compiler.disable
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        """Return the gradients of the leaves; None for arguments without one."""
        if all(tangent is None for tangent in tangents):
            return (None, None, None, *(None for _ in ctx.needs_input_grad[3:]))
        saved = ctx.saved_tensors[: ctx.saved] if ctx.once else ()
        for place, graph in ctx.drawn.items():
            vars(saved[place])["graph"] = graph
        gradients = _gradients(ctx, saved, tangents)
        if ctx.once and not keeps_graph():
            # Released like the saved values: a loss that is kept for a log would keep the inputs of its call.
            ctx.eager = ctx.leaves = ctx.held = None
            ctx.drawn = {}
        return None, None, None, *gradients


bridge = _Bridge.apply
"""`bridge(training, inputs, eager, *leaves)`: the outputs of one forward, as an autograd function of the leaves.
`training` is a `session.own_loop.Training`."""


def _gradients(
    ctx: Any, saved: Sequence[Any], tangents: Sequence[torch.Tensor | None]
) -> Sequence[torch.Tensor | None]:
    """Return the gradients of the leaves for what the forward has saved."""
    if torch.is_grad_enabled() and ctx.eager is not None:
        # Not the leaves: autograd calls their hooks for the gradients that this function returns.
        copies = [leaf.view_as(leaf) for leaf in ctx.leaves]
        outputs = ctx.eager({id(leaf): view for leaf, view in zip(ctx.leaves, copies)})
        if outputs is not None:
            smooth, directions = zip(*ctx.training.outputs_with_tangents(outputs, tangents))
            return torch.autograd.grad(smooth, copies, directions, create_graph=True, allow_unused=True)
    with torch.no_grad():
        gradients: Sequence[torch.Tensor | None] = ctx.training.backward(saved, ctx.held, tangents)
    if torch.is_grad_enabled():
        gradients = _not_twice(gradients, (*tangents, *ctx.leaves))
    return gradients


def memory_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key of a dense tensor's memory and layout: equal for aliases until the memory is replaced."""
    if tensor.layout is not torch.strided:
        return ()
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.is_neg(), tensor.is_conj()


def unalias(outputs: Sequence[Any], inputs: Sequence[Any], saved: Sequence[Any]) -> list[Any]:
    """Return outputs that the caller may change in place, as in eager; autograd forbids that for views made outside
    autograd.

    Outputs that share memory with `inputs` are copied, as are views that share memory with `saved` tensors. Views of
    one another stay views, so changing one raises.
    """
    ids = set(map(id, inputs))
    # If all outputs are new, skip the search through all the state of the model.
    if not any(isinstance(item, torch.Tensor) and (item._is_view() or id(item) in ids) for item in outputs):
        return list(outputs)
    read, needed = {memory(item) for item in inputs}, {memory(item) for item in saved}
    count = Counter(map(memory, outputs))
    results: list[Any] = []
    for value in outputs:
        place = memory(value)
        if place is not None and (place in read or (place in needed and value._is_view())):
            value = value.clone()
        elif place is not None and value._is_view() and count[place] == 1:
            if value.is_conj() or value.is_neg():
                # The memory of a conjugated or negated view does not hold the values of the view.
                value = value.resolve_conj().resolve_neg()
            else:
                form = value.storage_offset(), value.shape, value.stride()
                value = value.new_empty(0).set_(value.untyped_storage(), *form)
        results.append(value)
    return results


def _not_twice(
    gradients: Sequence[torch.Tensor | None], sources: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Return gradients that raise when differentiated with respect to any of `sources`, instead of wrongly
    counting as constants.

    (`once_differentiable` lets them pass as constants if no tangent requires grad.)
    """
    tensors = [gradient.detach() for gradient in gradients if gradient is not None]
    tensors += [source for source in sources if source is not None and source.requires_grad]
    text = (
        "there is no second derivative of a compiled model that draws random numbers, changes buffers or runs under "
        "autocast, or whose weights or inputs have changed since: differentiate twice through the plain model, "
        "fast.module"
    )
    results = iter(raising(text, tuple(tensors)))
    return [None if gradient is None else next(results) for gradient in gradients]
