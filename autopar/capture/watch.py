"""What a trace would lose in silence, seen while it happens."""

from __future__ import annotations

import torch

from ..errors import CaptureError


def refuse_levels() -> None:
    """CaptureError inside torch.func, vmap or forward-mode differentiation: a graph would know nothing of them."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise CaptureError(
            "a call inside torch.func (grad, vmap, jvp ...) cannot be captured for training; call the plain model "
            "there: `compiled.module`"
        )
    if torch.autograd.forward_ad._current_level >= 0:
        raise CaptureError(
            "a call inside torch.autograd.forward_ad.dual_level cannot be captured for training; call the plain "
            "model there: `compiled.module`"
        )
