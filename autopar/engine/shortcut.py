"""A shortcut from the user's arguments to the program of a call, once Dynamo's guards hold."""

from __future__ import annotations

import dataclasses
import re
import weakref
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter, methodcaller
from typing import Any

import torch

from ..capture.dynamo_private import Arguments, Check, Guard
from ..capture.torch_private import pytree, transformed
from ..pipeline.calls import RESIZED
from ..pipeline.stages import Prepared
from ..runtime.inline_call import chosen
from ..runtime.tuned import TunedExecutor
from .backend import Backend, Planned
from .served import Served

_ARGUMENT = re.compile(r"(?:L\['args'\]\[(\d+)\]|L\['kwargs'\]\['(\w+)'\])(?:\.(\w+)\(\)(?:\[(\d+)\])?)?")
"""Dynamo's name of an argument, or of a size, stride or offset of one."""
_KINDS = (torch.Tensor, type(None), bool, int, float, str)
"""Types of the arguments of a shortcut; the guards compare constants."""


class Shortcut:
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
    def of(cls, backend: Backend, guard: Guard, arguments: Arguments, output: Any) -> Shortcut | None:
        """Return the shortcut for calls like the one that has just returned `output`; None if there is none."""
        returned, (args, kwargs) = backend.returned or (), arguments
        values = (*args, *kwargs.values())
        if len(returned) != 1 or not all(isinstance(item, _KINDS) for item in values):
            return None
        ((served, found),) = returned
        answer = _answer(found, output)
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
        made._tuned = _tuned(entry.prepared)
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
        entry = self._entry(values)
        if entry is None:
            return None
        found = entry.results(self._inputs(values))
        if found is None:
            return None
        backend.calls += 1
        backend.latest = entry.latest
        return self._answer(found)

    def _entry(self, values: Sequence[Any]) -> _Entry | None:
        """Return the entry for the sizes of a call whose guards hold; None if their program cannot serve it alone."""
        served, sizes, key = self._served, list[Any](), tuple[Any, ...]()
        if self.resized:
            sizes = [values[at] if read is None else read(values[at]) for at, read in self._sizes]
            key = self._region.key(sizes)
        entry, prepared = self.entries.get(key), self._programs.current(key)
        if entry is not None and entry.prepared is prepared:
            return entry
        if entry is not None or len(self.entries) >= RESIZED:
            # A program was dropped, and perhaps others with it: nothing here may keep their memory.
            self.entries.clear()
        if (
            prepared is None
            or served.programs is not self._programs
            or (self._tuned and not _tuned(prepared))
        ):
            return None
        results = served.results(prepared, self._inputs(values), sizes)
        if results is None:
            return None
        self.entries[key] = entry = _Entry(prepared, results, (served, prepared))
        return entry


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """The program for calls of one set of sizes, and the function from its inputs to the results of the graph."""

    prepared: Planned
    results: Callable[[Sequence[Any]], list[Any] | None]
    latest: tuple[Served, Planned]


def _tuned(prepared: Planned) -> bool:
    """Return True if the executor of a program checks the weights itself, as one with kernels does."""
    return isinstance(prepared, Prepared) and isinstance(prepared.executor, TunedExecutor)


def _answer(found: list[Any], output: Any) -> Callable[[list[Any]], Any] | None:
    """Return the function from the results of a graph to the model's output; None if it needs anything else."""
    place = {id(item): at for at, item in enumerate(found)}
    if len(place) < len(found) or any(not isinstance(item, torch.Tensor) for item in found):
        return None
    kind, keyed = type(output), isinstance(output, dict)
    # Classes with fields, such as the outputs of transformers, are made from the fields that are not None.
    made = keyed and dataclasses.is_dataclass(output) and kind in pytree.SUPPORTED_NODES
    if made and vars(output).keys() != {field.name for field in dataclasses.fields(output)}:
        return None
    if isinstance(output, torch.Tensor):
        items = [output]
    else:
        items = list(output.values() if keyed else output) if made or kind in (tuple, list, dict) else []
    # The model may have set attributes of an output, which a new result would lack.
    if not items or any(id(item) not in place or vars(item) for item in items):
        return None
    if isinstance(output, torch.Tensor):
        return itemgetter(place[id(output)])
    pick = chosen([place[id(item)] for item in items])
    if not keyed:
        return lambda results: kind(pick(results))
    names = [*output]
    if kind is dict:
        return lambda results: dict(zip(names, pick(results)))
    return lambda results: kind(**dict(zip(names, pick(results))))
