"""What surrounds a call and no graph keeps: levels of torch.func, hooks of modules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as modules

from ..errors import CaptureError
from .holders import Holders
from .private import transformed


def refuse_levels() -> None:
    """CaptureError inside torch.func, vmap or forward-mode differentiation, of which a graph would know nothing."""
    if inside := transformed():
        raise CaptureError(
            f"a call inside {inside} cannot be captured for training; call the plain model there, `fast.module`"
        )


def refuse_module_hooks(model: nn.Module, name: str) -> None:
    """CaptureError for full backward hooks, which no trace keeps."""
    if modules._global_backward_hooks or modules._global_backward_pre_hooks:
        raise CaptureError(
            "a backward hook of all modules (register_module_full_backward_hook) would not be called; remove it"
        )
    for path, module in model.named_modules():
        hooks = [*module._backward_hooks.values(), *module._backward_pre_hooks.values()]
        if hooks:
            raise CaptureError(
                f"the backward hook {_named(hooks[0])} of {path or name} would not be called; remove it "
                "(`handle.remove()`), or register a hook on the module's parameters, which are kept"
            )


@contextlib.contextmanager
def refuse_kept(model: nn.Module, notes: list[str]) -> Iterator[None]:
    """CaptureError when a forward hook of a module has kept a tensor, a stand-in that nothing can use.

    What else a hook has changed is put back, and goes to `notes`.
    """
    holders = [
        (f"the forward hook {_named(hook)} of {path or 'the model'}", Holders([hook]))
        for path, module in model.named_modules()
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    ]
    changed: dict[str, tuple[str, bool]] = {}
    try:
        yield
    finally:
        for hook, holder in holders:
            changed.update((name, (hook, kept)) for name, kept in holder.put_back().items())
    for name, (hook, kept) in changed.items():
        if kept:
            raise CaptureError(
                f"{hook} keeps a tensor in {name}, which a captured call would not; return the tensor from forward, "
                "or remove the hook (`handle.remove()`)"
            )
        notes.append(f"{hook} changes {name}, which a captured call does not")


def _named(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))
