"""Flat transfers: many tensors to one device in few copies (`bring`), several in one tensor (`joined`, `pieces`); and
the comparison of copies by `checksum`."""

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
WIDTH = 1024
"""Length of the rows that `checksum` sums."""


def bring(tensors: Sequence[torch.Tensor], device: torch.device) -> tuple[list[torch.Tensor], int]:
    """Copy tensors to `device`, with shapes and strides; return the copies and the number of transfers.

    Dense tensors of one dtype are copied together in flat buffers and are views of these. Trained and untrained
    tensors are kept apart: they change at different times, and a buffer lives as long as any view of it.
    """
    found: dict[int, torch.Tensor] = {}
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
                found[members[0]] = tensors[members[0]].detach().to(device, copy=True)
            else:
                found.update(zip(members, _together([tensors[i] for i in members], device, staged)))
        if device.type != "cpu":
            # The next call may come from another stream, and be one lane on it, which waits for nothing of this one.
            torch.accelerator.current_stream(device).synchronize()
    return [found[index] for index in range(len(tensors))], len(sets)


def _together(
    tensors: list[torch.Tensor], device: torch.device, staged: list[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Yield copies of tensors, in one flat buffer. `staged`: buffers that may still be read by earlier transfers."""
    home = tensors[0].device
    pinned = home.type == "cpu" and device.type != "cpu" and pins_memory()
    *starts, length = itertools.accumulate(map(_aligned, tensors), initial=0)
    flat = torch.empty(length, dtype=tensors[0].dtype, device=home, pin_memory=pinned)
    for tensor, start in zip(tensors, starts):
        flat[start : start + tensor.numel()].copy_(tensor.as_strided((tensor.numel(),), (1,)))
    whole = flat
    if home != device:
        if len(staged) == STAGED:
            # For the sake of memory alone: torch keeps what a copy reads until it is done.
            torch.accelerator.current_stream(device if device.type != "cpu" else home).synchronize()
            staged.clear()
        staged.append(flat)
        whole = flat.to(device, non_blocking=pinned or "cpu" not in (home.type, device.type))
    storage = whole.untyped_storage()
    for tensor, start in zip(tensors, starts):
        # Not a view to autograd: views of one tensor share a version.
        own = torch.empty(0, dtype=whole.dtype, device=device)
        yield own.set_(storage, start, tensor.shape, tensor.stride())  # type: ignore[call-overload]


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join non-empty tensors in one new flat tensor, each in row-major order, laid out as in `Graph.pieces`."""
    return torch.ops.aten.flatten_dense_tensors.default(_padded(tensors)[0])


def pieces(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views into a `joined` tensor in the shapes of `like`."""
    padded, places = _padded(like)
    views = torch.ops.aten.unflatten_dense_tensors.default(flat, padded)
    return [views[place] for place in places]


def _padded(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
    """Return the tensors with zero padding between those that do not adjoin, and their positions in the list."""
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
    """Return the elements that a tensor takes in a flat buffer."""
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


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return sums of the bits over rows and over columns, as integers on the tensor's device.

    Equal tensors have equal sums; any single change, and any exchange of two elements, changes them.
    """
    with torch.no_grad():
        whole = tensor.detach()
        whole = whole if whole.layout is torch.strided else whole.to_dense()
        bits = whole.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
        for width, kind in ((8, torch.int64), (4, torch.int32)):
            if bits.numel() % width == 0 and bits.storage_offset() % width == 0:
                bits = bits.view(kind)
                break
        rows = bits.numel() // WIDTH * WIDTH
        table = bits[:rows].view(rows // WIDTH, WIDTH)
        sums = table.sum(0, dtype=torch.int64), table.sum(1, dtype=torch.int64)
        return torch.cat((*sums, bits[rows:].to(torch.int64)))
