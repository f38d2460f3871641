"""Reasons why no kernels are compiled for a program: its devices, operators or weights do not allow it, or memory for
further copies of the weights is missing."""

from __future__ import annotations

from ..ir.plan import Plan
from ..runtime.replicas import Replicas
from .kernel_build import Form


def refused(form: Form, pool: Replicas) -> str:
    """Return the reason why no kernels are compiled for a program; "" if they can be."""
    machine = form.plan.costed.machine
    if machine.absent or machine.clock == "declared":
        return "its devices are not here, or run on a declared clock"
    if any(task.random for task in form.captured.graph.tasks):
        return "it draws random numbers"
    steady = map(form.captured.state.__getitem__, filter(form.steady, form.plan.costed.graph.state))
    if any(owner[key].is_inference() for owner, key in steady):
        # Kernels for the weights of now would be out of date by then, as far as can be known.
        return (
            "weights or buffers were made in torch.inference_mode, in which PyTorch does not count their changes. "
            "Make, load or convert the model outside it"
        )
    room, others = more(form.plan), [held for tuned, held in [*pool.kernels.items()] if tuned.holds]
    for memory in form.plan.memory:
        device = machine.device[memory.device]
        if device.memory_bytes is None:
            continue
        alone = memory.peak + room[device.name]
        if alone > device.memory_bytes:
            return (
                f"{device.name} lacks the memory for other copies of the weights, or of all that a call makes"
            )
        if alone + sum(held.get(device.name, 0) for held in others) > device.memory_bytes:
            return (
                f"{device.name} lacks the memory for more copies of the weights: kernels for other sizes hold theirs. "
                "Pad the inputs to fewer shapes to have kernels for all"
            )
    return ""


def more(plan: Plan) -> dict[str, int]:
    """Return the bytes that kernels may take on each device in addition to the peak of the plan.

    On a CPU, a library may keep two more copies of the weights. On a GPU, two recordings may each keep all
    that a call makes. No proof covers other memory of a library.
    """
    graph, device = plan.costed.graph, plan.costed.machine.device
    state = sum(graph.value[name].bytes for name in graph.state)
    return {
        memory.device: 2 * (state if device[memory.device].torch_type == "cpu" else memory.peak)
        for memory in plan.memory
    }
