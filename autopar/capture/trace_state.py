"""State of the thread and the process that a trace, or a call of one of Dynamo's graphs, may leave changed.

Such a graph enters and leaves grad modes, autocast and transforms by calls of functions. After an error in between,
nothing leaves them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from .torch_private import PRIVATE_STATE, InferenceGuard, leave_transforms, transform_depth


def _kinds() -> set[str]:
    """Return the types of devices for which a call may turn autocast on."""
    accelerator = torch.accelerator.current_accelerator()
    return {"cpu", "cuda"} if accelerator is None else {"cpu", "cuda", accelerator.type}


def _autocast() -> list[tuple[str, bool, torch.dtype]]:
    return [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _kinds()]


def _set_autocast(before: list[tuple[str, bool, torch.dtype]]) -> None:
    for kind, enabled, dtype in before:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _set_nesting(before: int) -> None:
    while _nesting() > before:
        if torch.autocast_decrement_nesting() == 0:
            # As the end of the outermost region does, since weights may change until the next.
            torch.clear_autocast_cache()


def _deterministic() -> tuple[bool, bool]:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warn_only


_STATE: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (_nesting, _set_nesting),
    (_autocast, _set_autocast),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (_deterministic, lambda before: torch.use_deterministic_algorithms(before[0], warn_only=before[1])),
    *PRIVATE_STATE,
)
"""Functions that read and write each part of the state, in the order in which it is restored."""


@contextmanager
def restored_state() -> Iterator[None]:
    """Restore the state at the end of the block, whether or not it raises an error."""
    before, depth = [read() for read, _ in _STATE], transform_depth()
    try:
        yield
    except BaseException as error:
        leave_transforms(depth)
        leave_inference_modes(error)
        raise
    finally:
        for (read, write), value in zip(_STATE, before):
            if read() != value:
                write(value)


def leave_inference_modes(error: BaseException) -> None:
    """Leave the inference modes that a graph has entered before it raised an error, or that an interrupt has ended
    while they were entered or left.

    The frames of the error hold their guards, which would else restore what they found whenever the error is released.
    """
    for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
        owner, items = frame.f_locals.get("self"), [*frame.f_locals.values()]
        if isinstance(owner, fx.Interpreter):
            items += owner.env.values()
        elif isinstance(owner, torch.inference_mode):
            items += vars(owner).values()
        for guard in reversed([item for item in items if isinstance(item, InferenceGuard)]):
            guard.__exit__(None, None, None)
