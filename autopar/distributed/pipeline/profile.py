"""Measurements of units: the seconds of each forward and backward on this process's device, and the bytes
saved. Also the share of these seconds that all devices of a process are predicted to take."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import fx, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from ...api import plan
from ...costs.calibrate import durations, seconds
from ...errors import AutoparError
from ...ir.hosts import compute_devices
from ...ir.machine import Machine
from ...session.compare import untouched
from .stages import StageModule, located
from .units import Units, writes

log = logging.getLogger("autopar")

ROUNDS = 5
"""Runs of each unit; the shortest counts, since disturbances only lengthen a run."""
_ADDED_BYTES = 1 << 25
"""Bytes of the gradients added, more than most caches hold."""


Times: TypeAlias = tuple[float, float, int]
"""Seconds of a unit's forward and backward for a given number of rows, and bytes that the forward saves."""
FORWARD, BACKWARD = 0, 1
"""Positions of both in `Times`."""


def profile(units: Units, inputs: Sequence[Any], device: torch.device, trained: bool) -> list[Times]:
    """Time all units for inputs of `units.rows` rows, with gradients if `trained`; return their times in order.

    Each unit runs `ROUNDS` times on the outputs of the previous units. These are then in the caches, unlike
    in a step. The forwards, and the backwards, are therefore scaled by a common factor to the time of the
    whole model, unless the model does not fit on the device. Buffers and random generators are restored.
    """
    with untouched(units.model), torch.set_grad_enabled(trained):
        times = list(_times(units, inputs, device, trained))
        try:
            forward_s, backward_s = _whole(units, inputs, device, trained)
        except torch.OutOfMemoryError:
            return times
    longer = max(1.0, forward_s / sum(forward for forward, _, _ in times))
    back = max(1.0, backward_s / (sum(backward for _, backward, _ in times) or math.inf))
    return [(forward * longer, backward * back, saved) for forward, backward, saved in times]


def added_bytes_per_s(device: torch.device) -> float:
    """Return the bytes of gradients that this process adds to others of the same size in a second."""
    total, new = (torch.zeros(_ADDED_BYTES // 4, device=device) for _ in range(2))
    return _ADDED_BYTES / statistics.median(durations(partial(total.add_, new), device, ROUNDS))


def _whole(units: Units, inputs: Sequence[Any], device: torch.device, trained: bool) -> tuple[float, float]:
    """Return the median seconds of a forward of all units, and of its backward."""
    stage = StageModule(units, 0, len(units.nodes), device)
    arguments = {node.name: value for node, value in zip(units.inputs, inputs)}
    state = {
        path: _leaf(tensor, device) for path, tensor in (*stage.named_parameters(), *stage.named_buffers())
    }
    call = partial(functional_call, stage, state, (), arguments)
    turns = [_turn(call, state.values(), device, trained) for _ in range(ROUNDS + 1)]
    forward, backward = zip(*turns[1:])
    return statistics.median(forward), statistics.median(backward)


def _times(units: Units, inputs: Sequence[Any], device: torch.device, trained: bool) -> Iterator[Times]:
    values: dict[fx.Node, Any] = dict(zip(units.inputs, inputs))
    # Counted tensors stay alive, so that no other tensor gets their memory.
    counted = {_memory(tensor): tensor for tensor in (*units.model.parameters(), *units.model.buffers())}
    fixed_s = _empty_backward_s(device) if trained else 0.0
    for node in units.graph.graph.nodes:
        if node.op == "get_attr":
            values[node] = units.tensor(node)
        elif node in units.anywhere:
            values[node] = _call(node, values, device)
    for nodes in units.nodes:
        forward, backward, saved = _unit(nodes, values, device, trained)
        fresh = {_memory(tensor): tensor for tensor in saved if _memory(tensor) not in counted}
        fresh = {key: tensor for key, tensor in fresh.items() if not isinstance(tensor, nn.Parameter)}
        counted |= fresh
        nbytes = sum(tensor.untyped_storage().nbytes() for tensor in fresh.values())
        yield forward, max(0.0, backward - fixed_s), nbytes


def _unit(
    nodes: Sequence[fx.Node], values: dict[fx.Node, Any], device: torch.device, trained: bool
) -> tuple[float, float, list[torch.Tensor]]:
    """Run a unit alone, and enter its results in `values`; return the least seconds of its forward and backward, and
    the tensors that it saves."""
    sources = {source for node in nodes for source in node.all_input_nodes if source not in nodes}
    inputs = {source: _leaf(values[source], device) for source in sources}
    writing = any(map(writes, nodes))
    turns, local, saved = [], dict(inputs), list[torch.Tensor]()

    def run() -> list[Any]:
        for node in nodes:
            local[node] = _call(node, local, device)
        return [local[node] for node in nodes]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        for _ in range(ROUNDS):
            # Memory is freed before the clock starts.
            saved.clear()
            # Each run writes to tensors of its own; autograd refuses writes to leaves.
            local = {source: _copied(value) if writing else value for source, value in inputs.items()}
            turns.append(_turn(run, inputs.values(), device, trained))
    forward, backward = zip(*turns)
    values.update({node: local[node] for node in nodes})
    return min(forward), min(backward), saved


def _turn(
    call: Callable[[], Iterable[Any]], inputs: Iterable[Any], device: torch.device, trained: bool
) -> tuple[float, float]:
    """Return the seconds of a call, and of the backward from its results to those given tensors that need
    gradients."""
    results: list[Any] = []
    forward_s = seconds(lambda: results.extend(call()), device)
    ends = [tensor for tensor in results if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
    if not trained or not ends:
        return forward_s, 0.0
    leaves = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
    starts = [torch.ones_like(tensor) for tensor in ends]
    back = partial(torch.autograd.grad, ends, leaves, starts, allow_unused=True)
    return forward_s, seconds(back, device)


def _empty_backward_s(device: torch.device) -> float:
    """Return the fixed seconds of an autograd call, which a whole backward spends once."""
    one = torch.ones(1, device=device, requires_grad=True)
    calls = [partial(torch.autograd.grad, one.view(1), one) for _ in range(ROUNDS)]
    return min(seconds(call, device) for call in calls)


def _call(node: fx.Node, values: Mapping[fx.Node, Any], device: torch.device) -> Any:
    args, kwargs = located(torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__), device)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _leaf(value: Any, device: torch.device) -> Any:
    """Return a tensor as a new leaf on the device, but parameters that are there, and other values, as is."""
    if not isinstance(value, torch.Tensor) or (isinstance(value, nn.Parameter) and value.device == device):
        return value
    return value.detach().to(device).requires_grad_(value.requires_grad)


def _copied(value: Any) -> Any:
    """Return a copy of a tensor through which gradients flow; parameters and other values as is."""
    return value.clone() if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter) else value


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def share(units: Units, inputs: Sequence[Any], machine: Machine, trained: bool) -> float:
    """Return the predicted seconds of all units on all devices of a machine as a share of those on its first one.

    1.0 for a single device, and if the model cannot be planned. Memory caps do not count, because a process runs only
    its stages.
    """
    if len(machine.devices) == 1:
        return 1.0
    roomy = replace(machine, devices=tuple(replace(each, memory_bytes=None) for each in machine.devices))
    first = machine.device[compute_devices(machine)[0]]
    device = torch.device(first.torch_device)
    arguments = {node.name: value for node, value in zip(units.inputs, inputs)}
    try:
        whole = _on_device(StageModule(units, 0, len(units.nodes), device), device)
        with torch.set_grad_enabled(trained):
            placed = plan(whole, roomy, example_kwargs=arguments)
    except (AutoparError, torch.OutOfMemoryError) as error:
        log.info("the stages are planned as if %s were the only device: %s", first.name, error)
        return 1.0
    alone = dict(placed.singles).get(first.name)
    return min(1.0, placed.makespan / alone) if alone else 1.0


def _on_device(stage: StageModule, device: torch.device) -> StageModule:
    """Return the stage with copies of its parameters and buffers on a device; the model keeps its own."""
    known: dict[int, nn.Parameter] = {}
    for module in stage.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            there = nn.Parameter(parameter.detach().to(device), parameter.requires_grad)
            module.register_parameter(name, known.setdefault(id(parameter), there))
        for name, buffer in [*module.named_buffers(recurse=False)]:
            module.register_buffer(name, buffer.to(device))
    return stage
