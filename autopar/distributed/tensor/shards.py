"""Layers of a model split by `parallelize_module`, with undo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from .channels import CONVOLUTIONS, Role, split_channels
from .plan import TensorGroup
from .random_numbers import draw_apart

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
        """Return a module, whose parameters, buffers and hooks are saved."""
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
            # Set by `distribute_module`, which refuses a module twice.
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
                split_channels(module, mesh, style)
            for name, parameter in whole.items():
                if parameter is not None:
                    module.register_parameter(name, made.setdefault(parameter, getattr(module, name)))
        for path in group.dropouts:
            draw_apart(kept(path), mesh.get_local_rank())
    return undo


def _styles(model: nn.Module, group: TensorGroup) -> Iterator[tuple[str, ParallelStyle | Role]]:
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
