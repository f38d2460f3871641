"""Sums over processes of gradients of replicas, and of parameters shared by several stages."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ...ir.distribution import BUCKET_BYTES, FIRST_BUCKET_BYTES


@dataclass(frozen=True, eq=False)
class Shared:
    """Parameters held by several processes, whose gradients all of `group` sum in this order.

    `whole`: each process of the group has every stage of its replica that uses them.
    """

    parameters: tuple[nn.Parameter, ...]
    group: dist.ProcessGroup
    whole: bool


@dataclass(eq=False)
class _Bucket:
    """Gradients that are summed in one message. `missing`: ids of those that are not final yet."""

    parameters: list[nn.Parameter]
    group: dist.ProcessGroup
    missing: set[int] = field(default_factory=set)
    flat: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    work: Any = None

    @torch.no_grad()
    def start(self) -> None:
        """Start the all-reduce. A parameter without a gradient counts as zeros."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.flat = torch.cat([_local(p.grad).reshape(-1) for p in self.parameters if p.grad is not None])
        self.work = dist.all_reduce(self.flat, group=self.group, async_op=True)

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for the all-reduce, and write the sums into the gradients."""
        self.work.wait()
        gradients = [_local(p.grad) for p in self.parameters if p.grad is not None]
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, summed in zip(gradients, self.flat.split(sizes)):
            gradient.copy_(summed.view_as(gradient))
        self.flat, self.work = torch.empty(0), None


class Sums:
    """Sums of gradients that overlap with the backward, step after step.

    A gradient is final after the last backward of the only stage that uses its parameter. Buckets are filled from the
    last parameter of the last stage backwards and start in that order, the same in all processes of a group; buckets
    of parameters used by several stages come last. All processes must agree on which parameters require grad.
    """

    def __init__(self, shared: Sequence[Shared], stages: Mapping[int, nn.Module], passes: int) -> None:
        self._passes, self._left = passes, Counter[int]()
        users = Counter(id(p) for module in stages.values() for p in module.parameters())
        self._early: list[list[_Bucket]] = []
        self._late: list[_Bucket] = []
        self._of: dict[int, tuple[_Bucket, list[_Bucket]]] = {}
        for own in shared:
            trained = [p for p in own.parameters if p.requires_grad]
            early = [p for p in reversed(trained) if own.whole and users[id(p)] == 1]
            queue = _buckets(early, own.group)
            self._of |= {id(p): (bucket, queue) for bucket in queue for p in bucket.parameters}
            self._early.append(queue)
            self._late += _buckets([p for p in trained if id(p) not in self._of], own.group)
        self._own = {
            number: [p for p in module.parameters() if id(p) in self._of] for number, module in stages.items()
        }

    def begin(self) -> None:
        """Start a step with `passes` backwards of each stage, after which its gradients are final."""
        self._left = Counter(dict.fromkeys(self._own, self._passes))
        for bucket in (bucket for queue in self._early for bucket in queue):
            bucket.missing, bucket.work = {id(p) for p in bucket.parameters}, None

    @contextmanager
    def backward(self, stage: int) -> Iterator[None]:
        """Wrap each backward that adds to the gradients of a stage's parameters."""
        self._left[stage] -= 1
        own = self._own[stage] if not self._left[stage] else []
        hooks = [parameter.register_post_accumulate_grad_hook(self._final) for parameter in own]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        # Gradients of weights that are computed apart reach no hook.
        for parameter in own:
            self._final(parameter)

    def finish(self) -> None:
        """Start the remaining sums, and wait for all."""
        late = [bucket for queue in self._early for bucket in queue if bucket.work is None] + self._late
        for bucket in late:
            bucket.start()
        for bucket in [*(bucket for queue in self._early for bucket in queue), *self._late]:
            bucket.finish()

    def _final(self, parameter: torch.Tensor) -> None:
        own, queue = self._of[id(parameter)]
        own.missing.discard(id(parameter))
        for bucket in itertools.takewhile(lambda bucket: not bucket.missing, queue):
            if bucket.work is None:
                bucket.start()


def _local(gradient: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a gradient, in the same memory."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _buckets(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> list[_Bucket]:
    """Group parameters of equal dtype and device, in order, into buckets of limited bytes."""
    found: list[_Bucket] = []
    size = 0
    for parameter in parameters:
        nbytes = parameter.numel() * parameter.element_size()
        last = found[-1].parameters[-1] if found else None
        alike = last is not None and (last.dtype, last.device) == (parameter.dtype, parameter.device)
        if not alike or size + nbytes > (BUCKET_BYTES if len(found) > 1 else FIRST_BUCKET_BYTES):
            found.append(_Bucket([], group))
            size = 0
        found[-1].parameters.append(parameter)
        size += nbytes
    return found
