"""`Direct`: calls that the model itself answers, where it is faster than its placed form."""

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
"""Calls without a shortcut after which one is looked for, and how many times as many until the next time. The first is
the first of a trial, which is not counted."""
MOST = 64
"""Sets of sizes that are remembered."""


class Direct:
    """Chooses between a placed model and the model itself, which needs no guards, for calls without gradients.

    Once the kernels of all programs are chosen, the two take turns in the caller's own calls (`trial`), for each set of
    sizes; where the placed model does not win, the model itself serves, and the trial is held again after a while
    (`trial.AGAIN`). What the model itself answers is right whatever has changed in the meantime.
    """

    def __init__(self, model: Callable[..., Any], traced: Traced, backend: Backend) -> None:
        self._model, self._traced, self._backend = model, traced, backend
        self._shortcut: Shortcut | None = None
        self._ahead: Shortcut | None = None
        """The same where it serves without more ado."""
        self._long, self._next = 0, FIRST
        self._known: dict[Hashable, _Sizes] = {}

    @classmethod
    def fits(cls, backend: Backend) -> bool:
        """True if the user asked for what is fastest, and for nothing that only a plan gives."""
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
        """The model's answer, by itself or by its `placed` form."""
        if self._ahead is not None and not kwargs and (found := self._ahead(args)) is not None:
            return found
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
            if known.tenure.ends():
                known.trial = trial.Trial()
            return self._model(*args, **kwargs)
        return self._in_turn(known, known.trial, placed, args, kwargs)

    def notes(self) -> list[str]:
        """A sentence where the model itself serves calls."""
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
        current.note(candidate, time.perf_counter() - began)
        if current.over and known.trial is current:
            known.end(current.ratio)
            self._ahead = None
            if not known.placed:
                log.info("placed: %.2f of the model's own time, the model itself serves", current.ratio)
        return made

    def _by_plan(self, placed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of the placed model, by a shortcut where there is one. It is looked for after a few calls without
        one, and ten times as many again."""
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
        """True if there are programs, the kernels of each are chosen, and none is on trial."""
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
    """What is known of calls of one set of sizes: whether they are `placed` or the model itself serves for a time, and
    the placed calls' seconds ÷ the model's."""

    def __init__(self) -> None:
        self.trial: trial.Trial | None = trial.Trial() if trial.CALLS else None
        self.placed, self.ratio, self.tenure = True, math.nan, trial.Tenure()

    def end(self, ratio: float) -> None:
        """Take the outcome of the trial."""
        self.trial, self.ratio, self.placed = None, ratio, ratio <= 1
        if not self.placed:
            self.tenure.renew()


def _sizes(values: Iterable[Any]) -> tuple[Any, ...] | None:
    """Sizes and types of tensors, and numbers, as a key; None where there is something else."""
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
