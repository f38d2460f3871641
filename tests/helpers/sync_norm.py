"""`nn.SyncBatchNorm` on the CPU: torch's own function and its collectives, and stand-ins for the kernels that torch
has for accelerators alone."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules._functions import SyncBatchNorm


class SyncNorm(nn.BatchNorm2d):
    """In training what `nn.SyncBatchNorm` computes over all ranks."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(input)
        self.num_batches_tracked.add_(1)
        return SyncBatchNorm.apply(
            input, self.weight, self.bias, self.running_mean, self.running_var, self.eps, self.momentum,
            dist.group.WORLD, dist.get_world_size(),
        )  # fmt: skip


def stand_in() -> torch.library.Library:
    """The kernels, for as long as what this returns is held."""
    library = torch.library.Library("aten", "IMPL")
    kernels = (_stats, _gather_stats_with_counts, _elemt, _backward_reduce, _backward_elemt)
    for kernel in kernels:
        library.impl(f"batch_norm{kernel.__name__}", kernel, "CPU")
    return library


def _wide(channels: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return channels.view(1, -1, *[1] * (like.dim() - 2))


def _sum(item: torch.Tensor) -> torch.Tensor:
    return item.sum([axis for axis in range(item.dim()) if axis != 1])


def _stats(x: torch.Tensor, eps: float) -> Any:
    count = x.numel() // x.shape[1]
    mean = _sum(x) / count
    return mean, (_sum((x - _wide(mean, x)) ** 2) / count + eps).rsqrt()


def _gather_stats_with_counts(
    x: torch.Tensor, means: Any, inverses: Any, old_mean: Any, old_variance: Any, momentum: float, eps: float,
    counts: torch.Tensor,
) -> Any:  # fmt: skip
    share = (counts / counts.sum()).unsqueeze(1)
    mean = (means * share).sum(0)
    variance = ((inverses**-2 - eps + (means - mean) ** 2) * share).sum(0)
    if old_mean is not None:
        old_mean.lerp_(mean, momentum)
        old_variance.lerp_(variance * counts.sum() / (counts.sum() - 1), momentum)
    return mean, (variance + eps).rsqrt()


def _elemt(x: torch.Tensor, weight: Any, bias: Any, mean: Any, inverse: Any, eps: float) -> torch.Tensor:
    return (x - _wide(mean, x)) * _wide(inverse * weight, x) + _wide(bias, x)


def _backward_reduce(grad: Any, x: Any, mean: Any, inverse: Any, weight: Any, *wanted: bool) -> Any:
    along = _sum(grad * (x - _wide(mean, x)))
    return _sum(grad), along, along * inverse, _sum(grad)


def _backward_elemt(
    grad: Any, x: Any, mean: Any, inverse: Any, weight: Any, total: Any, along: Any, counts: Any
) -> torch.Tensor:
    count = counts.sum()
    centred = (x - _wide(mean, x)) * _wide(inverse**2 * along / count, x)
    return (grad - _wide(total / count, x) - centred) * _wide(inverse * weight, x)
