"""The update of parameters as a function of tensors: torch's own code on copies, no autograd or autocast.

SGD with momentum: Sutskever et al. ("On the importance of initialization and momentum in deep learning", ICML 2013) as
torch modifies it; Adam: Kingma and Ba (ICLR 2015); AMSGrad: Reddi et al. (ICLR 2018); AdamW: Loshchilov and Hutter
("Decoupled weight decay regularization", ICLR 2019).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from ..capture.torch_private import norm_of
from ..runtime.flat_transfer import joined, pieces

Column = Sequence[torch.Tensor]
"""One tensor for each parameter."""


def formula(
    optimizer: Optimizer, parameters: Mapping[str, torch.Tensor], in_place: bool = False
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function of items `(path, number, parameter, gradient, coefficient, *state)`, all of the param
    group `number`, that computes new parameters and state.

    For one parameter it returns the new parameter and state tensors in the order of `entries`; for several,
    each of these as one flat tensor (`runtime.flat_transfer.joined`). It changes no argument; with
    `in_place`, for one parameter, it changes and returns the parameter and its state. Each call reads
    hyperparameters and Adam's step counts from the live optimizer, the counts by `parameters`. Gradients are
    multiplied by the coefficient, which all items share, unless it is None. Results are bitwise equal to
    `optimizer.step()` on the same device.
    """

    def update(*items: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        paths, (number, *_), before, gradients, (coefficient, *_), *state = zip(*items)
        group = optimizer.param_groups[number]
        counts = [optimizer.state[parameters[path]]["step"] for path in paths] if "betas" in group else []
        if len(items) > 1:
            after, gradient, *entries_after = map(joined, (before, gradients, *state))
            if coefficient is not None:
                gradient.mul_(coefficient)
            if not alike(group, after.dtype, after.device) or not _equal(counts):
                each, grads, *rest = (pieces(flat, before) for flat in (after, gradient, *entries_after))
                step(group, each, grads, rest, counts, may_overwrite=True)
                return after, *entries_after
            counts, may_overwrite = counts[:1], True
        else:
            (parameter,), (gradient,) = before, gradients
            may_overwrite = gradient.stride() != parameter.stride() or coefficient is not None
            if coefficient is not None:
                gradient = torch.mul(gradient, coefficient, out=torch.empty_like(parameter))
            elif may_overwrite:
                # Fused kernels assume that all tensors have the same layout, as autograd ensures for `.grad`.
                gradient = torch.empty_like(parameter).copy_(gradient)
            after, *entries_after = (parameter, *(entry for (entry,) in state))
            if not in_place:
                after, *entries_after = (tensor.clone() for tensor in (after, *entries_after))
        step(group, [after], [gradient], [[entry] for entry in entries_after], counts, may_overwrite)
        if in_place and group["fused"]:
            # Fused kernels do not increment the versions by which replicas elsewhere notice the change.
            torch.autograd.graph.increment_version([after, *entries_after])
        return after, *entries_after

    return update


def _equal(counts: Column) -> bool:
    """Return True if step counts are equal, as far as the host can tell."""
    return all(count.device.type == "cpu" for count in counts) and len({count.item() for count in counts}) < 2


def norm(gradient: torch.Tensor, strides: list[int]) -> torch.Tensor:
    """Return the 2-norm of a gradient as a tensor of its dtype, summed in the order of `strides`, the gradient's in
    autograd."""
    if gradient.stride() != tuple(strides):
        ordered = torch.empty_strided(gradient.shape, strides, dtype=gradient.dtype, device=gradient.device)
        gradient = ordered.copy_(gradient)
    return norm_of(gradient)


def clip(norms: list[torch.Tensor], most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm over all gradients and the factor that limits it to `most`, as in
    `torch.nn.utils.clip_grad_norm_`."""
    total = torch.linalg.vector_norm(torch.stack(norms), 2.0)
    return total, torch.clamp(most / (total + 1e-6), max=1.0)


FORMULAS: dict[type[Optimizer], int] = {SGD: 8, Adam: 16, AdamW: 16}
"""Optimizers whose step can be tasks, with the operations for each element of a parameter."""


# One step of parameters that share a param group, in place, by torch's own code: alone, in lists, or as one tensor
# -------------------------------------------------------------------------------------------------


def entries(group: Mapping[str, Any]) -> tuple[str, ...]:
    """Return names of the state tensors, of the parameter's shape, that a step with this param group reads and
    makes."""
    if "betas" in group:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
    return ("momentum_buffer",) if group["momentum"] != 0 else ()


def step(
    group: Mapping[str, Any],
    parameters: Column,
    gradients: Column,
    state: Sequence[Column],
    counts: Column,
    may_overwrite: bool,
) -> None:
    """Update parameters and `state`, a column for each of `entries`, in place.

    `may_overwrite`: gradients may be changed too. `counts`: Adam's steps so far, not changed.
    """
    device = parameters[0].device
    common: dict[str, Any] = {
        "lr": _near(group["lr"], device),
        "weight_decay": _near(group["weight_decay"], device),
        "maximize": group["maximize"],
        # torch would choose the same for tensors of the host, but only after checking each of them.
        "foreach": False if group["foreach"] is None and device.type == "cpu" else group["foreach"],
        "fused": group["fused"],
    }
    if "betas" in group:
        # The fused kernel reads the count from its own device, the others from the host.
        steps = [count.to(device, copy=True) if group["fused"] else count.clone() for count in counts]
        first, second = group["betas"]
        adam(
            [*parameters],
            [*gradients],
            [*state[0]],
            [*state[1]],
            [*state[2]] if group["amsgrad"] else [],
            steps,
            amsgrad=group["amsgrad"],
            beta1=_near(first, device),
            beta2=_near(second, device),
            eps=group["eps"],
            decoupled_weight_decay=group["decoupled_weight_decay"],
            **common,
        )
        return
    if group["nesterov"] and not may_overwrite and (group["foreach"] or device.type != "cpu"):
        # torch's SGD over lists adds the momentum to the gradient itself.
        gradients = [gradient.clone() for gradient in gradients]
    sgd(
        [*parameters],
        [*gradients],
        [*state[0]] if state else [None for _ in parameters],
        momentum=group["momentum"],
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        **common,
    )


def _near(value: Any, device: torch.device) -> Any:
    """Return a hyperparameter where kernels of `device` can read it; numbers and host tensors unchanged."""
    if isinstance(value, torch.Tensor) and value.device != device and value.device.type != "cpu":
        return value.to(device)
    return value


def alike(group: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if the update of an element is bitwise independent of its position, so that tensors may be joined.

    In some dtypes and builds of torch, kernels round vectors and the remainder of a tensor differently. Each
    combination of flags is tested once.
    """
    numbers = [value for item in group.values() for value in (item if isinstance(item, tuple) else (item,))]
    if any(isinstance(value, torch.Tensor) for value in numbers):
        return False
    flags = tuple((name, value) for name, value in group.items() if value is None or isinstance(value, bool))
    return _rounds_alike(flags, "betas" in group, bool(group.get("momentum")), dtype, device)


@functools.cache
def _rounds_alike(
    flags: tuple[tuple[str, bool | None], ...],
    adaptive: bool,
    momentum: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> bool:
    group: dict[str, Any] = {**dict(flags), "lr": 0.01, "weight_decay": 0.1}
    group |= (
        {"betas": (0.9, 0.999), "eps": 1e-8}
        if adaptive
        else {"momentum": 0.9 if momentum else 0, "dampening": 0.1}
    )
    sizes = range(1, 70)
    total = sum(sizes)
    angles = torch.arange(total * (2 + len(entries(group))), dtype=torch.float64, device=device)
    whole = (angles * 0.7).sin().square().to(dtype).split(total)

    def results(sizes: Sequence[int]) -> list[torch.Tensor]:
        parameter, gradient, *state = ([*column.clone().split(sizes)] for column in whole)
        counts = [torch.tensor(3.0, device="cpu") for _ in sizes]
        step(group, parameter, gradient, state, counts, may_overwrite=True)
        return [torch.cat(column) for column in (parameter, *state)]

    return all(map(torch.equal, results([*sizes]), results([total])))
