"""The comparison of a graph's first call with the model itself.

It finds changes by Dynamo that the check of the graph cannot see: the captured model may take other branches
(`torch.compiler.is_compiling()`), and the model's own fused kernels may differ (`nn.TransformerEncoder` sets padded
rows to zero).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture import autocast as casting
from ..errors import DifferenceError
from ..ir.machine import Machine
from .compare import LIMIT, Snapshot, apart, coarse, error, rounded

LOOSE = 100.0
"""Factor on a graph's own tolerance, since a model that torch captures may round differently."""


class Call(NamedTuple):
    """A call by the user: the model, its arguments, and the list that takes the model's output."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    expected: list[Any]


class CallForm(NamedTuple):
    """The form of a call: its arguments with tensors on the meta device and the devices of these, and whether gradients
    and inference mode were on."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    devices: tuple[torch.device, ...]
    grad: bool
    inference: bool

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallForm:
        """Return the form of a call that this thread makes."""
        devices: list[torch.device] = []

        def form(tensor: torch.Tensor) -> torch.Tensor:
            devices.append(tensor.device)
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")

        with torch.inference_mode(False):
            args, kwargs = pytree.tree_map_only(torch.Tensor, form, (args, kwargs))
        return cls(args, kwargs, (*devices,), torch.is_grad_enabled(), torch.is_inference_mode_enabled())

    def filled(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments of this form, with zeros in all tensors."""
        devices = iter(self.devices)

        def zeros(form: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(form, device=next(devices))

        args, kwargs = pytree.tree_map_only(torch.Tensor, zeros, (self.args, self.kwargs))
        return args, kwargs


CALL: ContextVar[Call | None] = ContextVar("call", default=None)
"""The innermost call of a compiled model that this thread is in."""


def answer(call: Call, snapshot: Snapshot, doubt: Callable[[], None]) -> None:
    """Run the plain model for the call, then restore all that `snapshot` holds; leave the leaves of its output, the
    tolerance of the graph's least precise dtype, a place for the graph's outputs (placed, in eager), the snapshot, and
    `doubt`, which has the next call compared again.
    """
    args, kwargs = pytree.tree_map_only(torch.Tensor, _own(snapshot), (call.args, call.kwargs))
    with snapshot.restored():
        try:
            output = call.model(*args, **kwargs)
        except Exception:
            # The placed run that follows raises the error in the right place.
            return
        dtypes = rounded(snapshot.captured.graph)
        leaves = [apart(leaf) for leaf in pytree.tree_leaves(output)]
        call.expected[:] = leaves, max((LIMIT[dtype] for dtype in dtypes), default=0.0), [], snapshot, doubt


def compared(call: Call | None, output: Any, outputs: Sequence[Any]) -> None:
    """Note the `outputs` of the graph in eager, with which those of the placed graph agree."""
    placed, eager = (
        [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        for results in (output, outputs)
    )
    if call is not None and call.expected:
        call.expected[2] = list(zip(placed, eager))


def _own(snapshot: Snapshot) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that returns the snapshot's own tensors without a history as they are, and detaches
    all others."""
    held = {id(tensor) for tensor in snapshot.tensors}

    def own(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if id(tensor) in held and tensor.grad_fn is None else tensor.detach()

    return own


def judge(model: Callable[..., Any], expected: list[Any], output: Any, machine: Machine) -> None:
    """Compare the output of a call on a machine with the model's, given as `answer` leaves it. Raises
    DifferenceError."""
    wanted, loosest, pairs, *_ = expected
    in_eager = {id(placed): eager for placed, eager in pairs}
    found, tf32 = pytree.tree_leaves(output), coarse(machine)
    for index, (ours, eager) in enumerate(zip(found, wanted)):
        if not isinstance(eager, torch.Tensor) or not isinstance(ours, torch.Tensor):
            continue
        allowed = LOOSE * LIMIT.get(eager.dtype, 0.0)
        if eager.dtype is torch.float32:
            allowed = max(allowed, tf32)
        # An output that was converted at the end is as precise as what it was computed from.
        allowed = allowed and max(allowed, loosest)
        if allowed and casting.enabled(eager.device.type):
            # Autocast rounds products to its dtype, whatever the dtype of the output.
            allowed = max(allowed, LIMIT[torch.bfloat16])
        # What the graph gives in eager, with which the placed answer was compared, is rounded in the model's order.
        near = in_eager.get(id(ours))
        if near is not None and near.shape == eager.shape and error(near, eager) <= allowed:
            continue
        if ours.shape != eager.shape or (allowed and not error(ours.detach(), eager) <= allowed):
            raise DifferenceError(
                f"output {index} is not the model's, though it is that of the graph torch.compile captured: error "
                f"{error(ours.detach(), eager):.2g}, allowed {allowed:.2g}. {_remedy(model)}"
            )


def _remedy(model: Any) -> str:
    layers = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
    if isinstance(model, nn.Module) and any(isinstance(child, layers) for child in model.modules()):
        return (
            "In eval mode nn.TransformerEncoder takes a fused path, which torch.compile does not and which sets "
            "padded rows to zero: call torch.backends.mha.set_fastpath_enabled(False) for the plain model too, or pass "
            'check="never" if padded rows do not matter'
        )
    return (
        "The model does something else when it is captured (torch.compiler.is_compiling()); compare with "
        'torch.compile(model, backend="eager"), or pass check="never" to run anyway'
    )
