"""The step of parameters as a function of tensors, computed by torch's own code on copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from ...capture import autocast as casting
from ...capture.torch_private import norm_of
from ...errors import RunError
from ...runtime.flat_transfer import joined, pieces
from .kernels import Column, alike, entries, step


class Stepped(NamedTuple):
    """Parameters of one param group before their step: a column for each of `entries` in `state`, Adam's step counts,
    and what gradients are multiplied by, if by anything."""

    parameters: Column
    gradients: Column
    coefficient: torch.Tensor | None
    state: Sequence[Column]
    group: Mapping[str, Any]
    counts: Column


class Formula:
    """New parameters and new state from parameters, gradients and state: `formula(*items)`, each item `(path, number,
    parameter, gradient, coefficient, *state)`; all are of the param group `number`.

    One parameter gives itself and its state, each a tensor; several give the same, each as one flat tensor of all of
    them (`runtime.flat.joined`), and share the coefficient. Hyperparameters and Adam's step counts are read from
    the live optimizer at each call, the counts by the parameters it holds, which `parameters` has by path; nothing
    that is given is changed. Gradients are multiplied by the coefficient unless that is None. The results are those
    of `optimizer.step()` bit for bit where they are computed on the same device. RunError when the group now asks
    for other state.
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, torch.Tensor]) -> None:
        self.optimizer, self.parameters = optimizer, dict(parameters)

    def __call__(self, *items: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The new parameters, then the new state in the order of `entries`."""
        paths, numbers, parameters, gradients, coefficients, *state = (list(column) for column in zip(*items))
        group = self.optimizer.param_groups[numbers[0]]
        wanted = entries(group)
        if len(wanted) != len(state):
            raise RunError(
                f"param group {numbers[0]} now needs {', '.join(wanted) or 'no state'} of {paths[0]}, which the "
                "planned step does not read; plan the step again after changing momentum or amsgrad"
            )
        held = [self.optimizer.state[self.parameters[path]] for path in paths] if "betas" in group else []
        counts = [entry["step"] for entry in held]
        given = Stepped(parameters, gradients, coefficients[0], state, group, counts)
        with _as_optimizers_step(parameters[0]):
            return _one(given) if len(items) == 1 else _several(given)


def _one(given: Stepped) -> tuple[torch.Tensor, ...]:
    (parameter,), (gradient,) = given.parameters, given.gradients
    own = gradient.stride() != parameter.stride() or given.coefficient is not None
    if given.coefficient is not None:
        gradient = torch.mul(gradient, given.coefficient, out=torch.empty_like(parameter))
    elif own:
        # Fused kernels take all tensors to be laid out alike, as autograd has `.grad` be.
        gradient = torch.empty_like(parameter).copy_(gradient)
    made, held = parameter.clone(), [entry.clone() for (entry,) in given.state]
    step(given.group, [made], [gradient], [[entry] for entry in held], given.counts, own)
    return made, *held


def _several(given: Stepped) -> tuple[torch.Tensor, ...]:
    group, counts = given.group, given.counts
    made, gradient, *held = map(joined, (given.parameters, given.gradients, *given.state))
    if given.coefficient is not None:
        gradient.mul_(given.coefficient)
    if alike(group, made.dtype, made.device) and _equal(counts):
        step(group, [made], [gradient], [[entry] for entry in held], counts[:1], own=True)
    else:
        new, grads, *rest = (pieces(flat, given.parameters) for flat in (made, gradient, *held))
        step(group, new, grads, rest, counts, own=True)
    return made, *held


@contextmanager
def _as_optimizers_step(tensor: torch.Tensor) -> Iterator[None]:
    """Without autograd, and without the autocast that the call around may have for the forward."""
    kind = tensor.device.type
    if not torch.is_grad_enabled() and not casting.enabled(kind):
        yield
        return
    with torch.no_grad(), casting.off((kind,)):
        yield


def _equal(counts: Column) -> bool:
    """Whether step counts are the same, as far as the host can tell."""
    return all(count.device.type == "cpu" for count in counts) and len({count.item() for count in counts}) < 2


def norm(gradient: torch.Tensor, strides: list[int]) -> torch.Tensor:
    """The 2-norm of a gradient, a tensor of its dtype; `strides` are those autograd would give it, in whose order
    it is summed.
    """
    with _as_optimizers_step(gradient):
        if gradient.stride() != tuple(strides):
            ordered = torch.empty_strided(
                gradient.shape, strides, dtype=gradient.dtype, device=gradient.device
            )
            gradient = ordered.copy_(gradient)
        return norm_of(gradient)


def clip(norms: list[torch.Tensor], most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm over all gradients and the factor that brings it to `most` if it is more, as
    `torch.nn.utils.clip_grad_norm_` has them.
    """
    with _as_optimizers_step(norms[0]):
        total = torch.linalg.vector_norm(torch.stack(norms), 2.0)
        return total, torch.clamp(most / (total + 1e-6), max=1.0)


FORMULAS: dict[type[Optimizer], int] = {SGD: 8, Adam: 16, AdamW: 16}
"""The optimizers whose step can be tasks, with the operations on each element of a parameter."""
