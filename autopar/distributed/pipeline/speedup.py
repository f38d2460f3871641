"""The gain of a process from all its devices over the first one, as predicted by autopar's planner."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...engine.api import plan
from ...errors import AutoparError
from ...ir.hosts import compute_devices
from ...ir.machine import Machine
from .stages import StageModule
from .units import Units

log = logging.getLogger("autopar")


def share(units: Units, inputs: Sequence[Any], machine: Machine, trained: bool) -> float:
    """Return the predicted seconds of all units on all devices of a machine as a share of those on its first one.

    1.0 for a single device, and if the model cannot be planned. Memory caps do not count, because a process runs only
    its stages.
    """
    if len(machine.devices) == 1:
        return 1.0
    roomy = replace(machine, devices=tuple(replace(own, memory_bytes=None) for own in machine.devices))
    first = machine.device[compute_devices(machine)[0]]
    device = torch.device(first.torch_device)
    given = {node.name: value for node, value in zip(units.inputs, inputs)}
    try:
        whole = _moved(StageModule(units, 0, len(units.nodes), device), device)
        with torch.set_grad_enabled(trained):
            found = plan(whole, roomy, example_kwargs=given)
    except (AutoparError, torch.OutOfMemoryError) as error:
        log.info("the stages are planned as if %s were the only device: %s", first.name, error)
        return 1.0
    alone = dict(found.singles).get(first.name)
    return min(1.0, found.makespan / alone) if alone else 1.0


def _moved(stage: StageModule, device: torch.device) -> StageModule:
    """Return the stage with copies of its parameters and buffers on a device; the model keeps its own."""
    known: dict[int, nn.Parameter] = {}
    for module in stage.modules():
        for name, own in [*module.named_parameters(recurse=False)]:
            there = nn.Parameter(own.detach().to(device), own.requires_grad)
            module.register_parameter(name, known.setdefault(id(own), there))
        for name, buffer in [*module.named_buffers(recurse=False)]:
            module.register_buffer(name, buffer.to(device))
    return stage
