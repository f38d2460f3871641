"""Why an optimizer's step cannot be part of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ...capture.torch_private import step_hooks
from .formulas import FORMULAS, entries


def obstacle(optimizer: Optimizer, parameters: Mapping[str, torch.Tensor]) -> str:
    """Why the step of `optimizer` cannot be tasks of a graph, as one phrase; "" when it can.

    `parameters` are those that get a gradient, by path (`trained`). Before the first step of all it cannot, since
    torch makes an optimizer's state then. Linear in parameters; cheap enough to ask before every call.
    """
    return (
        _of_optimizer(optimizer)
        or next(filter(None, map(_of_group, range(len(optimizer.param_groups)), optimizer.param_groups)), "")
        or _of_parameters(optimizer, parameters)
    )


def _of_optimizer(optimizer: Optimizer) -> str:
    kind = type(optimizer)
    if kind not in FORMULAS:
        return f"{kind.__name__} is not torch's own {', '.join(known.__name__ for known in FORMULAS)}"
    hooks = [hook for hook in step_hooks(optimizer) if not _ours(hook)]
    if hooks:
        name = getattr(hooks[0], "__qualname__", type(hooks[0]).__qualname__)
        return f"the hook {name} is called at each step of the optimizer"
    step = vars(optimizer).get("step")
    if step is not None and not (
        getattr(step, "_wrapped_by_lr_sched", False) and getattr(step, "__wrapped__", None) is kind.step
    ):
        return f"the step method of this {kind.__name__} has been replaced"
    if (
        getattr(optimizer, "grad_scale", None) is not None
        or getattr(optimizer, "found_inf", None) is not None
    ):
        return "a GradScaler has set the optimizer's grad_scale"
    return ""


def _ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


def _of_group(number: int, group: dict[str, Any]) -> str:
    for flag in ("capturable", "differentiable"):
        if group.get(flag):
            return f"param group {number} is {flag}"
    for name, value in group.items():
        if name != "params":
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, torch.Tensor) and item.requires_grad:
                    return f"{name} of param group {number} requires grad"
    if group["foreach"] and isinstance(group["lr"], torch.Tensor) and "betas" in group:
        return f"torch refuses foreach with the lr of param group {number}, which is a tensor"
    return ""


def _of_parameters(optimizer: Optimizer, parameters: Mapping[str, torch.Tensor]) -> str:
    paths = {id(tensor): path for path, tensor in parameters.items()}
    groups: dict[int, dict[str, Any]] = {}
    for number, group in enumerate(optimizer.param_groups):
        for position, tensor in enumerate(group["params"]):
            if id(tensor) in groups:
                name = paths.get(id(tensor), f"parameter {position} of param group {number}")
                return f"{name} is in the optimizer's param groups twice"
            groups[id(tensor)] = group
            if tensor.grad is not None and id(tensor) not in paths:
                return f"parameter {position} of param group {number} has a gradient that this model does not give"
    state = optimizer.state
    for path, tensor in parameters.items():
        if id(tensor) not in groups:
            return f"{path} is in none of the optimizer's param groups"
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return f"{path} is no plain tensor but a {type(tensor).__name__} of layout {tensor.layout}"
        if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
            return f"{path} has a hook, which wants its gradient"
        if not tensor.is_floating_point():
            return f"{path} is {str(tensor.dtype).removeprefix('torch.')}, not floating point"
        if tensor.grad is not None and tensor.grad.layout is not torch.strided:
            return f"{path} has a sparse gradient"
        held, group = state.get(tensor, {}), groups[id(tensor)]
        wanted = entries(group)
        if (
            group["fused"]
            and "momentum_buffer" in wanted
            and tensor.device.type == "cpu"
            and tensor.itemsize == 2
        ):
            # Its kernel leaves part of a vector undefined, as two steps from one state show.
            return f"torch's fused SGD with momentum is not reproducible in {tensor.dtype} on a CPU ({path})"
        for entry in (*wanted, "step") if "betas" in group else wanted:
            if not isinstance(held.get(entry), torch.Tensor):
                return f"the optimizer has no {entry} of {path} yet"
    return ""
