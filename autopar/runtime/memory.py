"""State on the devices: read from the model at each call, copied anew to where it resides when it has
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_steps_taken = 0
"""Optimizer steps in this process: a fused optimizer writes parameters without a trace in `_version`."""


def _stepped(*_: Any) -> None:
    global _steps_taken
    _steps_taken += 1


register_optimizer_step_post_hook(_stepped)


class _Held:
    """One state value, the tensor last seen for it and its copies: (position among the fed buffers,
    device).
    """

    __slots__ = ("copies", "key", "owner", "place", "pointer", "seen", "version")

    def __init__(self, owner: Mapping[str, Any], key: str) -> None:
        self.owner, self.key = owner, key
        self.place: int | None = None
        self.copies: list[tuple[int, torch.device]] = []
        self.seen: Any = None
        self.version = self.pointer = -1


class Residents:
    """The tensors of the `fed` buffers. `fill` gives them for a call, having refreshed copies of what
    changed.

    A change is seen by identity, `_version`, address, or an optimizer step. Writes that leave no trace in any
    of them (through `.data` or a numpy view) are not: `forget` makes the next call copy everything.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._fed: list[Any] = []
        self._steps = -1

    def add(self, value: str, owner: Mapping[str, Any], key: str, device: torch.device, copy: bool) -> None:
        """The next fed buffer: state `value`, which is `owner[key]`, itself or a copy of it on `device`."""
        held = self._held.setdefault(value, _Held(owner, key))
        if copy:
            held.copies.append((len(self._fed), device))
        else:
            held.place = len(self._fed)
        self._fed.append(None)

    def forget(self) -> None:
        """Copy every resident again at the next call."""
        for held in self._held.values():
            held.seen = None

    def fill(self, refresh: Callable[[torch.Tensor, torch.device, Any], torch.Tensor]) -> list[Any]:
        """The tensors, in the order of `add`; `refresh(tensor, device, copy it had)` gives an up-to-date
        copy.
        """
        fed = self._fed
        taken = _steps_taken
        stepped = self._steps != taken
        for held in self._held.values():
            tensor = held.owner[held.key]
            if held.place is not None:
                fed[held.place] = tensor
            if held.copies and (stepped or _changed(held, tensor)):
                for position, device in held.copies:
                    fed[position] = refresh(tensor, device, fed[position])
                held.seen, held.pointer = tensor, _pointer(tensor)
                held.version = -1 if tensor.is_inference() else tensor._version
        self._steps = taken
        return fed

    def tensors(self) -> list[Any]:
        """What `fill` gave last."""
        return self._fed


def _changed(held: _Held, tensor: Any) -> bool:
    return (
        held.seen is not tensor
        or tensor.is_inference()
        or held.version != tensor._version
        or held.pointer != _pointer(tensor)
    )


def _pointer(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided else -1
