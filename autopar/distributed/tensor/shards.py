"""Layers of a model split by `parallelize_module`, with undo; convolutions and norms split by channels, for which
`torch.distributed.tensor.parallel` has no style; and random numbers, equal on all ranks for whole values, different for
parts.

Split weights are DTensors, so that optimizers and checkpoints treat all weights alike. Channels are computed
on local tensors, because DTensor splits a convolution along space. A rank's own random numbers derive from
the common generator, so that recomputation (activation checkpointing) draws the same numbers again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from ...errors import RunError
from .plan import CONVOLUTIONS, TensorGroup

_Role: TypeAlias = Literal["column", "joined", "inner", "row"]
_SEEDS = 1 << 62
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


def split(model: nn.Module, mesh: DeviceMesh, groups: Iterable[TensorGroup]) -> Callable[[], None]:
    """Split the modules of groups, in place; return a function that restores them.

    Weights that several modules of a group share stay shared.
    """
    before: dict[nn.Module, dict[str, Any]] = {}

    def kept(path: str) -> nn.Module:
        """Return a module after saving its parameters, buffers and hooks."""
        module = model.get_submodule(path)
        state = {name: dict(getattr(module, name)) for name in ("_parameters", "_buffers", *_HOOKS)}
        before.setdefault(module, state)
        return module

    def undo() -> None:
        for module, state in before.items():
            for name, value in state.items():
                getattr(module, name).clear()
                getattr(module, name).update(value)
            module.__dict__.pop("forward", None)
            # `distribute_module` sets this mark, and refuses a module that has it.
            module.__dict__.pop("_distribute_module_applied", None)

    for group in groups:
        if group.form == "dtensor":
            _attend_by_heads()
        made: dict[nn.Parameter, nn.Parameter] = {}
        for path, style in dict(_styles(model, group)).items():
            module = kept(path)
            whole = dict(module._parameters)
            if isinstance(style, ParallelStyle):
                parallelize_module(module, mesh, style)
            else:
                _split_channels(module, mesh, style)
            for name, parameter in whole.items():
                if parameter is not None:
                    module.register_parameter(name, made.setdefault(parameter, getattr(module, name)))
        for path in group.dropouts:
            dropout = kept(path)
            dropout.forward = partial(_drawn_apart, dropout, rank=mesh.get_local_rank())
    return undo


def _styles(model: nn.Module, group: TensorGroup) -> Iterator[tuple[str, ParallelStyle | _Role]]:
    """Yield how each module of a group is split, by path."""

    def convolves(path: str) -> bool:
        return isinstance(model.get_submodule(path), CONVOLUTIONS)

    for path in group.columns:
        if convolves(path):
            yield path, "column" if group.rows else "joined"
        elif group.rows:
            yield path, ColwiseParallel(use_local_output=group.form == "local")
        else:
            yield path, ColwiseParallel(output_layouts=Replicate())
    for path in group.rows:
        yield path, "row" if convolves(path) else RowwiseParallel()
    for path in group.channels:
        yield path, "inner"
    for path in group.embeddings:
        yield path, RowwiseParallel(input_layouts=Replicate())


def _attend_by_heads() -> None:
    """Register attention on the CPU as splittable by heads in DTensor, which knows only CUDA's kernels."""
    aten = torch.ops.aten
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    for op, tensors, outputs in ((forward, 3, 2), (backward, 6, 3)):

        def ways(*args: Any, tensors: int = tensors, outputs: int = outputs, **kwargs: Any) -> Any:
            mask = [Replicate()] if kwargs.get("attn_mask") is not None else []
            others = [None] * (len(args) - tensors)
            return [([way] * outputs, [way] * tensors + others + mask) for way in (Replicate(), Shard(1))]

        register_sharding(op)(ways)


def _split_channels(module: nn.Module, mesh: DeviceMesh, role: _Role) -> None:
    """Split a convolution, a batch norm or a group norm by channels, in place.

    `column`: part of the outputs, from all inputs; `joined`: like `column`, then gathered; `inner`: part of
    the channels, or groups, of inputs and outputs; `row`: part of the inputs; the outputs are all-reduced.
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
    module.forward = partial(_in_part, module, role=role, mesh=mesh, part=part)


def _in_part(
    module: nn.Module, given: torch.Tensor, *, role: _Role, mesh: DeviceMesh, part: dict[str, int]
) -> Any:
    """Run the module's forward with this rank's part of its weights and buffers."""
    weights = {name: local(tensor) for name, tensor in module._parameters.items()}
    bias = weights.get("bias")
    if role == "row":
        weights["bias"] = None
    elif role != "inner":
        # The backward adds up the input's gradients from the channels of all ranks.
        whole = DTensor.from_local(given, mesh, [Replicate()], run_check=False)
        given = whole.to_local(grad_placements=[Partial()])
    buffers = {name: local(tensor) for name, tensor in module._buffers.items()}
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
    # The bias is added once, not to the summand of each rank.
    return made if role != "row" or bias is None else made + bias.view(-1, *[1] * (made.dim() - 2))


def local(tensor: Any) -> Any:
    """Return this rank's part of a tensor, in the same memory; other values, and whole tensors, unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _drawn_apart(module: nn.Module, given: torch.Tensor, *, rank: int) -> Any:
    """Run a dropout's forward with different numbers on each rank; the common generator advances by one number."""
    if not module.training:
        return type(module).forward(module, given)
    # From the CPU's generator, from which all ranks draw the same numbers.
    seed = int(torch.randint(_SEEDS, (), device="cpu"))
    with restored(given.device):
        torch.manual_seed(seed ^ (rank + 1))
        return type(module).forward(module, given)


def restored(device: torch.device) -> AbstractContextManager[None]:
    """Return a context that restores the generators of the CPU and of a device."""
    return torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type)


def agree_on_random(model: nn.Module, group: dist.ProcessGroup, device: torch.device) -> None:
    """Broadcast the generators of rank 0, and check before each forward in training that they still agree."""
    states = _states(device)
    for state in states:
        sent = state.to(device)
        dist.broadcast(sent, dist.get_global_rank(group, 0), group=group)
        state.copy_(sent)
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.get_device_module(device).set_rng_state(state, device)

    def look(module: nn.Module, _: Any) -> None:
        if not module.training:
            return
        digest = hashlib.sha256(b"".join(state.numpy().tobytes() for state in _states(device))).digest()
        mine = int.from_bytes(digest[:7], "big")
        seen = torch.tensor([mine, -mine], device=device)
        dist.all_reduce(seen, dist.ReduceOp.MAX, group=group)
        if int(seen[0]) != -int(seen[1]):
            raise RunError(
                "the ranks of a tensor split have different random generators, so that dropout would drop other "
                "elements on each; call torch.manual_seed with one number on all ranks, and draw nothing on some alone"
            )

    model.register_forward_pre_hook(look)


def _states(device: torch.device) -> list[torch.Tensor]:
    """Return the generator states of the CPU and of an accelerator."""
    apart = [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state(device)]
    return [torch.get_rng_state(), *apart]
