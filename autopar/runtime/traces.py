"""The traces of changes of tensors: words of memory that tell their versions, addresses and how they are read, and
samples of their elements."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..system.memory import Place, word

ELEMENTS = 8
"""Sampled elements of each tensor, evenly spaced from the first to the last."""
_WORD = 8
_IMPL = 16
"""Offset of the address of the `TensorImpl` in the Python object of a tensor."""
_STORAGE, _COUNTER, _OFFSETS = 16, 40, (144, 152)
"""Offsets of the addresses of the storage and of the version counter, and of the storage offset (in torch 2.13 and
2.14, or in 2.11), in a `TensorImpl`."""
_LENGTHS, _KINDS, _AXES = range(-88, 0, 8), range(8, 32, 8), 5
"""Offsets from the storage offset: of the sizes and strides, which are there for up to five axes; and of words, among
them those of the dtype and of the bits (negated, conjugated)."""
_VERSION, _DATA = 16, 16
"""Offsets of the version in a version counter, and of the address of the memory in a storage."""
_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


def sample(tensors: Iterable[Any]) -> list[Place]:
    """Return the places of a few elements of each tensor; none of tensors that have no elements on the host.

    Read them only while the tensors have the same memory: freed memory cannot be read.
    """
    found: list[Place] = []
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not tensor.numel():
            continue
        with torch.no_grad(), torch.inference_mode(False):
            flat = tensor.detach()
            # Where a tensor has gaps between elements, like a block of columns, only row starts are sampled.
            flat = flat.view(-1) if flat.is_contiguous() else flat[(slice(None), *(0,) * (flat.dim() - 1))]
            elements = flat[:: -(-flat.numel() // ELEMENTS)]
        start, size = elements.data_ptr(), elements.element_size()
        found += ((start + at * elements.stride(0) * size, size) for at in range(len(elements)))
    return found


def traced(tensors: Sequence[Any]) -> list[list[Place]] | None:
    """Return places whose words tell changes of the versions of tensors, their addresses and how they are read, in
    groups, each to be read only if those before it are as they were: it is in memory that they found in use. None if
    there are no such words.
    """
    places = _places()
    if not tensors or not places or not all(type(each) in _PLAIN and _strided(each) for each in tensors):
        return None
    implementations = [each._cdata for each in tensors]
    inner = [at + offset for at in implementations for offset in (_STORAGE, _COUNTER, *places)]
    counters = {word(at + _COUNTER) for at in implementations}
    storages = {word(at + _STORAGE) for at in implementations}
    if 0 in counters | storages:
        return None
    outer = [id(each) + _IMPL for each in tensors]
    groups = outer, inner, [*(at + _VERSION for at in counters), *(at + _DATA for at in storages)]
    return [[(at, _WORD) for at in group] for group in groups]


def _strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_inference() and tensor.dim() <= _AXES


@functools.cache
def _places() -> tuple[int, ...]:
    """Return the offsets in a `TensorImpl` of all that tells how a tensor reads its storage; none if tensors are not in
    memory as in torch 2.11, 2.13 and 2.14 on 64-bit machines."""
    if ctypes.sizeof(ctypes.c_void_p) != _WORD:
        return ()
    with torch.inference_mode(False), torch.no_grad():
        base, other = (torch.zeros(size, device="cpu") for size in (8000, 1))
        tensor = base[7919:]
        alias = tensor.detach()
        place = next((at for at in _OFFSETS if word(tensor._cdata + at) == 7919), 0)
        found = [
            [word(each._cdata + at) for at in (_STORAGE, _COUNTER, place)] for each in (tensor, alias, other)
        ]
        storage = tensor.untyped_storage()
        placed = word(id(tensor) + _IMPL) == tensor._cdata
        # Only aliases share a storage and a version counter: the words are their addresses.
        shared = found[0] == found[1] and all(mine != theirs for mine, theirs in zip(found[0], found[2]))
        if not (place and placed and shared and found[0][0] == storage._cdata):
            return ()
        counter, versions = found[0][1], list[bool]()
        if counter < 1 << 16 or counter % _WORD:
            return ()
        for _ in range(3):
            versions.append(word(counter + _VERSION) & 0xFFFFFFFF == tensor._version)
            tensor.add_(1)
        square, pairs = tensor.view(9, 9), torch.zeros(81, dtype=torch.complex64, device="cpu")

        def telling(offsets: Iterable[int], one: torch.Tensor, other: torch.Tensor) -> list[int]:
            places = [place + offset for offset in offsets]
            return [at for at in places if word(one._cdata + at) != word(other._cdata + at)][:1]

        lengths = [telling(_LENGTHS, square, other) for other in (tensor, square.t(), tensor.view(3, 27))]
        kinds = [
            telling(_KINDS, pairs.imag, pairs.conj().imag),
            telling(_KINDS, alias, alias.view(torch.int32)),
        ]
        placed = word(storage._cdata + _DATA) == storage.data_ptr()
        if not (all(versions) and placed and all(lengths) and all(kinds)):
            return ()
        return *(place + offset for offset in _LENGTHS), place, *(at for found in kinds for at in found)
