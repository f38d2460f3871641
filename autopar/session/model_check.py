"""The comparison of a graph's first call with the model itself.

It finds changes by Dynamo that the check of the graph cannot see: the captured model may take other branches
(`torch.compiler.is_compiling()`), and the model's own fused kernels may differ (`nn.TransformerEncoder` sets padded
rows to zero).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from ..capture import autocast as casting
from ..capture.torch_private import pytree
from ..errors import DifferenceError
from ..ir.graph import Graph, Task
from ..ir.machine import Machine
from .compare import LIMIT, Snapshot, coarse, detached_copy, error, rounded

LOOSE = 100.0
"""Factor on a graph's own tolerance, since a model that torch captures may round differently."""


@dataclass(eq=False)
class _Answer:
    """The model's own answer to a call.

    leaves: of the output. loosest: the tolerance of the graph's least precise dtype. exact: no integer of the graph
    follows from a float or from a random number. snapshot: restores what a call changes. doubt: has the next call
    compared again. pairs: the graph's outputs, each placed and in eager.
    """

    leaves: list[Any]
    loosest: float
    exact: bool
    snapshot: Snapshot
    doubt: Callable[[], None]
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()


@dataclass(eq=False)
class Call:
    """A call by the user: the model and its arguments, and the model's own answer while a graph is checked."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: _Answer | None = None

    def run_model(self, snapshot: Snapshot, doubt: Callable[[], None]) -> None:
        """Run the plain model for its `answer`, then restore all that `snapshot` holds."""
        args, kwargs = pytree.tree_map_only(torch.Tensor, _detached(snapshot), (self.args, self.kwargs))
        with snapshot.restored():
            try:
                output = self.model(*args, **kwargs)
            except Exception:
                # The placed run that follows raises the error in the right place.
                return
            leaves = [detached_copy(leaf) for leaf in pytree.tree_leaves(output)]
            graph = snapshot.captured.graph
            loosest = max((LIMIT[dtype] for dtype in rounded(graph)), default=0.0)
            exact = not any(_rounds(graph, task) for task in graph.tasks)
            self.answer = _Answer(leaves, loosest, exact, snapshot, doubt)

    def compared(self, output: Any, outputs: Sequence[Any]) -> None:
        """Note the `outputs` of the graph in eager, with which those of the placed graph agree."""
        placed, eager = (
            [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
            for results in (output, outputs)
        )
        if self.answer is not None:
            self.answer.pairs = list(zip(placed, eager))

    def judge(self, output: Any, machine: Machine) -> None:
        """Compare the output of the placed model on a machine with the model's own answer, if there is one. Raises
        DifferenceError."""
        if self.answer is None:
            return
        in_eager = {id(placed): eager for placed, eager in self.answer.pairs}
        outputs, tf32 = pytree.tree_leaves(output), coarse(machine)
        for index, (ours, eager) in enumerate(zip(outputs, self.answer.leaves)):
            if not isinstance(eager, torch.Tensor) or not isinstance(ours, torch.Tensor):
                continue
            allowed = LOOSE * LIMIT.get(eager.dtype, 0.0)
            if eager.dtype is torch.float32:
                allowed = max(allowed, tf32)
            # An output that was converted at the end is as precise as what it was computed from.
            allowed = allowed and max(allowed, self.answer.loosest)
            if allowed and casting.enabled(eager.device.type):
                # Autocast rounds products to its dtype, whatever the dtype of the output.
                allowed = max(allowed, LIMIT[torch.bfloat16])
            # What the graph gives in eager, with which the placed answer was compared, is rounded in the model's order.
            near = in_eager.get(id(ours))
            if near is not None and near.shape == eager.shape and error(near, eager) <= allowed:
                continue
            # An integer may follow from how a float is rounded.
            judged = bool(allowed) or (near is not None and self.answer.exact)
            if ours.shape != eager.shape or (judged and not error(ours.detach(), eager) <= allowed):
                raise DifferenceError(
                    f"output {index} is not the model's, though it is that of the graph torch.compile captured: error "
                    f"{error(ours.detach(), eager):.2g}, allowed {allowed:.2g}. {_remedy(self.model)}"
                )


def _rounds(graph: Graph, task: Task) -> bool:
    """Return True if a task makes integers from floats or random numbers."""
    reads, makes = (
        [graph.value[name].dtype.startswith(("float", "bfloat", "complex")) for name in names]
        for names in (task.inputs, task.outputs)
    )
    return not all(makes) and (any(reads) or bool(task.random))


CALL: ContextVar[Call | None] = ContextVar("call", default=None)
"""The innermost call of a compiled model that this thread is in."""


def _detached(snapshot: Snapshot) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that returns the snapshot's own tensors without a history as they are, and detaches
    all others."""
    held = {id(tensor) for tensor in snapshot.tensors}

    def detached(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if id(tensor) in held and tensor.grad_fn is None else tensor.detach()

    return detached


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
