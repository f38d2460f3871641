"""The graph of a training step that is yet to be taken."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ..capture import Captured
from ..capture.ahead import ahead
from ..capture.torch_private import FakeTensorMode
from ..errors import CaptureError, PlanError
from ..session.own_loop import whole
from . import optimizers
from .formulas import FORMULAS, entries
from .losses import Loss, only_gradients_of, refused, resident_tangent, the_loss


def step_ahead(
    model: nn.Module,
    criterion: Callable[..., Any] | None,
    optimizer: torch.optim.Optimizer | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[Captured, list[torch.Tensor]]:
    """Return the graph of the step that `train_step` takes with `args`, and its input tensors.

    `args`: the inputs of the model, then the targets. Without a criterion they are only the model's inputs,
    and a task stands for the user's own loss between forward and backward. Without an optimizer the step ends
    with the gradients. Optimizer state that does not exist yet counts as existing. Raises CaptureError, and
    PlanError if the update cannot be planned.
    """
    with torch.enable_grad():
        captured, tensors = _captured(model, criterion, args, kwargs)
    if optimizer is None:
        return captured, tensors
    captured = only_gradients_of(
        captured, {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    )
    parameters = optimizers.trained_parameters(captured)
    ready = _ready(optimizer, parameters)
    reason = optimizers.obstacle(ready, parameters)
    if reason or not parameters:
        raise PlanError(
            f"the step of {type(optimizer).__name__} cannot be planned: "
            f"{reason or 'it holds no parameter that has a gradient'}; plan without optimizer="
        )
    return optimizers.updated(captured, ready), tensors


def _captured(
    model: nn.Module, criterion: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Captured, list[torch.Tensor]]:
    """Return the joint graph of a call, and its input tensors."""
    name = type(model).__name__
    if criterion is None:
        captured, tensors = ahead(model, args, kwargs)
        if not captured.tangents:
            raise CaptureError(
                f"{name}: nothing that comes back requires grad, so that there is nothing to train; set requires_grad "
                "on what is to be trained"
            )
        return whole(captured), tensors
    if kwargs:
        raise CaptureError(
            f"{name}: with a criterion example_inputs are those of a training step, (inputs, *targets); give keywords "
            "of the model as a dict in the place of the inputs"
        )
    loss, refused.text = Loss(model, criterion, None), ""
    try:
        captured, tensors = ahead(loss, args, {}, partial(the_loss, name=name))
    except CaptureError as error:
        if refused.text:
            raise CaptureError(f"{name}: {refused.text}") from None
        raise error
    return resident_tangent(captured, {}), tensors


def _ready(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]) -> torch.optim.Optimizer:
    """Return a copy of the optimizer as after its first step; state that it lacked has no memory."""
    twin = copy.copy(optimizer)
    twin.state = {parameter: dict(state) for parameter, state in optimizer.state.items()}  # type: ignore[assignment]
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    for parameter in parameters.values():
        group, state = groups.get(id(parameter), {}), twin.state.setdefault(parameter, {})
        names = entries(group) if type(optimizer) in FORMULAS and group else ()
        for entry in names:
            state.setdefault(entry, _like(parameter))
        if "betas" in group:
            state.setdefault("step", torch.tensor(0.0))
    return twin


def _like(parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same form and device, without memory."""
    if parameter.is_meta:
        return torch.empty_like(parameter)
    with FakeTensorMode():
        return torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
