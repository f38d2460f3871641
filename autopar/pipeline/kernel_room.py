"""Admission of compiled kernels for a program: its devices, its operators, and memory for their copies of the weights,
beside those that kernels of other programs of the same model hold."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..ir.plan import Plan
from ..runtime.executor import Executor
from ..runtime.replicas import Replicas
from ..runtime.tuned import TunedExecutor
from .kernel_build import Form
from .kernel_choice import KernelChoice

log = logging.getLogger("autopar")


def tunable(
    executor: Executor, wanted: str, form: Form, pool: Replicas, on_lanes: Callable[[], Form] | None
) -> tuple[Executor | TunedExecutor, tuple[str, ...]]:
    """Return the executor with kernels as soon as there are any; where none are compiled the executor itself, and the
    reason."""
    if why := _refused(form, pool):
        log.info("kernels of %s are eager's: %s", form.captured.graph.name, why)
        return executor, (why,)
    choice = KernelChoice(wanted, form, pool, on_lanes)
    tuned = TunedExecutor(executor, choice, choice.open)
    folds = not form.changing and any(stack.frozen for stack in choice.stacks)
    device = form.plan.costed.machine.device
    # On a CPU only what folds the weights has copies of them.
    pool.kernels[tuned] = {
        name: size for name, size in _more(form.plan).items() if folds or device[name].torch_type != "cpu"
    }
    return tuned, ()


def _refused(form: Form, pool: Replicas) -> str:
    """Return the reason why no kernels are compiled for a program; "" if they can be."""
    machine = form.plan.costed.machine
    if machine.absent or machine.clock == "declared":
        return "its devices are not here, or run on a declared clock"
    if any(task.random for task in form.captured.graph.tasks):
        return "it draws random numbers"
    more, others = _more(form.plan), [held for tuned, held in [*pool.kernels.items()] if tuned.holds]
    for memory in form.plan.memory:
        device = machine.device[memory.device]
        if device.memory_bytes is None:
            continue
        alone = memory.peak + more[device.name]
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


def _more(plan: Plan) -> dict[str, int]:
    """Return the bytes that kernels may take on each device beside the peak of the plan.

    A library may keep the weights twice more, two recordings on a GPU all that a call makes; what they take besides is
    in no proof.
    """
    graph, device = plan.costed.graph, plan.costed.machine.device
    state = sum(graph.value[name].bytes for name in graph.state)
    return {
        memory.device: 2 * (state if device[memory.device].torch_type == "cpu" else memory.peak)
        for memory in plan.memory
    }
