"""Layers of a model split by `parallelize_module`, with undo."""

from __future__ import annotations

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

from .channels import CONVOLUTIONS, ByChannels
from .plan import TensorGroup
from .random_numbers import draw_apart

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


class Shards:
    """The split groups of a model, with the original state of their modules."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        self.model, self.mesh = model, mesh
        self.before: dict[nn.Module, dict[str, Any]] = {}

    def split(self, group: TensorGroup) -> None:
        """Split the modules of a group; weights that several of them share stay shared."""
        styles: dict[str, ParallelStyle] = {}
        for path in group.columns:
            if self._convolves(path):
                styles[path] = ByChannels("column" if group.rows else "joined")
            elif group.rows:
                styles[path] = ColwiseParallel(use_local_output=group.form == "local")
            else:
                styles[path] = ColwiseParallel(output_layouts=Replicate())
        for path in group.rows:
            styles[path] = ByChannels("row") if self._convolves(path) else RowwiseParallel()
        styles.update((path, ByChannels("inner")) for path in group.channels)
        styles.update((path, RowwiseParallel(input_layouts=Replicate())) for path in group.embeddings)
        if group.form == "dtensor":
            _attend_by_heads()
        made: dict[nn.Parameter, nn.Parameter] = {}
        for path, style in styles.items():
            module = self.model.get_submodule(path)
            whole = self._keep(module)
            parallelize_module(module, self.mesh, style)
            for name, parameter in whole.items():
                if parameter is not None:
                    module.register_parameter(name, made.setdefault(parameter, getattr(module, name)))
        for path in group.dropouts:
            module = self.model.get_submodule(path)
            self._keep(module)
            draw_apart(module, self.mesh.get_local_rank())

    def undo(self) -> None:
        """Restore all modules."""
        for module, state in self.before.items():
            for name, value in state.items():
                getattr(module, name).clear()
                getattr(module, name).update(value)
            module.__dict__.pop("forward", None)
            # Set by `distribute_module`, which refuses a module twice.
            module.__dict__.pop("_distribute_module_applied", None)
        self.before.clear()

    def _convolves(self, path: str) -> bool:
        return isinstance(self.model.get_submodule(path), CONVOLUTIONS)

    def _keep(self, module: nn.Module) -> dict[str, nn.Parameter | None]:
        """Save a module's parameters and hooks; return its parameters."""
        state = {name: dict(getattr(module, name)) for name in ("_parameters", "_buffers", *_HOOKS)}
        self.before.setdefault(module, state)
        return state["_parameters"]


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
