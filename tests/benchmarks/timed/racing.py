"""Races on a device: contestants are built and compared one by one, with their memory, then timed in turns."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from autopar.errors import AutoparError
from autopar.session import compare
from autopar.system.text import brief, size

from .timing import report

Call = Callable[[], torch.Tensor]


def race(
    makers: Mapping[str, Callable[[], Call]],
    expected: Sequence[torch.Tensor],
    gpu: str,
    rounds: int,
    *,
    base: str,
    limit: float = 1e-4,
    cap: float = math.inf,
    free: Collection[str] = (),
) -> dict[str, Any]:
    """Print and return seconds, error and peak bytes on `gpu` of each contestant; of one that failed, the reason.

    A maker builds a contestant and returns its call, of which the first answers must be `expected` within `limit`,
    max|Δ| ÷ max|reference|. One that is wrong is not timed. If its peak is above `cap` bytes and it is not `free`, the
    data say `above_cap`.  Raises AutoparError if `base` fails.
    """
    built: dict[str, Call] = {}
    data: dict[str, Any] = {}
    for name, make in makers.items():
        try:
            built[name], data[name] = _measured(make, expected, gpu, limit)
        except Exception as error:
            reason = str(error) if isinstance(error, AutoparError) else brief(error)
            data[name] = {"failed": reason}
            print(f"{name} is not timed: {reason}", flush=True)
            continue
        if data[name]["peak_bytes"] > cap and name not in free:
            data[name]["above_cap"] = True
            print(f"{name} does NOT keep to the cap of {size(cap)}", flush=True)
    if base not in built:
        raise AutoparError(f"{base} failed, with which the others are compared")
    beside = {
        "peak on it": {name: size(data[name]["peak_bytes"]) for name in built},
        "error": {name: f"{data[name]['error']:.1g}" for name in built},
    }
    turns = {name: awaited(call, gpu) for name, call in built.items()}
    times = report(turns, rounds, base=base, beside=beside)
    return {**times, **{name: {**found, **times.get(name, {})} for name, found in data.items()}}


def _measured(
    make: Callable[[], Call], expected: Sequence[torch.Tensor], gpu: str, limit: float
) -> tuple[Call, dict[str, Any]]:
    """Return the call of a contestant, with its error and its peak: what it keeps, and what a call adds."""
    before = held(gpu)
    call = make()
    error = max([compare.error(call(), reference) for reference in expected])
    if not error <= limit:
        raise AutoparError(f"WRONG: its error is {error:.2g}, {limit:.0e} is allowed")
    kept = held(gpu) - before
    return call, {"error": error, "kept_bytes": kept, "peak_bytes": kept + added(call, gpu)}


def held(gpu: str) -> int:
    """Return the bytes of all tensors on a device once its work is done and garbage is collected."""
    gc.collect()
    torch.accelerator.synchronize(gpu)
    return torch.accelerator.memory_allocated(gpu)


def added(call: Call, gpu: str) -> int:
    """Return the most bytes that a call adds on a device."""
    before = held(gpu)
    torch.accelerator.reset_peak_memory_stats(gpu)
    awaited(call, gpu)()
    return torch.accelerator.max_memory_allocated(gpu) - before


def awaited(call: Call, gpu: str) -> Callable[[], None]:
    """Return a function that calls and waits for the device."""

    def run() -> None:
        call()
        torch.accelerator.synchronize(gpu)

    return run
