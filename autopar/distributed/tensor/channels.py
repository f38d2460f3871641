"""Convolutions and norms split by channels over ranks, for which `torch.distributed.tensor.parallel` has no style.

Weights are DTensors, so that optimizers and checkpoints handle them like those of linears; the computation uses local
tensors, because DTensor splits a convolution along space, not channels.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Role: TypeAlias = Literal["column", "joined", "inner", "row"]


def split_channels(module: nn.Module, mesh: DeviceMesh, role: Role) -> None:
    """Split a convolution, a batch norm or a group norm by channels, in place.

    `column`: part of the outputs, from all inputs; `joined`: the same, then gathered on all ranks; `inner`: part of
    the channels, or groups, of inputs and outputs; `row`: part of the inputs, with an all-reduce of the outputs.
    """
    for name, parameter in module.named_parameters(recurse=False):
        place = Shard(0) if role != "row" else Shard(1) if name == "weight" else Replicate()
        tensor = distribute_tensor(parameter, mesh, [place])
        module.register_parameter(name, nn.Parameter(tensor, parameter.requires_grad))
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.dim():
            module._buffers[name] = distribute_tensor(buffer, mesh, [Shard(0)])
    grouped = ("groups", "num_groups") if role == "inner" else ()
    part = {name: getattr(module, name) // mesh.size() for name in grouped if hasattr(module, name)}
    module.forward = partial(_forward, module, role=role, mesh=mesh, part=part)


def _forward(
    module: nn.Module, given: torch.Tensor, *, role: Role, mesh: DeviceMesh, part: dict[str, int]
) -> Any:
    """Run the module's forward with this rank's part of its weights and buffers."""
    weights = {name: _local(tensor) for name, tensor in module._parameters.items()}
    bias = weights.get("bias")
    if role == "row":
        weights["bias"] = None
    elif role != "inner":
        # Backward adds up what the ranks' channels say of the input.
        whole = DTensor.from_local(given, mesh, [Replicate()], run_check=False)
        given = whole.to_local(grad_placements=[Partial()])
    buffers = {name: _local(tensor) for name, tensor in module._buffers.items()}
    state = {"_parameters": weights, "_buffers": buffers, **part}
    before = {name: vars(module)[name] for name in state}
    vars(module).update(state)
    try:
        made = type(module).forward(module, given)
    finally:
        vars(module).update(before)
    if role in ("row", "joined"):
        parts = DTensor.from_local(made, mesh, [Partial() if role == "row" else Shard(1)], run_check=False)
        made = parts.full_tensor()
    # Once, not with each summand.
    return made if role != "row" or bias is None else made + bias.view(-1, *[1] * (made.dim() - 2))


def _local(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
