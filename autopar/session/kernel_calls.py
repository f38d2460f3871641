"""Calls of kernels with results in eager's memory layout, and eager's answer where a kernel fails or does not hold."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..capture.captured import laid, memory_order
from ..runtime.kernels import Refusal
from ..runtime.kernels.library import Call
from ..runtime.kernels.piece_module import fits
from .compare import error, limit

log = logging.getLogger("autopar")

COMPARED, ALLOWED = 6, 10.0
"""Sets of sizes whose first call is compared with eager, two of them right after compilation, and the allowed error as
a multiple of the tolerance: this is to find kernels that are wrong for some sizes."""
KNOWN = 4096
"""Limit on the sets of sizes of which it is remembered whether a kernel holds; each takes a few hundred bytes."""


def with_eager_layout(
    call: Call, module: fx.GraphModule, examples: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]
) -> Call:
    """Return a kernel of a piece with the memory layout of `eager`, eager's results for the examples, and eager's
    errors. Raises Refusal if its results are not such tensors, or it is for all sizes and eager's have gaps."""
    results = call(*examples)
    if len(results) != len(eager):
        raise Refusal(f"it makes {len(results)} results, eager {len(eager)}")
    for ours, right in zip(results, eager):
        if ours.dtype != right.dtype or ours.shape != right.shape:
            raise Refusal(
                f"it makes {ours.dtype} of shape {list(ours.shape)}, eager {right.dtype} of {list(right.shape)}"
            )
    if module.meta.get("axes"):
        return AnySize(call, module, examples, eager)
    strides = [
        None if ours.stride() == right.stride() else right.stride() for ours, right in zip(results, eager)
    ]
    laying = any(strides)

    def fitted(*tensors: torch.Tensor) -> Any:
        try:
            results = call(*tensors)
        except Exception as problem:
            log.info("a kernel failed, and PyTorch's operators answer: %s", problem)
            return module.forward(*tensors)
        return (
            [result if to is None else laid(result, to) for result, to in zip(results, strides)]
            if laying
            else results
        )

    return fitted


class AnySize:
    """A kernel for calls of all sizes for which it holds."""

    def __init__(
        self,
        call: Call,
        module: fx.GraphModule,
        examples: Sequence[torch.Tensor],
        eager: Sequence[torch.Tensor],
    ) -> None:
        orders = [memory_order(tensor) for tensor in eager]
        for order, tensor in zip(orders, eager):
            if not (tensor.permute(order) if order else tensor).is_contiguous():
                raise Refusal("eager's results have gaps, which depend on the sizes of a call")
        self._call, self._module, self._layouts = call, module, [*map(_layout, orders)]
        self._examples = [tensor.shape for tensor in examples]
        self._holds: dict[tuple[torch.Size, ...], bool] = {}
        self._left = COMPARED
        self.failure = ""
        """The fault of the kernel for some sizes; it then serves no others than those that are known."""

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Return the results of a call."""
        shapes = tuple([tensor.shape for tensor in tensors])
        holds = self._holds.get(shapes)
        if holds is None:
            if len(self._holds) >= KNOWN:
                self._holds.clear()
            axes, bounds = self._module.meta["axes"], self._module.meta.get("bounds", {})
            holds = not self.failure and fits(shapes, self._examples, axes, bounds)
            self._holds[shapes] = holds
            if holds and self._left:
                self._left -= 1
                return self._compared(shapes, tensors)
        if not holds:
            return self._module.forward(*tensors)
        try:
            return self._laid(tensors)
        except Exception as problem:
            # If PyTorch's operators fail too, this raises their error.
            results = self._module.forward(*tensors)
            self._fail(shapes, f"{type(problem).__name__}: {problem}")
            return results

    def _laid(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [layout(result) for layout, result in zip(self._layouts, self._call(*tensors))]

    def _compared(self, shapes: tuple[torch.Size, ...], tensors: Sequence[torch.Tensor]) -> Any:
        """Return the kernel's results if they are like eager's, else eager's."""
        eager, why = self._module.forward(*tensors), ""
        try:
            results = self._laid(tensors)
        except Exception as problem:
            why = f"{type(problem).__name__}: {problem}"
        else:
            if all(error(ours, right) <= ALLOWED * limit(right) for ours, right in zip(results, eager)):
                return results
            why = "its answer differs from eager's"
        self._fail(shapes, why)
        return eager

    def _fail(self, shapes: tuple[torch.Size, ...], why: str) -> None:
        self._holds[shapes], self.failure = False, why
        log.info("a kernel is right for some sizes alone, and serves no others: %s", why)


def _layout(order: tuple[int, ...]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that lays a tensor out in memory with its axes in this order; empty: contiguous. It
    returns a tensor that has this layout unchanged."""
    back = tuple(sorted(range(len(order)), key=order.__getitem__))

    def lay(tensor: torch.Tensor) -> torch.Tensor:
        ordered = tensor.permute(order)
        return tensor if ordered.is_contiguous() else ordered.contiguous().permute(back)

    return lay if order else torch.Tensor.contiguous
