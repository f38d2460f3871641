"""Agreement of all ranks on one plan. If ranks would run different programs, every rank raises an error
before the first step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import nn

from ..ir.distribution import Distribution
from ..training.facts import code_digest
from ..training.messages import Group, agree, from_first

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address in the text of an object that has no other: each process has its own."""


def agreed(
    make: Callable[[], Distribution],
    describe: Callable[[], Mapping[str, str]] | nn.Module | None = None,
    group: Group = None,
) -> Distribution:
    """Return, on every rank, the plan that rank 0 of the group makes. Every rank of the group must call it.

    First the ranks compare what they run (`agree`): versions, torch's settings, and `describe`: a model (see
    `described`) or a function that returns facts by name. Then rank 0 calls `make`, checks the plan and
    broadcasts it.

    Raises on every rank: PlanError with the ranks that differ and the difference; or the error of `make` on rank 0, of
    the same class if it is one of autopar's or Python's, else as PlanError.
    """

    def facts() -> dict[str, str]:
        if isinstance(describe, nn.Module):
            return described(describe)
        return _settings() | dict(describe() if describe is not None else {})

    agree(facts, group)
    plan: Distribution = from_first(lambda: make().check(), group)
    return plan


def _settings() -> dict[str, str]:
    """Return the settings that can make equal models different programs."""
    return {
        "the default dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "the matmul precision": torch.get_float32_matmul_precision(),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }


def described(model: nn.Module) -> dict[str, str]:
    """Return the facts of a model in which ranks must agree; devices may differ from rank to rank.

    The facts are torch's settings; the class, options, mode and code of each module; and the shape, dtype,
    use and ties of each parameter and buffer.
    """
    facts = _settings()
    code: dict[type, str] = {}
    for path, module in model.named_modules():
        kind = type(module)
        if kind not in code:
            code[kind] = code_digest(getattr(kind.forward, "__code__", None))
        words = (
            f"{kind.__module__}.{kind.__qualname__}({_ADDRESS.sub('', module.extra_repr())})"
            f" in {'training' if module.training else 'evaluation'} with the code {code[kind]}"
        )
        facts[f"module {path}" if path else "the model"] = words
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    for name, tensor in tensors:
        shape = " × ".join(map(str, tensor.shape)) or "one element"
        tied = first.setdefault(id(tensor), name)
        facts[name] = ", ".join((
            f"{shape} {str(tensor.dtype).removeprefix('torch.')}",
            *(["trained"] if tensor.requires_grad else []),
            *([f"tied to {tied}"] if tied != name else []),
        ))  # fmt: skip
    return facts
