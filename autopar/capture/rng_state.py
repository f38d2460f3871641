"""The states of torch's random generators, kept and put back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


def generators() -> dict[str, torch.Tensor]:
    """The state of every random generator, by device; those of an accelerator once it is in use."""
    states = {"cpu": torch.get_rng_state()}
    if torch.accelerator.is_available() and (kind := torch.accelerator.current_accelerator()) is not None:
        module = torch.get_device_module(kind)
        # Where there is nothing to ask (on mps) it is there from the start.
        if getattr(module, "is_initialized", lambda: True)():
            devices = [f"{kind.type}:{index}" for index in range(torch.accelerator.device_count())]
            states.update({device: _called(module.get_rng_state, device) for device in devices})
    return states


def restore(states: dict[str, torch.Tensor]) -> None:
    """Put generators back into the states that `generators` gave."""
    for name, state in states.items():
        if name == "cpu":
            torch.set_rng_state(state)
        else:
            _called(torch.get_device_module(name).set_rng_state, state, name)


def _called(function: Callable[..., Any], *args: Any) -> Any:
    """The call without the device where there is only one and the function takes none (mps)."""
    return function(*args[: len(inspect.signature(function).parameters)])
