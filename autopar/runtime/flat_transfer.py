"""Flat transfers: many tensors to one device in few transfers (`bring`), several joined in one tensor
(`joined`, `pieces`)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import torch

from ..costs.calibrate import pins_memory
from ..ir.graph import ALIGNED
from ..transform.buckets import filled

LARGEST = 64 << 20
"""Limit on the bytes of one flat buffer; torch rounds pinned memory up to a power of two."""
STAGED = 2
"""Limit on flat buffers in flight."""


def bring(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return copies of tensors on `device`, with their shapes and strides.

    Dense tensors of one dtype travel together in flat buffers, of which their copies stay parts. Trained and
    untrained tensors do not share one: they change at different times, and any part keeps a buffer alive.
    """
    copies: dict[int, torch.Tensor] = {}
    dense, sets = [], []
    for index, tensor in enumerate(tensors):
        if _dense(tensor):
            key = tensor.device, tensor.dtype, tensor.requires_grad
            dense.append((key, _aligned(tensor) * tensor.element_size(), index))
        else:
            sets.append([index])
    sets += filled(dense, LARGEST)
    with torch.inference_mode(False), torch.no_grad():
        staged: list[torch.Tensor] = []
        for members in sets:
            if len(members) == 1:
                copies[members[0]] = tensors[members[0]].detach().to(device, copy=True)
            else:
                copies.update(zip(members, _together([tensors[i] for i in members], device, staged)))
        if device.type != "cpu":
            # The next call may run as a single lane on another stream, and would then not wait for this one.
            torch.accelerator.current_stream(device).synchronize()
    return [copies[index] for index in range(len(tensors))]


def _together(
    tensors: list[torch.Tensor], device: torch.device, staged: list[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Yield copies of tensors, in one flat buffer. `staged`: buffers that transfers may still read."""
    home = tensors[0].device
    pinned = home.type == "cpu" and device.type != "cpu" and pins_memory()
    *starts, length = itertools.accumulate(map(_aligned, tensors), initial=0)
    flat = torch.empty(length, dtype=tensors[0].dtype, device=home, pin_memory=pinned)
    for tensor, start in zip(tensors, starts):
        flat[start : start + tensor.numel()].copy_(tensor.as_strided((tensor.numel(),), (1,)))
    whole = flat
    if home != device:
        if len(staged) == STAGED:
            # This wait only saves memory: torch keeps a copy's source alive until the copy is done.
            torch.accelerator.current_stream(device if device.type != "cpu" else home).synchronize()
            staged.clear()
        staged.append(flat)
        whole = flat.to(device, non_blocking=pinned or "cpu" not in (home.type, device.type))
    storage = whole.untyped_storage()
    for tensor, start in zip(tensors, starts):
        # Each copy must not be a view to autograd, since views of one tensor share a version.
        copy = torch.empty(0, dtype=whole.dtype, device=device)
        yield copy.set_(storage, start, tensor.shape, tensor.stride())  # type: ignore[call-overload]


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join non-empty tensors in one new flat tensor, each in row-major order, laid out as in `Graph.pieces`."""
    return torch.ops.aten.flatten_dense_tensors.default(_padded(tensors)[0])


def pieces(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views into a `joined` tensor in the shapes of `like`."""
    padded, places = _padded(like)
    views = torch.ops.aten.unflatten_dense_tensors.default(flat, padded)
    return [views[place] for place in places]


def _padded(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
    """Return the tensors, with zeros after each that does not end aligned, and their places in the list."""
    padded: list[torch.Tensor] = []
    places = []
    for tensor in tensors:
        places.append(len(padded))
        padded.append(tensor)
        over = tensor.nbytes % ALIGNED
        if over:
            padded.append(_zeros((ALIGNED - over) // tensor.element_size(), tensor.dtype, tensor.device))
    return padded, places


@functools.cache
def _zeros(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.zeros(count, dtype=dtype, device=device)


def _aligned(tensor: torch.Tensor) -> int:
    """Return the number of elements that a tensor takes in a flat buffer."""
    step = max(1, ALIGNED // tensor.element_size())
    return -(-tensor.numel() // step) * step


def _dense(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is one contiguous block of plain memory, with its axes in any order."""
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    if not tensor.numel() or tensor.is_conj() or tensor.is_neg():
        return False
    return bool(torch.ops.aten.is_non_overlapping_and_dense.default(tensor))


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
