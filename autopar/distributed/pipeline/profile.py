"""Measured units: seconds of the forward and backward of each on this process's device, and the bytes it saves."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from .stages import StageModule, located
from .units import Units

ROUNDS = 5
"""Runs of each unit; the shortest counts, since disturbances only lengthen a run."""
_ADDED_BYTES = 1 << 25
"""Bytes of the gradients added, more than most caches hold."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a unit for a given number of rows, and bytes that its forward saves for the backward."""

    forward_s: float
    backward_s: float
    saved_bytes: int


def profile(units: Units, inputs: Sequence[Any], device: torch.device, trained: bool) -> list[Times]:
    """Time all units for inputs of `units.rows` rows, with gradients if `trained`; return their times in order.

    Each unit runs `ROUNDS` times on the outputs of the previous units, which are then in the caches, unlike in a step.
    Therefore all times are scaled by the same factor to the time of the whole model, unless that does not fit on the
    device. Buffers and random generators are restored.
    """
    with _as_before(units.model, device), torch.set_grad_enabled(trained):
        found = list(_times(units, inputs, device, trained))
        try:
            forward_s, backward_s = _whole(units, inputs, device, trained)
        except torch.OutOfMemoryError:
            return found
    longer = max(1.0, forward_s / sum(times.forward_s for times in found))
    back = max(1.0, backward_s / (sum(times.backward_s for times in found) or math.inf))
    return [
        replace(times, forward_s=times.forward_s * longer, backward_s=times.backward_s * back)
        for times in found
    ]


def added_bytes_per_s(device: torch.device) -> float:
    """Return the bytes of gradients that this process adds to others of the same size in a second."""
    kept, new = (torch.zeros(_ADDED_BYTES // 4, device=device) for _ in range(2))
    turns = [_seconds(partial(kept.add_, new), device) for _ in range(ROUNDS + 1)]
    return _ADDED_BYTES / statistics.median(turns[1:])


def _whole(units: Units, inputs: Sequence[Any], device: torch.device, trained: bool) -> tuple[float, float]:
    """Return the median seconds of a forward of all units, and of its backward."""
    stage = StageModule(units, 0, len(units.nodes), device)
    given = {node.name: value for node, value in zip(units.inputs, inputs)}
    state = {
        path: _leaf(tensor, device) for path, tensor in (*stage.named_parameters(), *stage.named_buffers())
    }
    leaves = [tensor for tensor in state.values() if tensor.requires_grad]
    forward, backward = [], [0.0]
    for turn in range(ROUNDS + 1):
        made: list[torch.Tensor] = []
        forward.append(_seconds(lambda: made.extend(functional_call(stage, state, (), given)), device))  # noqa: B023
        ends = [tensor for tensor in made if tensor.requires_grad]
        if trained and ends:
            starts = [torch.ones_like(tensor) for tensor in ends]
            call = partial(torch.autograd.grad, ends, leaves, starts, allow_unused=True)
            backward[turn:] = [_seconds(call, device)]
    return statistics.median(forward[1:]), statistics.median(backward[1:] or backward)


def _times(units: Units, inputs: Sequence[Any], device: torch.device, trained: bool) -> Iterator[Times]:
    values: dict[fx.Node, Any] = dict(zip(units.inputs, inputs))
    # What is counted stays alive, so that no other tensor gets its memory.
    kept = {_memory(tensor): tensor for tensor in (*units.model.parameters(), *units.model.buffers())}
    asked = _asked(device) if trained else 0.0
    for node in units.graph.graph.nodes:
        if node.op == "get_attr":
            values[node] = units.tensor(node)
        elif node in units.anywhere:
            values[node] = _call(node, values, device)
        elif node in units.unit and units.nodes[units.unit[node]][0] is node:
            one = _Unit(units.nodes[units.unit[node]], values, device)
            yield one.timed(kept, asked if trained else None)


class _Unit:
    """A unit that runs alone: its `own` inputs are the start of an autograd graph."""

    def __init__(self, nodes: Sequence[fx.Node], values: dict[fx.Node, Any], device: torch.device) -> None:
        self.nodes, self.values, self.device = nodes, values, device
        sources = {source for node in nodes for source in node.all_input_nodes if source not in nodes}
        self.own = {source: _leaf(values[source], device) for source in sources}
        self.saved: list[torch.Tensor] = []

    def timed(self, kept: dict[int, torch.Tensor], asked: float | None) -> Times:
        """Return the times of the unit, and enter its values in `kept`; `asked`: overhead of an autograd call in
        seconds, None: no gradients."""
        forward, backward = [], [0.0]
        for turn in range(ROUNDS):
            local = dict(self.own)
            self.saved.clear()
            with saved_tensors_hooks(self._keep, lambda tensor: tensor):
                forward.append(_seconds(partial(self._run, local), self.device))
            made = [local[node] for node in self.nodes if isinstance(local[node], torch.Tensor)]
            ends = [tensor for tensor in made if tensor.requires_grad]
            if asked is not None and ends:
                leaves = [t for t in self.own.values() if isinstance(t, torch.Tensor) and t.requires_grad]
                starts = [torch.ones_like(tensor) for tensor in ends]
                call = partial(torch.autograd.grad, ends, leaves, starts, allow_unused=True)
                backward[turn:] = [max(0.0, _seconds(call, self.device) - asked)]
        self.values.update({node: local[node] for node in self.nodes})
        fresh = {_memory(tensor): tensor for tensor in self.saved if _memory(tensor) not in kept}
        fresh = {key: tensor for key, tensor in fresh.items() if not isinstance(tensor, nn.Parameter)}
        kept |= fresh
        return Times(min(forward), min(backward), sum(t.untyped_storage().nbytes() for t in fresh.values()))

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self.saved.append(tensor)
        return tensor

    def _run(self, values: dict[fx.Node, Any]) -> None:
        for node in self.nodes:
            values[node] = _call(node, values, self.device)


def _asked(device: torch.device) -> float:
    """Return the fixed seconds of an autograd call, which a whole backward spends once."""
    given = torch.ones(1, device=device, requires_grad=True)
    calls = [partial(torch.autograd.grad, given.view(1), given) for _ in range(ROUNDS)]
    return min(_seconds(call, device) for call in calls)


def _call(node: fx.Node, values: Mapping[fx.Node, Any], device: torch.device) -> Any:
    args, kwargs = located(torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__), device)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _leaf(value: Any, device: torch.device) -> Any:
    """Return the tensor on the device as a new leaf; parameters that are already there unchanged."""
    if not isinstance(value, torch.Tensor) or (isinstance(value, nn.Parameter) and value.device == device):
        return value
    return value.detach().to(device).requires_grad_(value.requires_grad)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    began = time.perf_counter()
    call()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - began


@contextmanager
def _as_before(model: nn.Module, device: torch.device) -> Iterator[None]:
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        yield
    with torch.no_grad():
        for buffer, before in kept:
            buffer.copy_(before)
