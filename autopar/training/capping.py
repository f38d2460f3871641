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
from ..runtime.memory import Replicas
from ..stages import homes_of, plan_captured, timed
from .dropin import Recorder, Training


def prepare_training(
    captured: Captured,
    machine: Machine,
    options: Options,
    tensors: list[torch.Tensor],
    given: Plan | None,
    pool: Replicas,
    recorder: Recorder,
) -> Training:
    """Plan a joint graph and take the plan apart. Raises what planning and lowering raise.

    What autograd saves between the halves is not freed while it is read, so that they may need more than the whole:
    where they are then above a cap, the whole is planned again for so much less.
    """
    joint = whole(captured)
    room, refusal = machine, None
    for _ in range(TIGHTENED):
        try:
            plan = capped(timed("plan", plan_captured, joint, room, options, tensors, given), machine)
        except MemoryCapError as error:
            raise refusal or error from None
        homes = homes_of(joint, plan.costed.machine, tensors)
        training = Training(joint, plan, homes, options, pool, recorder)
        if not training.tight:
            return training
        try:
            training.bind()
            return training
        except MemoryCapError as error:
            training.close()
            refusal = refusal or error
        left = training.room()
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


def capped(plan: Plan, machine: Machine) -> Plan:
    """The plan with the caps of another machine."""
    caps = {device.name: device.memory_bytes for device in machine.devices}
    devices = tuple(replace(d, memory_bytes=caps[d.name]) for d in plan.costed.machine.devices)
    memory = tuple(replace(known, cap=caps[known.device]) for known in plan.memory)
    costed = replace(plan.costed, machine=replace(plan.costed.machine, devices=devices))
    return replace(plan, costed=costed, memory=memory)
