"""Snapshot and restore of what a call may change: buffers, inputs, random generators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..capture import Captured


class Snapshot:
    """The caller's tensors for one call, and copies of those that the call changes, as they are now."""

    def __init__(self, captured: Captured, args: Sequence[Any]) -> None:
        self.captured = captured
        self.tensors = captured.flatten(args)
        mutated = captured.graph.mutated
        self.before = {name: apart(tensor) for name, tensor in self.live().items() if name in mutated}
        self.random = self.drawn = generators()

    def live(self) -> dict[str, torch.Tensor]:
        """The caller's own inputs and state, by value name."""
        found = dict(zip(self.captured.graph.inputs, self.tensors))
        found.update({name: owner[key] for name, (owner, key) in self.captured.state.items()})
        return found

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Put back buffers, mutated inputs and generator states at the end."""
        try:
            yield
        finally:
            self.drawn = generators()
            live = self.live()
            with torch.no_grad():
                for name, saved in self.before.items():
                    live[name].copy_(saved)
            restore(self.random)

    def comparable(self) -> bool:
        """False if the random generators are not where they were at the end of `restored`: either the run that has just
        ended draws other numbers, or another thread moved them meanwhile, as torch does at the end of each capture."""
        now = generators()
        return all(torch.equal(now[name], state) for name, state in self.drawn.items())


def apart(leaf: Any) -> Any:
    """A tensor in memory of its own, without history; a value that is no tensor as it is."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


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
