"""Calls of kernels with results in eager's memory layout: for one set of sizes (`fitting`) or for all
(`fitting_all`)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..capture.captured import laid, memory_order
from ..runtime.kernels import Compilation, Refusal
from ..runtime.kernels.stack import bounds, fits
from .compare import error, limit

log = logging.getLogger("autopar")

COMPARED = 4
"""Sets of sizes, besides that of the compiler's examples, whose first call is compared with eager."""
KNOWN = 4096
"""Limit on the sets of sizes that are remembered as right; each takes a few hundred bytes."""

Call = Callable[..., Any]


def fitting(call: Call, work: Compilation, wanted: Sequence[torch.Tensor]) -> Call:
    """Return a kernel with eager's output layout, `wanted`, and eager's errors. Raises Refusal if its outputs are
    not such tensors."""
    made = call(*work.examples)
    if why := _unlike(made, wanted):
        raise Refusal(why)
    strides = [
        None if ours.stride() == right.stride() else right.stride() for ours, right in zip(made, wanted)
    ]
    laying = any(strides)

    def fitted(*tensors: torch.Tensor) -> Any:
        try:
            made = call(*tensors)
        except Exception as problem:
            log.info("a kernel failed, and PyTorch's operators answer: %s", problem)
            return work.module.forward(*tensors)
        return [own if to is None else laid(own, to) for own, to in zip(made, strides)] if laying else made

    return fitted


def _unlike(made: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> str:
    """Return what is wrong with the number, dtypes or shapes of a kernel's outputs; "" if nothing is."""
    if len(made) != len(wanted):
        return f"it makes {len(made)} results, eager {len(wanted)}"
    for ours, right in zip(made, wanted):
        if ours.dtype != right.dtype or ours.shape != right.shape:
            return f"it makes {ours.dtype} of shape {list(ours.shape)}, eager {right.dtype} of {list(right.shape)}"
    return ""


def fitting_all(call: Call, work: Compilation, wanted: Sequence[torch.Tensor], limits: list[str]) -> Call:
    """Return a kernel for calls of all sizes with eager's output layout. Raises Refusal if its outputs are not such
    tensors, or eager's have gaps.

    The first `COMPARED` sets of sizes are compared with eager. If one differs, the reason is added to
    `limits`, and eager answers for all further sizes. Eager also answers where the kernel does not hold.
    """
    made = call(*work.examples)
    if why := _unlike(made, wanted):
        raise Refusal(why)
    orders = [memory_order(tensor) for tensor in wanted]
    if not all(map(_dense, wanted, orders)):
        raise Refusal("eager's results have gaps, which depend on the sizes of a call")
    return _AnySize(call, work, [*map(_laying, orders)], _off(made, wanted), limits)


class _AnySize:
    def __init__(
        self, call: Call, work: Compilation, layouts: Sequence[Call], allowed: float, limits: list[str]
    ) -> None:
        self._call, self._work, self._layouts, self._limits = call, work, layouts, limits
        self._allowed = max(1.0, 2 * allowed)
        self._bounds = bounds(work)
        self._known = {_shapes(work.examples)}
        # One more set is compared right after the compilation (`kernel_build._lengthened`).
        self._left = COMPARED + 1

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Return the results of a call."""
        shapes = _shapes(tensors)
        known = shapes in self._known
        if not known and not self._held(shapes):
            return self._work.module(*tensors)
        try:
            made = self._made(tensors)
        except Exception as problem:
            # If eager fails too, this raises eager's error.
            eager = self._work.module(*tensors)
            if not known:
                self._limit(f"{type(problem).__name__}: {problem}")
            return eager
        if not known:
            if self._left:
                return self._compared(shapes, tensors, made)
            if len(self._known) < KNOWN:
                self._known.add(shapes)
        return made

    def _made(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [layout(own) for layout, own in zip(self._layouts, self._call(*tensors))]

    def _held(self, shapes: Sequence[torch.Size]) -> bool:
        return not self._limits and fits(shapes, self._work.examples, self._work.axes, self._bounds)

    def _compared(self, shapes: Any, tensors: Sequence[torch.Tensor], made: list[torch.Tensor]) -> Any:
        """Return eager's results; note whether the kernel's are equal."""
        eager = self._work.module(*tensors)
        why = _unlike(made, eager)
        if not why and (off := _off(made, eager)) > self._allowed:
            why = f"its answer is {off:.1g} times as far from eager's as is allowed"
        if why:
            self._limit(why)
            return eager
        self._left -= 1
        self._known.add(shapes)
        return eager

    def _limit(self, why: str) -> None:
        self._limits.append(why)
        log.info("a kernel is right for some sizes alone, and serves no others: %s", why)


def _laying(order: tuple[int, ...]) -> Call:
    """Return a function that lays a tensor out in memory with its axes in this order; empty: contiguous. It
    returns a tensor that has this layout unchanged."""
    back = tuple(sorted(range(len(order)), key=order.__getitem__))

    def lay(tensor: torch.Tensor) -> torch.Tensor:
        own = tensor.permute(order)
        return tensor if own.is_contiguous() else own.contiguous().permute(back)

    return lay if order else torch.Tensor.contiguous


def _dense(tensor: torch.Tensor, order: Sequence[int]) -> bool:
    return tensor.permute(tuple(order)).is_contiguous() if order else tensor.is_contiguous()


def _shapes(tensors: Sequence[torch.Tensor]) -> tuple[torch.Size, ...]:
    return tuple([tensor.shape for tensor in tensors])


def _off(made: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> float:
    """Return the largest difference as a multiple of what is allowed."""
    offs = ((error(ours, right), limit(right)) for ours, right in zip(made, eager))
    return max(
        (off / most if most else (sys.float_info.max if off else 0.0) for off, most in offs), default=0.0
    )
