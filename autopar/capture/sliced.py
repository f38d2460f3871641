"""Slices of the user's own parameters, always up to date: `sliced`."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..ir.slices import Slice


class _Sliced(Mapping[str, Any]):
    """The owner of a slice of the tensor `owner[key]`: a view of it under the same key.

    The view shares its version with the tensor, so that changes of either are seen in both, and is made anew only if
    the tensor or its memory is replaced.
    """

    def __init__(self, owner: Mapping[str, Any], key: str, part: Slice) -> None:
        self.owner, self.key, self.part = owner, key, part
        self._whole: Any = None
        self._view: Any = None
        self._memory = -1

    def __getitem__(self, key: str) -> torch.Tensor:
        whole = self.owner[key]
        memory = whole.data_ptr()
        if whole is not self._whole or memory != self._memory:
            with torch.inference_mode(False), torch.no_grad():
                view = whole.narrow(self.part.axis, self.part.start, self.part.length)
                self._view = view.requires_grad_(whole.requires_grad)
            self._whole, self._memory = whole, memory
        return self._view

    def __iter__(self) -> Iterator[str]:
        return iter((self.key,))

    def __len__(self) -> int:
        return 1


_known: weakref.WeakValueDictionary[tuple[int, str, Slice], _Sliced] = weakref.WeakValueDictionary()


def sliced(owner: Mapping[str, Any], key: str, part: Slice) -> Mapping[str, Any]:
    """Return the owner of a slice of `owner[key]`, always the same one, by which programs recognise the same state."""
    return _known.setdefault((id(owner), key, part), _Sliced(owner, key, part))
