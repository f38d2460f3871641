"""A plan of training both of whose halves hold the memory caps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch

from ..capture import Captured
from ..errors import MemoryCapError
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..pipeline.options import Options
from ..pipeline.stages import homes_of, plan_captured, timed
from ..transform.divide import closed
from .halves import Apart


def plan_training(
    captured: Captured, machine: Machine, options: Options, tensors: list[torch.Tensor], given: Plan | None
) -> tuple[Captured, Apart]:
    """A joint graph as it is planned, and its plan, taken apart. Raises what planning and lowering raise.

    What autograd saves between the halves is not freed while it is read, so that they may need more than the whole:
    where they are then above a cap, the whole is planned again for so much less.
    """
    joint = whole(captured)

    def planned(room: Machine, caps: Machine) -> Apart:
        plan = capped(timed("plan", plan_captured, joint, room, options, tensors, given), caps)
        return Apart(
            plan,
            joint.gradients,
            homes_of(joint, plan.costed.machine, tensors, options.home),
            options.outputs,
        )

    try:
        return joint, _within(machine, planned, once=given is not None)
    except MemoryCapError as error:
        # What halves need in the orders that are theirs may also be less than the whole.
        need = _need(planned(machine.uncapped, machine.uncapped))
        caps = {name: cap for name, cap in need.items() if cap > (machine.device[name].memory_bytes or cap)}
        if not caps:
            return joint, planned(machine.uncapped, machine)
        way = f"memory={caps} would fit; less, a split of the batch or another device may too"
        raise MemoryCapError(error.wrong, way) from None


_Planned: TypeAlias = Callable[[Machine, Machine], Apart]
"""A plan for the caps of one machine, with those of another, taken apart."""


def _within(machine: Machine, planned: _Planned, *, once: bool) -> Apart:
    """The first of some plans, each for tighter caps, both of whose halves hold those of the machine. Raises the first
    MemoryCapError when none does."""
    room, refusal = machine, None
    for _ in range(1 if once else TIGHTENED):
        try:
            apart = planned(room, machine)
        except MemoryCapError:
            if refusal is None:
                raise
            # What is tried is greedy: for a little less it may find what it did not for a little more.
            room = room.with_memory(
                {d.name: int(LESS * d.memory_bytes) for d in room.devices if d.memory_bytes}
            )
            continue
        if not apart.tight:
            return apart
        try:
            _ = apart.forward, apart.again, apart.behind
            return apart
        except MemoryCapError as error:
            refusal = refusal or error
        left = apart.room()
        if min(left.values(), default=0) <= 0:
            break
        caps = {name: min(left[name], room.device[name].memory_bytes or left[name]) for name in left}
        room = room.with_memory(caps)
    assert refusal is not None
    raise refusal


def _need(apart: Apart) -> dict[str, int]:
    """The most bytes of each device that either half plans for, or holds in any order of its lanes."""
    need: dict[str, int] = {}
    for half in (apart.forward, apart.again, apart.behind):
        for device, nbytes in (*half.plan.peaks.items(), *((peak.device, peak.bytes) for peak in half.peaks)):
            need[device] = max(nbytes, need.get(device, 0))
    return need


def whole(captured: Captured) -> Captured:
    """A joint graph as it is planned: with the user's loss between its halves, and weights that change."""
    weights = tuple(name for name, _ in captured.gradients if name in captured.state)
    graph = closed(captured.graph, [name for name, _ in captured.tangents], len(captured.gradients))
    return replace(captured, graph=replace(graph, changing=weights))


TIGHTENED = 6
"""Plans that are made of a joint graph, each for tighter caps, until both its halves hold the real ones."""

LESS = 0.97
"""Share of the caps that is left when a plan for tighter ones is not found."""


def capped(plan: Plan, machine: Machine) -> Plan:
    """The plan with the caps of another machine."""
    caps = {device.name: device.memory_bytes for device in machine.devices}
    memory = tuple(replace(known, cap=caps[known.device]) for known in plan.memory)
    costed = replace(plan.costed, machine=plan.costed.machine.with_memory(caps))
    return replace(plan, costed=costed, memory=memory)
