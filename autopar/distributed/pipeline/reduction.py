"""Sums over processes: gradients of replicas, and of parameters that several stages share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

BUCKET_BYTES = 25 << 20
"""Bytes of gradients that are summed in one message, as in DistributedDataParallel."""


@dataclass(frozen=True, eq=False)
class Shared:
    """Parameters that several processes hold: all of `group` sum their gradients, in this order."""

    parameters: tuple[torch.nn.Parameter, ...]
    group: dist.ProcessGroup


@torch.no_grad()
def sum_gradients(shared: Sequence[Shared]) -> None:
    """Sum the gradients of shared parameters over their groups, in messages of up to `BUCKET_BYTES`.

    A parameter without a gradient here counts as zeros; every process must have the same parameters require grad.
    """
    under_way = []
    for own in shared:
        for bucket in _buckets([p for p in own.parameters if p.requires_grad]):
            for parameter in bucket:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            flat = torch.cat([p.grad.reshape(-1) for p in bucket if p.grad is not None])
            under_way.append((bucket, flat, dist.all_reduce(flat, group=own.group, async_op=True)))
    for bucket, flat, work in under_way:
        assert work is not None
        work.wait()
        for parameter, summed in zip(bucket, flat.split([p.numel() for p in bucket])):
            assert parameter.grad is not None
            parameter.grad.copy_(summed.view_as(parameter.grad))


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters of one dtype and device each, in order, up to so many bytes."""
    found: list[list[torch.nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        nbytes = parameter.numel() * parameter.element_size()
        last = found[-1][-1] if found else None
        alike = last is not None and (last.dtype, last.device) == (parameter.dtype, parameter.device)
        if not alike or size + nbytes > BUCKET_BYTES:
            found.append([])
            size = 0
        found[-1].append(parameter)
        size += nbytes
    return found
