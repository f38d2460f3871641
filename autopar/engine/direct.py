"""The way of a call to a placed model: by a shortcut or through Dynamo, or to the plain model where that is faster."""

from __future__ import annotations

import logging
import math
import re
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import methodcaller
from typing import Any, TypeAlias

import torch
from torch import is_grad_enabled, nn

from ..capture.dynamo_private import Arguments, Check, Guard
from ..capture.torch_private import transformed
from ..costs.detect import present
from ..pipeline.calls import RESIZED
from ..pipeline.stages import Prepared
from ..runtime import trial
from ..runtime.inline_call import chosen
from ..runtime.tuned import TunedExecutor
from .backend import Backend, Planned
from .outputs import Results, maker, results_of
from .served import Served

log = logging.getLogger("autopar")

FIRST, MORE = 3, 10
"""The first call in which a shortcut is sought, and the factor by which that number grows each time. Earlier
calls are not typical: the first is compared with eager, the second makes the short path of its graph."""
MOST = 64
"""Limit on the number of remembered sets of sizes, and of remembered forms of a call."""
UNSEEN = 50
"""Calls that the plain model serves, once it is faster, before sizes are looked at again, which takes 0.5 µs
for one tensor and 0.2 µs for each further one. Only while there is one set of sizes."""
_ARGUMENT = re.compile(r"(?:L\['args'\]\[(\d+)\]|L\['kwargs'\]\['(\w+)'\])(?:\.(\w+)\(\)(?:\[(\d+)\])?)?")
"""Dynamo's name of an argument, or of a size, stride or offset of one."""
_KINDS = (torch.Tensor, type(None), bool, int, float, str)
"""Types of the arguments of a shortcut; the guards compare constants."""
_Entry: TypeAlias = tuple[Results, tuple[Served, Planned]]
"""The function from the inputs of a graph to its results, for calls of one set of sizes; the graph and the program."""


class _Direct:
    """The way of a call to a placed model: a shortcut if there is one, else through Dynamo.

    If `contested`, the placed and the plain model, which needs no guards, compete. Once the kernels of all programs
    are chosen, they alternate in the caller's own calls without gradients (`trial`), for each set of sizes. If the
    plain model wins, it serves, and the trial is repeated later (`trial.AGAIN`). The plain model is right whatever
    has changed in the meantime.
    """

    def __init__(self, model: Callable[..., Any], guard: Guard, backend: Backend, contested: bool) -> None:
        self._model, self._guard, self._backend, self.contested = model, guard, backend, contested
        self._searches: dict[Hashable, _Search] = {}
        """The shortcuts by the form of a call: with or without gradients, and how arguments are passed. Calls of one
        form, such as those of `generate`, must not put off the search for another."""
        self._ahead: _Shortcut | None = None
        """The shortcut of calls without gradients, if it serves calls of one set of sizes."""
        self._known: dict[Hashable, _Sizes] = {}
        self._unseen = 0
        devices = backend.machine.devices
        self._accelerators = [device.torch_device for device in devices if device.torch_type != "cpu"]

    def __call__(self, placed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the model's output, computed by the plain model or by its `placed` form."""
        grad, recording = is_grad_enabled(), self._backend.recording is not None
        # First, and with as little memory read as can be, since the model's own calls are short here.
        if self._unseen and not grad and not recording:
            self._unseen -= 1
            return self._model(*args, **kwargs)
        if grad or not self.contested:
            return self._by_plan(placed, args, kwargs, grad)
        if self._ahead is not None and (found := self._ahead(args, kwargs)) is not None:
            return found
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
        known = search.shortcut
        if known is not None and known is not self._ahead and (found := known(args, kwargs)) is not None:
            return found
        search.long += 1
        if search.long < search.next or backend.recording is not None:
            return placed(*args, **kwargs)
        search.next *= MORE
        backend.returned = []
        try:
            made = placed(*args, **kwargs)
            search.shortcut = _Shortcut.of(backend, self._guard, (args, kwargs), made) or known
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
        return bool(executors) and all(isinstance(each, TunedExecutor) and each.settled for each in executors)


def way(model: Callable[..., Any], guard: Guard, backend: Backend) -> _Direct:
    """Return the way of calls. The plain model competes if the user asked for the fastest form and for nothing that
    requires a plan, such as memory of several devices."""
    options, free = backend.options, backend.given is None
    plain = options.kernels == "auto" and options.check != "always" and options.batch_norm == "full"
    contested = plain and free and present(backend.machine) and _alike(model, backend)
    return _Direct(model, guard, backend, contested)


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
        self.shortcut: _Shortcut | None = None
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


class _Shortcut:
    """A call path that skips Dynamo's frame entry, generated code and program look-up, which are most of
    autopar's cost in a short call.

    It serves calls of one graph whose arguments are tensors and constants, and whose output is a tensor, or
    a tuple, list or dict of tensors. The program has compiled kernels, one lane in the caller's thread, or a
    backward. A call may have one side effect: it sets attributes to constants that they already have.

    resized: the graph is for calls of several sizes; each set of sizes has its program.
    """

    def __init__(
        self,
        backend: Backend,
        served: Served,
        names: tuple[str, ...],
        inputs: Sequence[int],
        sizes: Sequence[tuple[int, Callable[[Any], Any] | None]],
        answer: Callable[[list[Any]], Any],
    ) -> None:
        self._backend, self._served = backend, served
        self._region, self._programs = served.region, served.programs
        self._stores, self._names, self._answer = served.stores or (), names, answer
        self._inputs, self._sizes, self.resized = chosen(inputs), sizes, bool(sizes)
        self.entries: dict[Hashable, _Entry] = {}
        self._tuned = False
        """True if executors check the weights themselves, so that guards do not."""
        self._holds: Check = lambda *_: False

    @classmethod
    def of(cls, backend: Backend, guard: Guard, arguments: Arguments, output: Any) -> _Shortcut | None:
        """Return the shortcut for calls like the one that has just returned `output`; None if there is none."""
        returned, (args, kwargs) = backend.returned or (), arguments
        values = (*args, *kwargs.values())
        if len(returned) != 1 or not all(isinstance(item, _KINDS) for item in values):
            return None
        ((served, found),) = returned
        answer = maker(found, output)
        if answer is None or served.stores is None or backend.root is None:
            return None
        pinned, inputs, sizes, names = {}, [], [], (*kwargs,)
        for place in served.region.places:
            if place.kind == "state" and place.key in place.owner:
                pinned[place.source] = place.owner[place.key]
                continue
            given = _ARGUMENT.fullmatch(place.source)
            if given is None or place.kind == "state":
                return None
            at = int(given[1]) if given[1] else len(args) + names.index(given[2])
            if place.kind == "size":
                axis = (int(given[4]),) if given[4] else ()
                sizes.append((at, methodcaller(given[3], *axis) if given[3] else None))
            elif given[3]:
                return None
            else:
                inputs.append(at)
        made = cls(backend, served, names, inputs, sizes, answer)
        entry = made._entry(values)
        if entry is None:
            return None
        made._tuned = _tuned(entry[1][1])
        # Kernels check the weights themselves, but not whether these require grad.
        watched = (*pinned,) if made._tuned and not torch.is_grad_enabled() else ()
        pinned |= {source: item for source, item, _, _ in served.stores}
        holds = guard(arguments, pinned, watched)
        if holds is None:
            return None
        made._holds = holds
        backend.direct.add(served)
        # A new list, as another thread may read the old one.
        served.shortcuts = [*(each for each in served.shortcuts if each()), weakref.ref(made)]
        return made

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output; None if the call does not match."""
        backend = self._backend
        if (
            backend.recording is not None
            # Then the region may hold the state of another call.
            or self._region.moved
            or (*kwargs,) != self._names
            or transformed()
            or not self._holds(args, kwargs)
        ):
            return None
        for _, item, name, value in self._stores:
            if getattr(item, name, self) is not value:
                return None
        values = (*args, *kwargs.values()) if kwargs else args
        # The key of one set of sizes is (), which saves the look-up.
        entry = self.entries.get(())
        if entry is None or self._programs.get(()) is not entry[1][1]:
            entry = self._entry(values)
            if entry is None:
                return None
        results, latest = entry
        found = results(self._inputs(values))
        if found is None:
            return None
        backend.calls += 1
        backend.latest = latest
        return self._answer(found)

    def _entry(self, values: Sequence[Any]) -> _Entry | None:
        """Return the entry for the sizes of a call whose guards hold; None if their program cannot serve it alone."""
        served, sizes, key = self._served, list[Any](), tuple[Any, ...]()
        if self.resized:
            sizes = [values[at] if read is None else read(values[at]) for at, read in self._sizes]
            key = self._region.key(sizes)
        entry, prepared = self.entries.get(key), self._programs.current(key)
        if entry is not None and entry[1][1] is prepared:
            return entry
        if entry is not None or len(self.entries) >= RESIZED:
            # A program was dropped, and perhaps others with it: nothing here may keep their memory.
            self.entries.clear()
        if prepared is None or served.programs is not self._programs:
            return None
        results = results_of(served, prepared, self._inputs(values), sizes)
        # Eager may have won meanwhile; its program needs guards on the weights.
        if results is None or (self._tuned and not _tuned(prepared)):
            return None
        self.entries[key] = entry = results, (served, prepared)
        return entry


def _tuned(prepared: Planned) -> bool:
    """Return True if the executor of a program checks the weights itself, as one with kernels does."""
    executor = prepared.executor if isinstance(prepared, Prepared) else None
    return isinstance(executor, TunedExecutor) and executor.holds
