"""The choice between the placed model and the plain model, whichever is faster."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch

from ..capture.dynamo_private import Traced
from ..costs.detect import present
from ..runtime import trial
from ..runtime.tuned import TunedExecutor
from .backend import Backend
from .shortcut import Shortcut

log = logging.getLogger("autopar")

FIRST, MORE = 1, 10
"""Calls without a shortcut before one is sought, and the factor by which that number grows each time. Excludes the
first call of a trial."""
MOST = 64
"""Limit on the number of remembered sets of sizes."""
UNSEEN = 10
"""Calls that the plain model serves, after one that it was the faster one for, before sizes are looked at again: the
look takes about 3 µs. Only while there is one set of sizes."""


class Direct:
    """The choice, by trial, between a placed model and the plain model, which needs no guards, for calls without
    gradients.

    After the kernels of all programs are chosen, the two alternate in the caller's own calls (`trial`), for each set
    of sizes. If the placed model does not win, the plain model serves, and the trial is repeated after a while
    (`trial.AGAIN`). Calls of the plain model are correct whatever has changed in the meantime.
    """

    def __init__(self, model: Callable[..., Any], traced: Traced, backend: Backend) -> None:
        self._model, self._traced, self._backend = model, traced, backend
        self._shortcut: Shortcut | None = None
        self._ahead: Shortcut | None = None
        """The shortcut, if it serves calls without further checks."""
        self._long, self._next = 0, FIRST
        self._known: dict[Hashable, _Sizes] = {}
        self._unseen = 0

    @classmethod
    def fits(cls, backend: Backend) -> bool:
        """Return True if the user asked for the fastest form and for nothing that requires a plan."""
        options, machine = backend.options, backend.machine
        return (
            options.kernels == "auto"
            and options.check != "always"
            and options.batch_norm == "full"
            and backend.given is None
            and present(machine)
            and all(device.torch_type == "cpu" for device in machine.devices)
        )

    def __call__(self, placed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the model's output, computed by the plain model or by its `placed` form."""
        if self._ahead is not None and not kwargs and (found := self._ahead(args)) is not None:
            return found
        if self._unseen and self._backend.recording is None and not torch.is_grad_enabled():
            self._unseen -= 1
            return self._model(*args, **kwargs)
        key = None
        if not torch.is_grad_enabled() and self._backend.recording is None:
            key = _sizes((*args, *kwargs.values()) if kwargs else args)
        known = self._known.get(key)
        if known is None:
            made = placed(*args, **kwargs)
            if key is not None and self._settled():
                if len(self._known) >= MOST:
                    self._known.clear()
                self._known[key] = _Sizes()
            return made
        if known.trial is None:
            if known.placed:
                made = self._by_plan(placed, args, kwargs)
                self._ahead = self._shortcut
                return made
            self._unseen = UNSEEN if len(self._known) == 1 else 0
            if known.tenure.ends(1 + self._unseen):
                known.trial, self._unseen = trial.Trial(), 0
            return self._model(*args, **kwargs)
        return self._in_turn(known, known.trial, placed, args, kwargs)

    @property
    def on_trial(self) -> bool:
        """True if placed and plain model take turns in calls of some sizes."""
        return any(known.trial is not None for known in list(self._known.values()))

    def notes(self) -> list[str]:
        """Return a sentence if the plain model serves calls."""
        ratios = [known.ratio for known in self._known.values() if not known.placed]
        if not ratios:
            return []
        return [
            f"the model itself answers calls of {len(ratios)} sets of sizes: placed they took up to "
            f"{max(ratios):.2f} of its time, measured in turns in the caller's own calls"
        ]

    def _in_turn(
        self, known: _Sizes, current: trial.Trial, placed: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        candidate, began = current.candidate_next, time.perf_counter()
        if candidate:
            made = self._by_plan(placed, args, kwargs)
        else:
            made = self._model(*args, **kwargs)
        current.note(candidate, began, time.perf_counter())
        if current.over and known.trial is current:
            known.end(current.ratio)
            self._ahead = None
            if not known.placed:
                log.info("placed: %.2f of the model's own time, the model itself serves", current.ratio)
        return made

    def _by_plan(self, placed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the placed model, by a shortcut if there is one. A shortcut is sought after a few calls without one,
        then after ten times as many."""
        backend, shortcut = self._backend, self._shortcut
        if shortcut is not self._ahead and shortcut and not kwargs and (found := shortcut(args)) is not None:
            return found
        self._long += 1
        if kwargs or self._long < self._next or backend.recording is not None:
            return placed(*args, **kwargs)
        self._next *= MORE
        backend.returned = []
        try:
            made = placed(*args)
            self._shortcut = Shortcut.of(backend, self._traced, args, made) or shortcut
        finally:
            backend.returned = None
        return made

    def _settled(self) -> bool:
        """Return True if there are programs, the kernels of each are chosen, and none is on trial."""
        executors = [
            executor
            for served in self._backend.served
            for planned in list(served.programs.values())
            for executor in planned.executors
        ]
        return bool(executors) and all(
            isinstance(executor, TunedExecutor) and executor.settled for executor in executors
        )


class _Sizes:
    """State of the calls of one set of sizes: whether they are `placed` or the plain model serves for now, and the
    ratio of placed to plain seconds."""

    def __init__(self) -> None:
        self.trial: trial.Trial | None = trial.Trial() if trial.CALLS else None
        self.placed, self.ratio, self.tenure = True, math.nan, trial.Tenure()

    def end(self, ratio: float) -> None:
        """Record the ratio of a finished trial."""
        self.trial, self.ratio, self.placed = None, ratio, ratio <= 1
        if not self.placed:
            self.tenure.renew()


def _sizes(values: Iterable[Any]) -> tuple[Any, ...] | None:
    """Return sizes and dtypes of tensors, and numbers, as a key; None if there is any other value."""
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
