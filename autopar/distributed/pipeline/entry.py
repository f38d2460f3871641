"""A stage as torch's pipelining calls it: without a trace where that asks for sizes, and with records of each pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.utils import _pytree as pytree

from ...ir.distribution import Distribution
from ...ir.timeline import Span
from ...session.compare import untouched

INPUT = "input "
"""Prefix of the names of inputs, which are passed through torch's own keywords such as `target`."""


class _InOnePiece(torch.autograd.Function):
    """Identity whose gradient is contiguous, as sending requires."""

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient.contiguous()


class _Entry(nn.Module):
    """A stage as called by `PipelineStage`.

    Before the first step torch calls each stage once more, for the sizes of its outputs, with received tensors that
    nobody has filled. That call must leave no trace: it runs `plain`, the stage as it was before it was placed, on
    zeros, with copies of buffers.

    `copies`: return a copy of the output that the backward does not keep, because torch detaches outputs in place when
    it computes gradients of inputs and weights separately.
    `counts`: True while a micro-batch is computed.
    """

    def __init__(self, stage: nn.Module, plain: nn.Module, copies: bool) -> None:
        super().__init__()
        self.stage, self.plain, self.copies = stage, plain, copies
        self.counts = False

    def forward(self, *received: torch.Tensor, **inputs: Any) -> Any:
        """Run the stage for a micro-batch, or for torch's question for sizes."""
        named = {name.removeprefix(INPUT): value for name, value in inputs.items()}
        if not self.counts:
            with torch.no_grad():
                for tensor in received:
                    tensor.zero_()
        with nullcontext() if self.counts else untouched(self.plain):
            stage = self.stage if self.counts else self.plain
            output = stage(*map(_InOnePiece.apply, received), **named)
        return pytree.tree_map(torch.clone, output) if self.copies else output


class TimedStage(pipelining.PipelineStage):
    """A stage of this process for a schedule of torch's: it notes each pass in `spans`.

    placed, plain: the stage as it runs, and as it was before it was placed.
    summed: the context of each backward of a stage, given its number, which starts the sums of final gradients.
    answers: takes what the last stage answers without a backward, with the number of its micro-batch.
    """

    def __init__(
        self,
        number: int,
        placed: nn.Module,
        plain: nn.Module,
        plan: Distribution,
        device: torch.device,
        group: dist.ProcessGroup | None,
        summed: Callable[[int], AbstractContextManager[None]],
        spans: list[Span],
        answers: list[tuple[int, Sequence[torch.Tensor]]],
    ) -> None:
        self.entry = _Entry(placed, plain, plan.schedule == "zero-bubble")
        super().__init__(self.entry, number, len(plan.stages), device, group=group)
        self.summed, self.spans, self.answers = summed, spans, answers

    def forward_one_chunk(self, chunk: int, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Run the forward of a micro-batch; keep what the last stage answers without a backward."""
        self.entry.counts = True
        try:
            output = self._timed("F", chunk, partial(super().forward_one_chunk, chunk, *args, **kwargs))
        finally:
            self.entry.counts = False
        if self.is_last and not self.has_backward:
            self.answers.append((chunk, output))
        return output

    def backward_one_chunk(  # type: ignore[override]
        self, chunk: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> Any:
        """Run the backward of a micro-batch, or its part for the inputs."""
        call = partial(super().backward_one_chunk, chunk, loss, full_backward, last_backward)
        with self.summed(self.stage_index) if full_backward else nullcontext():
            return self._timed("B", chunk, call)

    def backward_weight_one_chunk(self, chunk: int, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Run the part of a backward that is for the weights."""
        with self.summed(self.stage_index):
            return self._timed("W", chunk, partial(super().backward_weight_one_chunk, chunk, *args, **kwargs))

    def _timed(self, what: str, chunk: int, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = call()
        device, phase = str(self.device), "forward" if what == "F" else "backward"
        name = f"{self.stage_index}{what}{chunk}"
        self.spans.append(
            Span(f"{device}/0", device, "compute", name, began, time.perf_counter(), phase=phase)
        )
        return result
