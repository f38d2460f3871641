"""Errors of a lane that failed: which step, on which device, and whose fault it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..errors import RunError
from ..ir.device import kind_of
from ..ir.program import Compute, Copy, Lane, Piece, Record, Wait, tasks_of

if TYPE_CHECKING:
    from .bind_program import Assembly

SHOWN = 5
"""Tasks that are named as those that an error may come from."""


class Ended(Exception):
    """The thread of a lane has ended in the middle of a call."""


def failure(assembly: Assembly, name: str, error: BaseException, own: bool) -> BaseException:
    """The exception that the caller sees for an error in lane `name`, which is in the caller's `own` thread or not.

    An interrupt of the caller is that itself; all else is a RunError.
    """
    if isinstance(error, Ended):
        return RunError(
            f"the thread of lane {name} was ended from outside in the middle of the call; nothing of the caller's "
            "has changed, and the next call starts a new one"
        )
    lane = assembly.lanes[name].lane
    # A code that was not executed is in no traceback.
    codes = (assembly.code(name, recorded) for recorded in (False, True))
    index = max(code.step_of(error.__traceback__) for code in codes)
    step = lane.steps[index] if index >= 0 else None
    if own and not isinstance(error, Exception):
        return error
    what = f"lane {name}"
    if isinstance(step, Compute):
        what = assembly.graph.task[step.task].where
    elif isinstance(step, Piece):
        first = assembly.graph.task[step.tasks[0]].where
        what = f"the kernel of {len(step.tasks)} tasks from {first}"
    elif isinstance(step, Copy):
        what = f"the copy of {step.src} to {step.dst}"
    found = f"{what} failed on {lane.device} (lane {name}): {type(error).__name__}: {error}"
    source = _source(assembly, lane, index)
    kind = assembly.torch_device(source.device).type
    if kind == "cpu" or not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError):
        return RunError(found)
    if isinstance(step, Compute | Piece) and not isinstance(error, torch.AcceleratorError):
        return RunError(f"{found} (or a task launched before it there did: accelerators report errors late)")
    launched = _launched(assembly, source, index if source is lane else len(source.steps))
    return RunError(
        f"{source.device} reported an error when {what} came to it (lane {name}): {type(error).__name__}: "
        f"{str(error).partition(chr(10))[0]}. "
        f"Accelerators report errors late, so it may be of any task launched there before, in this call{launched} or "
        "an earlier one. To find it, run the model alone, or with launches that wait: "
        + (kind_of(kind).blocking or f"the setting for that of the {kind} backend")
    )


def _source(assembly: Assembly, lane: Lane, index: int) -> Lane:
    """The lane whose work a lane looked at with its step `index`: another's when it waited for that, else its own."""
    step = lane.steps[index] if index >= 0 else None
    if isinstance(step, Wait):
        for other in assembly.program.lanes:
            if any(isinstance(item, Record) and item.event == step.event for item in other.steps):
                return other
    return lane


def _launched(assembly: Assembly, lane: Lane, index: int) -> str:
    """The last tasks launched on the device of a lane before its step `index` (its end where that is -1)."""
    steps = list(lane.steps[: index if index >= 0 else None])
    if not any(map(tasks_of, steps)):
        lanes = (other for other in assembly.program.lanes if other.device == lane.device)
        steps = [step for other in lanes for step in other.steps]
    tasks = [assembly.graph.task[task].where for step in steps for task in tasks_of(step)]
    last = "; ".join(reversed(tasks[-SHOWN:]))
    return f" (last first: {last})" if last else ""
