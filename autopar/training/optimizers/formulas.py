"""The step of one parameter as a function of tensors, computed by torch's own code on copies.

SGD with momentum: Sutskever et al. ("On the importance of initialization and momentum in deep learning", ICML
2013) as torch modifies it; Adam: Kingma and Ba (ICLR 2015); AMSGrad: Reddi et al. (ICLR 2018); AdamW: Loshchilov and
Hutter ("Decoupled weight decay regularization", ICLR 2019).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from ...capture.private import norm_of
from ...errors import RunError


def entries(group: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the state tensors, of the parameter's shape, that a step with this param group reads and makes."""
    if "betas" in group:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
    return ("momentum_buffer",) if group["momentum"] != 0 else ()


_Made = TypeVar("_Made")
_Given = ParamSpec("_Given")


def _apart(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """The function without autograd and autocast, as an optimizer steps though the call around it casts."""

    @functools.wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        first = next(argument for argument in args if isinstance(argument, (torch.Tensor, list)))
        tensor = first[0] if isinstance(first, list) else first
        kind = tensor.device.type
        if not torch.is_grad_enabled() and not torch.is_autocast_enabled(kind):
            return function(*args, **kwargs)
        with torch.no_grad(), torch.autocast(kind, enabled=False):
            return function(*args, **kwargs)

    return call


class Formula:
    """New parameter and new state from parameter, gradient and state: `formula(path, parameter, gradient,
    coefficient, *state)`.

    `places` has the parameter of each path as the optimizer holds it and the number of its group. Hyperparameters
    and Adam's step count are read from the live optimizer at each call; nothing that is given is changed. The
    gradient is multiplied by `coefficient` unless that is None. The results are those of `optimizer.step()` bit for
    bit where they are computed on the same device. RunError when the group now asks for other state.
    """

    def __init__(self, optimizer: Optimizer, places: Mapping[str, tuple[torch.Tensor, int]]) -> None:
        self.optimizer, self.places = optimizer, dict(places)

    def __call__(
        self,
        path: str,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        coefficient: torch.Tensor | None,
        *state: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """The new parameter, then the new state in the order of `entries`."""
        tensor, number = self.places[path]
        group = self.optimizer.param_groups[number]
        wanted = entries(group)
        if len(wanted) != len(state):
            raise RunError(
                f"param group {number} now needs {', '.join(wanted) or 'no state'} of {path}, which the planned step "
                "does not read; plan the step again after changing momentum or amsgrad"
            )
        return self._made(parameter, tensor, group, gradient, coefficient, state)

    @_apart
    def _made(
        self,
        parameter: torch.Tensor,
        tensor: torch.Tensor,
        group: Mapping[str, Any],
        gradient: torch.Tensor,
        coefficient: torch.Tensor | None,
        state: tuple[torch.Tensor, ...],
    ) -> tuple[torch.Tensor, ...]:
        own = gradient.stride() != parameter.stride() or coefficient is not None
        if coefficient is not None:
            gradient = torch.mul(gradient, coefficient, out=torch.empty_like(parameter))
        elif own:
            # Kernels over lists of tensors want one order in memory, which autograd gives `.grad` too.
            gradient = torch.empty_like(parameter).copy_(gradient)
        made = parameter.clone()
        held = [entry.clone() for entry in state]
        device = made.device
        common: dict[str, Any] = {
            "lr": _near(group["lr"], device),
            "weight_decay": _near(group["weight_decay"], device),
            "maximize": group["maximize"],
            # What torch comes to for tensors of the host, told so that it need not ask of each.
            "foreach": False if group["foreach"] is None and device.type == "cpu" else group["foreach"],
            "fused": group["fused"],
        }
        if "betas" in group:
            count = self.optimizer.state[tensor]["step"]
            # The fused kernel reads the count from its own device, the others from the host.
            count = count.to(device, copy=True) if group["fused"] else count.clone()
            first, second = group["betas"]
            adam(
                [made],
                [gradient],
                held[:1],
                held[1:2],
                held[2:],
                [count],
                amsgrad=group["amsgrad"],
                beta1=_near(first, device),
                beta2=_near(second, device),
                eps=group["eps"],
                decoupled_weight_decay=group["decoupled_weight_decay"],
                **common,
            )
            return made, *held
        if group["nesterov"] and not own and (group["foreach"] or device.type != "cpu"):
            # torch's SGD over lists adds the momentum to the gradient itself.
            gradient = gradient.clone()
        sgd(
            [made],
            [gradient],
            [*held] if held else [None],
            momentum=group["momentum"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            **common,
        )
        return made, *held


def _near(value: Any, device: torch.device) -> Any:
    """A hyperparameter where the kernels of `device` can read it: numbers and host tensors they can anyway."""
    if isinstance(value, torch.Tensor) and value.device != device and value.device.type != "cpu":
        return value.to(device)
    return value


@_apart
def norm(gradient: torch.Tensor, strides: list[int]) -> torch.Tensor:
    """The 2-norm of a gradient, a tensor of its dtype; `strides` are those autograd would give it, in whose order
    it is summed.
    """
    if gradient.stride() != tuple(strides):
        ordered = torch.empty_strided(gradient.shape, strides, dtype=gradient.dtype, device=gradient.device)
        gradient = ordered.copy_(gradient)
    return norm_of(gradient)


@_apart
def clip(norms: list[torch.Tensor], most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm over all gradients and the factor that brings it to `most` if it is more, as
    `torch.nn.utils.clip_grad_norm_` has them.
    """
    total = torch.linalg.vector_norm(torch.stack(norms), 2.0)
    return total, torch.clamp(most / (total + 1e-6), max=1.0)


FORMULAS: dict[type[Optimizer], int] = {SGD: 8, Adam: 16, AdamW: 16}
"""The optimizers whose step can be tasks, with the operations on each element of a parameter."""
