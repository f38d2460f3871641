"""The report of a distribution: stages, waits, links, and the other plans that were considered."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...engine.api import plan
from ...errors import AutoparError
from ...ir.distribution import Distribution
from ...ir.hosts import compute_devices
from ...ir.machine import Machine
from ...planner.pipelines.simulation import grid_of, predicted, waits
from ...system.text import seconds, size, table
from .stages import StageModule
from .units import Units

log = logging.getLogger("autopar")

GATHERS = 3
"""Transfers of a sharded stage's parameters for each micro-batch: gathered for the forward and for the backward, and
their gradients scattered."""


def explained(plan: Distribution) -> str:
    """Return tables of the plan: stages, work and waits of each process of a replica, links, and the other plans."""
    parts = [str(plan)]
    timeline = predicted(plan)
    apart = waits(plan, timeline.spans)
    rows = [("process", "busy", "of the step" if plan.trained else "of one batch", "waits for")]
    for name in plan.ranks[0]:
        busy = sum(
            span.seconds
            for span in timeline.spans
            if span.device == name and span.kind == "compute" and span.phase != "update"
        )
        own = sorted(((s, other) for (device, other), s in apart.items() if device == name), reverse=True)
        said = (
            ", ".join(f"{other if other != name else 'its turn'} {seconds(s)}" for s, other in own)
            or "nobody"
        )
        rows.append(
            (name, seconds(busy), f"{busy / timeline.makespan:.0%}" if timeline.makespan else "-", said)
        )
    parts.append(table(rows, right=(1, 2)))
    if plan.positions > 1:
        links = [("from", "to", "latency", "bandwidth", "a micro-batch's message")]
        for number, stage in enumerate(plan.stages[:-1]):
            src, dst = (plan.ranks[0][plan.position(n)] for n in (number, number + 1))
            link = plan.hosts.link(src, dst)
            row = (src, dst, f"{link.latency_s * 1e6:.1f} µs", f"{size(link.bytes_per_s)}/s",
                   f"{size(stage.bytes_out)} in {seconds(link.seconds(stage.bytes_out))}")  # fmt: skip
            if row not in links:
                links.append(row)
        parts.append(table(links, right=(2, 3)))
    if plan.sharded:
        grid = grid_of(plan)
        shards = [("stage", "groups", "state of a replica", "of a process", "gathers and scatters of a step")]
        for number, stage in enumerate(plan.stages):
            each = grid.gather_s(plan.position(number), stage.state_bytes, len(stage.groups))
            shards.append((
                str(number), str(len(stage.groups)), size(stage.state_bytes), size(stage.state_bytes / plan.replicas),
                seconds(GATHERS * plan.micro_batches * each),
            ))  # fmt: skip
        parts.append(table(shards, right=(1, 2, 3, 4)))
    if plan.tried:
        others = [("also tried", "predicted", "÷ chosen")]
        for what, taken in plan.tried:
            shown = ("does not fit", "") if taken is None else (seconds(taken), f"{taken / plan.step_s:.2f}")
            others.append((what, *shown))
        parts.append(table(others, right=(1, 2)))
    return "\n\n".join(parts)


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
