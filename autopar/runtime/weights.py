"""`Weights`: a fingerprint of state tensors, which tells whether copies of them, on devices or in kernels, are still
right."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter, methodcaller
from typing import Any

import numpy
import torch

ELEMENTS = 8
"""Sampled elements of each tensor, evenly spaced from the first to the last."""
_KINDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
_attributes, _called = attrgetter("_version", "shape", "dtype"), methodcaller("__call__")


class Weights:
    """The fingerprint of the state `owner[key]` of each place, as it was when last recorded.

    A change is detected by identity, version, address, sizes, strides, dtype and bits of a tensor, by an optimizer's
    step or `Replicas.forget` (`expire`), and by a few elements of each tensor on the host: a write without another
    trace (through `.data` or a numpy view) that changes none of these goes unnoticed. State made in inference mode
    counts no writes, and has always changed. A check takes about a microsecond a tensor.

    places: the dicts that hold the tensors, with the keys.
    """

    def __init__(self, places: Sequence[tuple[Mapping[str, Any], str]]) -> None:
        self.places = [*places]
        self._expired = True
        self._state: Any = [], None, [], [], []

    def record(self) -> None:
        """Record the current state."""
        self._expired = False
        tensors = [owner[key] for owner, key in self.places]
        fixed = not any(tensor.is_inference() for tensor in tensors)
        strided = [tensor for tensor in tensors if tensor.layout is torch.strided]
        # `reading`, as bound methods: these take half the time.
        forms = [*(t.data_ptr for t in strided), *(t.stride for t in strided), *(t.is_neg for t in strided)]
        forms += [t.is_conj for t in strided if t.is_complex()]
        views: dict[Any, list[Any]] = {}
        for view in filter(lambda view: view is not None, map(_sample, strided if fixed else ())):
            views.setdefault((view.dtype, view.shape[1]), []).append(view)
        samples = [(rows, numpy.concatenate(rows).tobytes()) for rows in views.values()]
        attributes = [*map(_attributes, tensors)] if fixed else None
        # At once, since another thread may check meanwhile.
        self._state = tensors, attributes, forms, [*map(_called, forms)], samples

    def unchanged(self) -> bool:
        """Return True if nothing has changed."""
        tensors, attributes, forms, values, samples = self._state
        if self._expired or attributes is None:
            return False
        for (owner, key), tensor in zip(self.places, tensors):
            if owner.get(key) is not tensor:
                return False
        if [*map(_attributes, tensors)] != attributes or [*map(_called, forms)] != values:
            return False
        # Only now is it certain that the sampled memory still belongs to the tensors.
        return all(numpy.concatenate(views).tobytes() == known for views, known in samples)

    @property
    def tensor(self) -> Any:
        """The first recorded tensor."""
        return self._state[0][0]

    def expire(self, written: Collection[int] | None = None) -> None:
        """Count as changed until recorded again; only if a tensor, or what it is a view of, has one of the ids
        `written`, if these are given."""
        if written is None or any(
            id(tensor) in written or id(tensor._base) in written for tensor in self._state[0]
        ):
            self._expired = True


def _sample(tensor: torch.Tensor) -> Any:
    """Return a NumPy view of a few elements, as rows of integers; None if there are none on the host.

    It keeps the memory of the tensor alive, unless the storage is resized, which changes the address.
    """
    kind = _KINDS.get(tensor.element_size())
    if tensor.device.type != "cpu" or not tensor.numel() or kind is None:
        return None
    # Where a tensor has gaps between elements, like a block of columns, only row starts are sampled.
    count, stride = (tensor.numel(), 1) if tensor.is_contiguous() else (tensor.shape[0], tensor.stride(0))
    step, words = -(-count // ELEMENTS), tensor.element_size() // kind.itemsize
    with torch.no_grad(), torch.inference_mode(False):
        raw = torch.empty(0, dtype=kind, device="cpu").set_(
            tensor.untyped_storage(),
            tensor.storage_offset() * words,
            (-(-count // step), words),
            (stride * step * words, 1),
        )
        # `Tensor.numpy` would make the storage impossible to resize, for ever.
        return numpy.from_dlpack(raw)
