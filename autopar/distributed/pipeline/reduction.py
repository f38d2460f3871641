"""Sums, over processes, of the gradients of replicas and of parameters that several stages share."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from ...ir.distribution import BUCKET_BYTES, FIRST_BUCKET_BYTES, Distribution
from ...training.messages import Group, subgroup
from ...transform.buckets import filled
from ..tensor_split import local
from .stages import Staged


@dataclass(eq=False)
class _Bucket:
    """Gradients that are summed in one message. `missing`: ids of parameters without a final gradient yet."""

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
        self.flat = torch.cat([local(p.grad).reshape(-1) for p in self.parameters if p.grad is not None])
        self.work = dist.all_reduce(self.flat, group=self.group, async_op=True)

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for the all-reduce, and write the sums into the gradients."""
        self.work.wait()
        gradients = [local(p.grad) for p in self.parameters if p.grad is not None]
        for gradient, summed in zip(
            gradients, torch.ops.aten.unflatten_dense_tensors.default(self.flat, gradients)
        ):
            gradient.copy_(summed)
        self.flat, self.work = torch.empty(0), None


_Held: TypeAlias = tuple[list[nn.Parameter], dist.ProcessGroup, bool]
"""Parameters with the same holders, the holders' group, and whether only one position holds them."""


class _Sums:
    """Sums of the gradients of a process's stages, which overlap with the backward, step after step.

    A gradient is final after the last backward of the only stage that uses its parameter. Buckets are filled
    from the last parameter of the last stage backwards and start in that order in all processes. Buckets of
    parameters in several stages come last. All processes must agree on which parameters require grad.

    stages: those of this process.
    shared: what it shares with other processes, as of `_shared`.
    passes: micro-batches of a step.
    """

    def __init__(self, stages: Mapping[int, Staged], shared: Iterable[_Held], passes: int) -> None:
        self._passes, self._left = passes, Counter[int]()
        self._parameters: list[nn.Parameter] = []
        users = Counter(id(p) for module in stages.values() for p in module.parameters())
        self._early: list[list[_Bucket]] = []
        self._late: list[_Bucket] = []
        self._of: dict[int, tuple[_Bucket, list[_Bucket]]] = {}
        for parameters, holders, one in shared:
            self._parameters += parameters
            trained = [p for p in parameters if p.requires_grad]
            early = [p for p in reversed(trained) if one and users[id(p)] == 1]
            queue = _buckets(early, holders)
            self._of |= {id(p): (bucket, queue) for bucket in queue for p in bucket.parameters}
            self._early.append(queue)
            self._late += _buckets([p for p in trained if id(p) not in self._of], holders)
        self._own = {
            number: [p for p in module.parameters() if id(p) in self._of] for number, module in stages.items()
        }

    @contextmanager
    def step(self) -> Iterator[None]:
        """Wrap the backwards of a step, one of each stage for each micro-batch; then wait for all sums, and add the
        gradients of earlier steps."""
        before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            # Gradients of earlier steps are already summed.
            parameter.grad = None
        self._left = Counter(dict.fromkeys(self._own, self._passes))
        early = [bucket for queue in self._early for bucket in queue]
        for bucket in early:
            bucket.missing, bucket.work = {id(p) for p in bucket.parameters}, None
        yield
        for bucket in [bucket for bucket in early if bucket.work is None] + self._late:
            bucket.start()
        for bucket in early + self._late:
            bucket.finish()
        with torch.no_grad():
            for parameter, gradient in zip(self._parameters, before):
                if gradient is not None and parameter.grad is not None:
                    gradient.add_(parameter.grad)
                    parameter.grad = gradient

    @contextmanager
    def backward(self, stage: int) -> Iterator[None]:
        """Wrap each backward that adds to the gradients of a stage's parameters."""
        self._left[stage] -= 1
        parameters = self._own[stage] if not self._left[stage] else []
        hooks = [parameter.register_post_accumulate_grad_hook(self._final) for parameter in parameters]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        # Weight gradients that are computed separately call no hook.
        for parameter in parameters:
            self._final(parameter)

    def _final(self, parameter: torch.Tensor) -> None:
        bucket, queue = self._of[id(parameter)]
        bucket.missing.discard(id(parameter))
        for each in itertools.takewhile(lambda each: not each.missing, queue):
            if each.work is None:
                each.start()


def sums(
    modules: Mapping[int, Staged],
    plan: Distribution,
    grid: Sequence[Sequence[int]],
    position: int,
    whole: set[str] | None,
    group: Group,
) -> _Sums:
    """Return the sums of the process at `position` of a replica.

    modules: the stages of all processes of a replica.
    grid: rank of each process of each replica.
    whole: paths of the parameters that sharded replicas keep whole; None: replicas are not sharded.
    """
    holders: defaultdict[str, set[int]] = defaultdict(set)
    mine: dict[str, nn.Parameter] = {}
    for number, module in modules.items():
        for name, parameter in module.named_parameters():
            path = module.paths[name][0]
            holders[path].add(plan.position(number))
            if plan.position(number) == position:
                mine[path] = parameter
    by: defaultdict[tuple[tuple[int, ...], bool], list[str]] = defaultdict(list)
    for path, positions in holders.items():
        by[tuple(sorted(positions)), whole is None or path in whole].append(path)
    shares = []
    for (shared, everywhere), paths in sorted(by.items()):
        rows = [[row[p] for p in shared] for row in grid]
        # If replicas are sharded, each replica sums by itself, and FSDP2 sums over replicas.
        for members in [[*itertools.chain(*rows)]] if everywhere else rows:
            holding = subgroup(sorted(members), group) if len(members) > 1 else None
            if holding is not None and dist.get_rank() in members:
                shares.append(([mine[path] for path in paths], holding, len(shared) == 1))
    stages = {n: module for n, module in modules.items() if plan.position(n) == position}
    return _Sums(stages, shares, plan.micro_batches)


def _buckets(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> list[_Bucket]:
    """Group parameters by dtype and device, in order, into buckets of limited bytes, the first smaller."""
    items = [((p.dtype, p.device), p.nbytes, p) for p in parameters]
    first = filled(items, FIRST_BUCKET_BYTES)[:1]
    begun = {id(p) for bucket in first for p in bucket}
    rest = filled((item for item in items if id(item[2]) not in begun), BUCKET_BYTES)
    return [_Bucket(bucket, group) for bucket in first + rest]
