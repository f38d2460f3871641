"""`Watch`: whether state has changed since kernels were made that fold it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from .replicas import ELEMENTS, Master, bits

PLACES = 8
"""Places in each tensor, from its first elements to its last, of which each look samples the next."""


class Watch:
    """The state of `masters` as it was when last taken note of.

    A change is seen by identity, `_version`, address, an optimizer step or `Replicas.forget`, and, where it leaves none
    of these traces (through `.data` or a numpy view), by a few elements of each tensor. They are adjacent, at another
    place in each look, because elements that are far apart are as many cache misses. A look takes some 0.2 µs a
    tensor. State that was made in inference mode has no version, and counts as changed.
    """

    def __init__(self, masters: Sequence[Master]) -> None:
        self._masters = masters
        self.take()

    def take(self) -> None:
        """Take note of the state as it is now."""
        stamps = [master.look() for master in self._masters]
        tensors = [master.tensor for master in self._masters]
        self._traces = [
            (master, master.owner, master.key, tensor, stamp, master.version, tensor.data_ptr())
            for master, tensor, stamp in zip(self._masters, tensors, stamps)
        ]
        with torch.no_grad(), torch.inference_mode(False):
            self._samples = itertools.cycle([_samples(tensors, place) for place in range(PLACES)])

    def unchanged(self) -> bool:
        """True if all of it is as it was."""
        for master, owner, key, tensor, stamp, version, pointer in self._traces:
            if (
                owner[key] is not tensor
                or master.stamp != stamp
                or version < 0
                or tensor._version != version
                or tensor.data_ptr() != pointer
            ):
                return False
        return all(torch.equal(torch.cat(views), saved) for views, saved in next(self._samples))


def _samples(tensors: Sequence[Any], place: int) -> list[tuple[list[Any], torch.Tensor]]:
    """Views of a few elements of each tensor at one of the places, by dtype, and what they are now."""
    views: dict[torch.dtype, list[Any]] = {}
    for flat in map(bits, tensors):
        if flat is not None:
            first = max(0, flat.numel() - ELEMENTS) * place // (PLACES - 1)
            views.setdefault(flat.dtype, []).append(flat[first : first + ELEMENTS])
    return [(own, torch.cat(own)) for own in views.values()]
