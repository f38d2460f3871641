"""The rounding of a graph's values, estimated by Monte Carlo arithmetic (Parker, 1997): a value that is zero in exact
arithmetic is as uncertain as what went into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..capture import Captured
from .compare import LIMIT, apart, distance, interpret

DRAWS = 4
"""Number of runs with other roundings."""


def spread(
    captured: Captured, start: Mapping[str, Any], names: Iterable[str], begin: Callable[[], None]
) -> dict[str, float]:
    """Return the largest change of each of the values `names` if every task rounds its results otherwise.

    start: inputs and state by name. begin: puts random generators in the state of the call.
    """
    found, exact, draw = dict.fromkeys(names, 0.0), dict[str, Any](), torch.Generator().manual_seed(0)
    for count in range(1 + DRAWS):
        begin()
        values: dict[str, Any] = {name: apart(tensor) for name, tensor in start.items()}
        for task in interpret(captured.graph, captured.calls, values, captured.home):
            for name in task.outputs if count else ():
                values[name] = _perturbed(values[name], draw)
        exact = exact or {name: values[name] for name in found}
        found = {name: max(moved, distance(values[name], exact[name])) for name, moved in found.items()}
    return found


def _perturbed(value: Any, draw: torch.Generator) -> Any:
    """Return a floating-point tensor whose elements are off by up to their last bit; other values unchanged."""
    if not isinstance(value, torch.Tensor) or value.dtype not in LIMIT or value.layout is not torch.strided:
        return value
    noise = torch.rand(value.shape, generator=draw, dtype=torch.float64, device="cpu") * 2 - 1
    return value * (1 + torch.finfo(value.dtype).eps * noise).to(value)
