"""One step of parameters that share a param group, in place, by torch's own code: alone, in lists, or as one tensor.

SGD with momentum: Sutskever et al. ("On the importance of initialization and momentum in deep learning", ICML
2013) as torch modifies it; Adam: Kingma and Ba (ICLR 2015); AMSGrad: Reddi et al. (ICLR 2018); AdamW: Loshchilov and
Hutter ("Decoupled weight decay regularization", ICLR 2019).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

Column = Sequence[torch.Tensor]
"""One tensor for each parameter."""


def entries(group: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the state tensors, of the parameter's shape, that a step with this param group reads and makes."""
    if "betas" in group:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
    return ("momentum_buffer",) if group["momentum"] != 0 else ()


def step(
    group: Mapping[str, Any],
    parameters: Column,
    gradients: Column,
    state: Sequence[Column],
    counts: Column,
    own: bool,
) -> None:
    """Change parameters and `state`, a column for each of `entries`, in place. Gradients are changed only where they
    are our `own`. `counts` are Adam's steps so far, which stay as they are.
    """
    device = parameters[0].device
    common: dict[str, Any] = {
        "lr": _near(group["lr"], device),
        "weight_decay": _near(group["weight_decay"], device),
        "maximize": group["maximize"],
        # What torch comes to for tensors of the host, told so that it need not ask of each.
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
    if group["nesterov"] and not own and (group["foreach"] or device.type != "cpu"):
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
    """A hyperparameter where the kernels of `device` can read it: numbers and host tensors they can anyway."""
    if isinstance(value, torch.Tensor) and value.device != device and value.device.type != "cpu":
        return value.to(device)
    return value


def alike(group: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a step gives an element the same bits wherever in a tensor it stands, so that tensors may be one.

    Kernels round vectors and what is left over at the end of a tensor differently in some dtypes and builds of
    torch, so they are tried, once for each combination of flags.
    """
    numbers = [value for item in group.values() for value in (item if isinstance(item, tuple) else (item,))]
    if any(isinstance(value, torch.Tensor) for value in numbers):
        return False
    flags = tuple((name, value) for name, value in group.items() if value is None or isinstance(value, bool))
    return _tried(flags, "betas" in group, bool(group.get("momentum")), dtype, device)


@functools.cache
def _tried(
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

    def made(sizes: Sequence[int]) -> list[torch.Tensor]:
        parameter, gradient, *state = ([*column.clone().split(sizes)] for column in whole)
        counts = [torch.tensor(3.0, device="cpu") for _ in sizes]
        step(group, parameter, gradient, state, counts, own=True)
        return [torch.cat(column) for column in (parameter, *state)]

    return all(map(torch.equal, made([*sizes]), made([total])))
