"""A few elements of each state tensor, by which writes are seen that leave no other trace (`.data`, numpy views)."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import torch

ELEMENTS = 8
"""Elements of each tensor, from the first to the last at even distances."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Stamped(Protocol):
    """A tensor that there are copies of, `owner[key]`; `stamp` grows when it has changed."""

    owner: Mapping[str, Any]
    key: str
    stamp: int


class Samples:
    """Samples of the tensors on the host that other devices have copies of.

    A look takes 0.15 µs a tensor. A write that changes none of the sampled elements is not seen.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._masters: list[weakref.ref[Any]] = []
        self._stamps: list[int] = []
        self._views: dict[torch.dtype, list[torch.Tensor]] = {}
        self._owners: dict[torch.dtype, torch.Tensor] = {}
        self._saved: dict[torch.dtype, torch.Tensor] = {}

    def add(self, master: Stamped) -> None:
        """Sample this one too, from the next `settle` on."""
        self._known.add(master)

    def look(self) -> None:
        """Count what was written without a trace since the last `settle` as changed."""
        with torch.no_grad(), torch.inference_mode(False):
            for kind, views in self._views.items():
                now = torch.cat(views)
                if not torch.equal(now, self._saved[kind]):
                    for number in self._owners[kind][now != self._saved[kind]].unique().tolist():
                        master = self._masters[number]()
                        if master is not None:
                            master.stamp += 1

    def settle(self) -> None:
        """All copies that are stale count as that: take the tensors as they are now."""
        masters = list(self._known)
        stamps = [master.stamp for master in masters]
        if stamps != self._stamps:
            self._stamps = stamps
            with torch.no_grad(), torch.inference_mode(False):
                self._save(masters)

    def _save(self, masters: list[Any]) -> None:
        self._masters, self._views = [weakref.ref(master) for master in masters], {}
        owners: dict[torch.dtype, list[int]] = {}
        for number, master in enumerate(masters):
            view = _sampled(master.owner[master.key])
            if view is not None:
                self._views.setdefault(view.dtype, []).append(view)
                owners.setdefault(view.dtype, []).extend([number] * len(view))
        self._owners = {kind: torch.tensor(numbers) for kind, numbers in owners.items()}
        self._saved = {kind: torch.cat(views) for kind, views in self._views.items()}


def _sampled(tensor: Any) -> torch.Tensor | None:
    """A view of some elements, as integers; None for what has none on the host."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not tensor.numel():
        return None
    kind = _BITS.get(tensor.element_size())
    if kind is None:
        return None
    flat = tensor.detach()
    flat = flat.view(-1) if flat.is_contiguous() else flat.as_strided((1,), (1,))
    return flat[:: -(-flat.numel() // ELEMENTS)].view(kind)
