"""A shortcut from the user's arguments to compiled kernels, once Dynamo's guards hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from ..capture.dynamo_private import Traced
from ..capture.torch_private import transformed
from ..pipeline.calls import Short
from ..runtime.inline_call import chosen
from ..runtime.tuned import TunedExecutor
from .backend import Backend
from .served import Served

_ARGUMENT = re.compile(r"L\['args'\]\[(\d+)\]")


class Shortcut:
    """A call path for positional tensors that skips Dynamo's frame entry, generated code and program look-up, which
    are half of the cost of a short call.

    It serves calls of one program with compiled kernels and no side effects that returns a tensor, or a tuple or list
    of tensors.
    """

    def __init__(
        self,
        backend: Backend,
        served: Served,
        short: Short,
        guard: Callable[[tuple[Any, ...]], bool],
        inputs: Sequence[int],
        answer: Callable[[list[Any]], Any],
    ) -> None:
        self._backend, self._programs, self._short, self._guard = backend, served.programs, short, guard
        self._latest = served, short.prepared
        assert isinstance(short.prepared.executor, TunedExecutor)
        self._kernels = short.prepared.executor.by_kernels
        self._inputs, self._answer = chosen(inputs), answer

    @classmethod
    def of(cls, backend: Backend, traced: Traced, args: tuple[Any, ...], output: Any) -> Shortcut | None:
        """Return the shortcut for calls like the one that has just returned `output`; None if there is none."""
        returned = backend.returned or ()
        if len(returned) != 1 or not all(isinstance(item, torch.Tensor) for item in args):
            return None
        ((served, found),) = returned
        short, answer = served._short, _answer(found, output)
        if short is None or answer is None or not served.whole or served.backend.root is None:
            return None
        if not isinstance(short.prepared.executor, TunedExecutor):
            return None
        pinned, inputs = {}, []
        for place in served.arguments.places:
            given = _ARGUMENT.fullmatch(place.source)
            if place.kind == "state" and place.key in place.owner:
                pinned[place.source] = place.owner[place.key]
            elif place.kind == "input" and given is not None:
                inputs.append(int(given[1]))
            else:
                return None
        guard = traced.guard(args, pinned)
        return cls(backend, served, short, guard, inputs, answer) if guard is not None else None

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """Return the output; None if the call does not match."""
        backend, short = self._backend, self._short
        if (
            backend.recording is not None
            or self._programs.get(()) is not short.prepared
            or transformed()
            or not self._guard(args)
        ):
            return None
        outputs = self._kernels(self._inputs(args))
        if outputs is None:
            return None
        backend.calls += 1
        backend.latest = self._latest
        return self._answer(short.completed(outputs))


def _answer(found: list[Any], output: Any) -> Callable[[list[Any]], Any] | None:
    """Return the function from the results of a graph to the model's output; None if it needs anything else."""
    place = {id(item): at for at, item in enumerate(found)}
    if len(place) < len(found) or any(not isinstance(item, torch.Tensor) for item in found):
        return None
    if isinstance(output, torch.Tensor):
        return itemgetter(place[id(output)]) if id(output) in place else None
    if type(output) not in (tuple, list) or any(id(item) not in place for item in output):
        return None
    pick, kind = chosen([place[id(item)] for item in output]), type(output)
    return lambda results: kind(pick(results))
