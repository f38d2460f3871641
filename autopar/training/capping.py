"""A plan of training both of whose halves hold the memory caps."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..capture import Captured
from ..errors import MemoryCapError
from ..machine import Machine
from ..options import Options
from ..plans import Plan
from ..rewrites.phases import closed
from ..stages import homes_of, plan_captured, timed
from .apart import Apart


def plan_training(
    captured: Captured, machine: Machine, options: Options, tensors: list[torch.Tensor], given: Plan | None
) -> tuple[Captured, Apart]:
    """A joint graph as it is planned, and its plan, taken apart. Raises what planning and lowering raise.

    What autograd saves between the halves is not freed while it is read, so that they may need more than the whole:
    where they are then above a cap, the whole is planned again for so much less.
    """
    joint = whole(captured)
    room, refusal = machine, None
    for _ in range(TIGHTENED):
        try:
            plan = capped(timed("plan", plan_captured, joint, room, options, tensors, given), machine)
        except MemoryCapError as error:
            if refusal is None or given is not None:
                raise refusal or error from None
            # What is tried is greedy: for a little less it may find what it did not for a little more.
            room = room.with_memory(
                {d.name: int(LESS * d.memory_bytes) for d in room.devices if d.memory_bytes}
            )
            continue
        homes = homes_of(joint, plan.costed.machine, tensors)
        apart = Apart(plan, joint.gradients, homes, options.outputs)
        if not apart.tight:
            return joint, apart
        try:
            _ = apart.forward, apart.again, apart.behind
            return joint, apart
        except MemoryCapError as error:
            refusal = refusal or error
        left = apart.room()
        if given is not None or min(left.values(), default=0) <= 0:
            break
        caps = {name: min(left[name], room.device[name].memory_bytes or left[name]) for name in left}
        room = room.with_memory(caps)
    assert refusal is not None
    raise refusal


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
