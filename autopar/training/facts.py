"""Facts by which the training steps of several ranks go, by name, in which ranks must agree: what the optimizer, the
criterion and the options of a step are set to, and a checksum of the optimizer's state."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

_PLAIN = (bool, int, float, str, type(None), torch.dtype)
_MODULE = vars(nn.Module()).keys() - {"training"}
"""Attributes that every module has."""


def optimizer_facts(optimizer: Optimizer, names: Mapping[int, str]) -> dict[str, str]:
    """Return the class of an optimizer, each setting of its param groups, and which parameters they train, some
    microseconds for each group. `names` has the names of parameters by `id`."""
    facts = {"the optimizer's class": _named(type(optimizer))}
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key != "params":
                facts[f"{key} of param group {number}"] = _text(value)
        trained = (names.get(id(each), "an unknown one") for each in group["params"] if each.requires_grad)
        facts[f"the trained parameters of param group {number}"] = ", ".join(trained) or "none"
    return facts


def state_facts(optimizer: Optimizer, named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Return a checksum of the bits of each tensor in the state of an optimizer, equal for equal tensors on any
    device, and the text of all else."""
    return {
        f"{key} of {name} in the optimizer's state": _text(value)
        for name, parameter in named
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def step_facts(
    function: Any,
    clip_norm: float | None,
    scaler: torch.amp.GradScaler | None,
    autocast: torch.dtype | None,
) -> dict[str, str]:
    """Return the options of a step; the class and plain settings of a criterion and its submodules, or a function's
    name, code and plain arguments bound to it."""
    facts = {
        "clip_norm": repr(clip_norm),
        "autocast": repr(autocast),
        "the scaler": repr(scaler and scaler.state_dict()),
    }
    for path, module in function.named_modules() if isinstance(function, nn.Module) else ():
        settings = {key: value for key, value in vars(module).items() if key not in _MODULE}
        plain = (f"{key}={_text(value)}" for key, value in settings.items() if isinstance(value, _PLAIN))
        facts[f"the criterion{path and f' at {path}'}"] = f"{_named(module)}({', '.join(plain)})"
    while isinstance(function, functools.partial):
        for key, value in (*enumerate(function.args), *function.keywords.items()):
            if isinstance(value, _PLAIN):
                facts[f"the criterion's argument {key}"] = repr(value)
        function = function.func
    if not isinstance(function, nn.Module):
        code = code_digest(getattr(function, "__code__", None))
        facts["the criterion"] = f"{_named(function)} with the code {code}"
    return facts


def code_digest(code: Any) -> str:
    """Return a short digest of a function's bytecode, names and constants, without its file and lines."""

    def parts(item: Any) -> Any:
        if hasattr(item, "co_code"):
            return [item.co_code.hex(), item.co_names, item.co_varnames, [*map(parts, item.co_consts)]]
        return sorted(map(repr, item)) if isinstance(item, frozenset) else repr(item)

    return hashlib.sha256(json.dumps(parts(code)).encode()).hexdigest()[:8] if code is not None else "of C"


def _named(item: Any) -> str:
    kind = item if hasattr(item, "__qualname__") else type(item)
    return f"{kind.__module__}.{kind.__qualname__}"


def _text(value: Any) -> str:
    """Return a setting or state as text; of a tensor its dtype, and its value or a checksum."""
    if not isinstance(value, torch.Tensor):
        return repr(value) if isinstance(value, (*_PLAIN, tuple, list)) else type(value).__name__
    kind = str(value.dtype).removeprefix("torch.")
    if value.numel() == 1:
        return f"{value.item()} in {kind}"
    bits = value.detach().contiguous().view(torch.uint8).flatten()
    words = bits[: bits.numel() // 8 * 8].view(torch.int64)
    # Integers wrap, so that the order of the sum, which devices choose, does not matter.
    total = int((words ^ (words >> 29)).sum()) + int(bits[words.numel() * 8 :].sum(dtype=torch.int64))
    return f"{kind} {[*value.shape]} with the checksum {total & 0xFFFFFFFF:08x}"
