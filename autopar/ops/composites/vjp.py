"""Gradients of a call: computed again, or from the tape of the call that was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tape:
    """The tape that a forward hands its backward: a last output without memory of its own, to which the autograd graph
    of the call is tied for as long as it lives.

    Elsewhere (on another device, rejoined from parts) there is no graph, and the forward is computed again: a step
    of attention then takes 1.2 times eager's, of recurrent layers 1.4, else as long (one core of a CPU).
    `shape(*arguments)` is that output's, in bytes of what the graph keeps besides arguments and outputs, with the
    axes along which a call may be cut. `worth(*arguments)` says whether the graph keeps no more than that. The
    tensors at the places `fixed` have no gradient on it.
    """

    shape: Callable[..., Sequence[int]]
    worth: Callable[..., bool]
    fixed: tuple[int, ...] = ()

    def recording(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call with its tape."""

        def recorded(*arguments: Any) -> tuple[Tensor, ...]:
            shape = self.shape(*arguments)
            first = next(tensors(arguments))
            tape = first.new_zeros((1,) * len(shape), dtype=torch.uint8).expand(shape)
            leaves: list[Tensor] = []

            def leaf(tensor: Tensor) -> Tensor:
                free = tensor.is_floating_point() and len(leaves) not in self.fixed
                leaves.append(tensor.detach().requires_grad_(free))
                return leaves[-1]

            with torch.enable_grad():
                given = replace(arguments, leaf)
                if torch.is_inference_mode_enabled() or not self.worth(*given):
                    given = arguments
                made = _row(call(*given))
            if any(output.requires_grad for output in made):
                vars(tape)["graph"] = leaves, made
            return (*(output.detach() for output in made), tape)

        return recorded

    def fake(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The fake of the call and of its tape."""

        def made(*arguments: Any) -> tuple[Tensor, ...]:
            first = next(tensors(arguments))
            return (*_row(call(*arguments)), first.new_empty(self.shape(*arguments), dtype=torch.uint8))

        return made

    def play(
        self, outputs: Sequence[Tensor], grads: Sequence[Tensor | None], needs: Sequence[bool]
    ) -> list[Tensor] | None:
        """The gradients, None where no graph of them is tied to the last output."""
        leaves, made = vars(outputs[-1]).get("graph", ((), ()))
        wanted = [leaf for leaf, needed in zip(leaves, needs) if needed]
        if not wanted or not all(leaf.requires_grad for leaf in wanted):
            return None
        return _gradients(made, wanted, grads, retain=True)


def vjp(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    grads: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> list[Tensor]:
    """Gradients of the needed tensors among the arguments, in order, each in memory of its own.

    The function is computed again. A tensor that gets no gradient has zeros.
    """
    wanted: list[Tensor] = []
    turn = iter(needs)

    def fresh(tensor: Tensor) -> Tensor:
        copy = tensor.detach()
        if next(turn):
            wanted.append(copy.requires_grad_())
        return copy

    with torch.enable_grad():
        made = function(*replace(arguments, fresh))
    return _gradients(_row(made), wanted, grads, retain=False)


def _gradients(
    made: Sequence[Tensor], wanted: list[Tensor], grads: Sequence[Tensor | None], retain: bool
) -> list[Tensor]:
    pairs = [(output, grad) for output, grad in zip(made, grads) if grad is not None and output.requires_grad]
    if not pairs:
        return [torch.zeros_like(tensor) for tensor in wanted]
    outputs, given = zip(*pairs)
    # Autograd has one thread for each accelerator, which may be the one that waits for this task to end.
    with torch.autograd.set_multithreading_enabled(False):
        found = torch.autograd.grad(outputs, wanted, given, retain_graph=retain, allow_unused=True)
    return _apart([torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found)], given)


def _row(made: Any) -> tuple[Tensor, ...]:
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def _apart(found: list[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """The gradients, copied where one shares memory with another or with what was given."""
    seen = {tensor.untyped_storage()._cdata for tensor in given}
    for place, tensor in enumerate(found):
        memory = tensor.untyped_storage()._cdata
        if memory in seen:
            found[place] = tensor.clone()
        seen.add(memory)
    return found


def tensors(arguments: Any) -> Iterator[Tensor]:
    """The tensors of arguments in order, those in lists included."""
    for item in arguments:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from tensors(item)


def replace(arguments: Any, change: Callable[[Tensor], Any]) -> tuple[Any, ...]:
    """The arguments with each tensor changed, in order."""
    return tuple(
        change(item)
        if isinstance(item, Tensor)
        else list(replace(item, change))
        if isinstance(item, (tuple, list))
        else item
        for item in arguments
    )
