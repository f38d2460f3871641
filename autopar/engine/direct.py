"""The way of a call to a placed model: by a shortcut or through Dynamo, or to the plain model where that is faster."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import nn

from ..capture.dynamo_private import Guard
from ..costs.detect import present
from ..runtime import trial
from ..runtime.tuned import TunedExecutor
from .backend import Backend
from .shortcut import Shortcut

log = logging.getLogger("autopar")

FIRST, MORE = 3, 10
"""The first call in which a shortcut is sought, and the factor by which that number grows each time. Earlier
calls are not typical: the first is compared with eager, the second makes the short path of its graph."""
MOST = 64
"""Limit on the number of remembered sets of sizes, and of remembered forms of a call."""
UNSEEN = 10
"""Calls that the plain model serves, once it is faster, before sizes are looked at again, which takes about 1 µs
a tensor. Only while there is one set of sizes."""


class Direct:
    """The way of a call to a placed model: a shortcut if there is one, else through Dynamo.

    If the user asked for the fastest form (`contested`), the placed and the plain model, which needs no
    guards, compete. Once the kernels of all programs are chosen, they alternate in the caller's own calls
    without gradients (`trial`), for each set of sizes. If the plain model wins, it serves, and the trial is
    repeated later (`trial.AGAIN`). The plain model is right whatever has changed in the meantime.
    """

    def __init__(self, model: Callable[..., Any], guard: Guard, backend: Backend) -> None:
        self._model, self._guard, self._backend = model, guard, backend
        self._searches: dict[Hashable, _Search] = {}
        """The shortcuts by the form of a call: with or without gradients, and how arguments are passed. Calls of one
        form, such as those of `generate`, must not put off the search for another."""
        self._ahead: Shortcut | None = None
        """The shortcut of calls without gradients, if it serves calls of one set of sizes."""
        self._known: dict[Hashable, _Sizes] = {}
        self._unseen = 0
        options, machine = backend.options, backend.machine
        self.contested = (
            options.kernels == "auto"
            and options.check != "always"
            and options.batch_norm == "full"
            and backend.given is None
            and present(machine)
            and _alike(model, backend)
        )
        """True if the user asked for the fastest form and for nothing that requires a plan, such as memory of several
        devices."""
        self._accelerators = [device.torch_device for device in machine.devices if device.torch_type != "cpu"]

    def __call__(self, placed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the model's output, computed by the plain model or by its `placed` form."""
        grad = torch.is_grad_enabled()
        if grad or not self.contested:
            return self._by_plan(placed, args, kwargs, grad)
        if self._ahead is not None and (found := self._ahead(args, kwargs)) is not None:
            return found
        recording = self._backend.recording is not None
        if self._unseen and not recording:
            self._unseen -= 1
            return self._model(*args, **kwargs)
        key = None if recording else _sizes((*args, *kwargs.values()) if kwargs else args)
        known = self._known.get(key)
        if known is None:
            made = placed(*args, **kwargs)
            if key is not None and self._settled():
                if len(self._known) >= MOST:
                    self._known.clear()
                self._known[key] = _Sizes()
            return made
        if not known.trial.on:
            if known.placed:
                made = self._by_plan(placed, args, kwargs)
                shortcut = self._search(args, kwargs, False).shortcut
                self._ahead = None if shortcut is None or shortcut.resized else shortcut
                return made
            self._unseen = UNSEEN if len(self._known) == 1 else 0
            if known.trial.due(1 + self._unseen):
                known.trial.begin()
                self._unseen = 0
            return self._model(*args, **kwargs)
        return self._in_turn(known, placed, args, kwargs)

    @property
    def on_trial(self) -> bool:
        """True if the placed and the plain model take turns in calls of some sizes."""
        return any(known.trial.on for known in list(self._known.values()))

    @property
    def plain(self) -> bool:
        """True if the plain model serves calls of all sizes."""
        known = list(self._known.values())
        return bool(known) and not any(each.placed for each in known)

    def notes(self) -> list[str]:
        """Return a sentence if the plain model serves calls."""
        ratios = [known.ratio for known in self._known.values() if not known.placed]
        if not ratios:
            return []
        return [
            f"the model itself answers calls of {len(ratios)} sets of sizes: placed they took up to "
            f"{max(ratios):.2f} of its time, measured in turns in the caller's own calls"
        ]

    def _in_turn(self, known: _Sizes, placed: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        current = known.trial
        candidate = current.candidate_next
        self._drain()
        began = time.perf_counter()
        if candidate:
            made = self._by_plan(placed, args, kwargs)
        else:
            try:
                made = self._model(*args, **kwargs)
            except torch.OutOfMemoryError:
                known.end(0.0)
                return self._by_plan(placed, args, kwargs)
        self._drain()
        current.note(candidate, began, time.perf_counter())
        if current.on and current.over:
            known.end(current.ratio)
            self._ahead = None
            if not known.placed:
                log.info("placed: %.2f of the model's own time, the model itself serves", current.ratio)
        return made

    def _drain(self) -> None:
        """Block until the accelerators are idle."""
        for device in self._accelerators:
            torch.accelerator.synchronize(device)

    def _by_plan(
        self, placed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool = False
    ) -> Any:
        """Call the placed model, by a shortcut if there is one. A shortcut is sought in the third call of its form
        without one, then in the 30th, the 300th, and so on."""
        backend, search = self._backend, self._search(args, kwargs, grad)
        shortcut = search.shortcut
        if (
            shortcut is not None
            and shortcut is not self._ahead
            and (found := shortcut(args, kwargs)) is not None
        ):
            return found
        search.long += 1
        if search.long < search.next or backend.recording is not None:
            return placed(*args, **kwargs)
        search.next *= MORE
        backend.returned = []
        try:
            made = placed(*args, **kwargs)
            search.shortcut = Shortcut.of(backend, self._guard, (args, kwargs), made) or shortcut
        finally:
            backend.returned = None
        return made

    def _search(self, args: tuple[Any, ...], kwargs: dict[str, Any], grad: bool) -> _Search:
        """Return the search for calls of this form."""
        form = (grad, len(args), *kwargs)
        found = self._searches.get(form)
        if found is None:
            if len(self._searches) >= MOST:
                self._searches.clear()
            found = self._searches[form] = _Search()
        return found

    def _settled(self) -> bool:
        """Return True if there are programs, the kernels of each are chosen, and none is on trial."""
        executors = self._backend.executors()
        return bool(executors) and all(
            isinstance(executor, TunedExecutor) and executor.settled for executor in executors
        )


def _alike(model: Callable[..., Any], backend: Backend) -> bool:
    """Return True if the plain model computes where its placed form does: on CPUs alone, or on one
    accelerator, on which the whole model is."""
    devices = {torch.device(device.torch_device) for device in backend.machine.devices}
    held = (*model.parameters(), *model.buffers()) if isinstance(model, nn.Module) else ()
    homes = {tensor.device for tensor in held}
    if devices == {torch.device("cpu")}:
        return homes <= devices
    return len(devices) == 1 and homes == devices and backend.options.split in (None, "auto")


class _Search:
    """The shortcut of calls of one form, the number of calls without it, and that of the next search."""

    def __init__(self) -> None:
        self.shortcut: Shortcut | None = None
        self.long, self.next = 0, FIRST


class _Sizes:
    """State of the calls of one set of sizes: whether the `placed` or the plain model serves for now, and the
    ratio of their seconds."""

    def __init__(self) -> None:
        self.placed, self.ratio, self.trial = True, math.nan, trial.Trial()
        if trial.CALLS:
            self.trial.begin()

    def end(self, ratio: float) -> None:
        """Record the ratio of a finished trial."""
        self.ratio, self.placed = ratio, ratio <= 1
        self.trial.end(again=not self.placed)


def _sizes(values: Iterable[Any]) -> tuple[Any, ...] | None:
    """Return a key: sizes and dtypes of tensors, numbers, strings; None if there is any other value."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found += (value.shape, value.dtype)
        elif isinstance(value, (list, tuple)):
            inner = _sizes(value)
            if inner is None:
                return None
            found.append(inner)
        elif value is None or isinstance(value, (int, float, str)):
            found.append(value)
        else:
            return None
    return tuple(found)
