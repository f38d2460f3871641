"""Comparison of two results of one call, with state restored in between: error and tolerance. `interpret`
computes a graph task by task on one device, as the reference for the fast path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..capture import Captured
from ..capture import autocast as casting
from ..ir.graph import Graph, Task
from ..ir.machine import Machine
from ..ops import resolve

LIMIT = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float16: 2e-2,
    torch.bfloat16: 2e-2,
}
"""Tolerance of max|Δ| ÷ max|reference| for each dtype; everything else must be equal."""


def error(result: Any, reference: Any, floor: float = 0.0) -> float:
    """Return max|Δ| ÷ max|reference|; NaN and infinities equal themselves; inf if shape, dtype or kind differ.

    If all of the reference is finite, the divisor is at least `floor`.
    """
    if not isinstance(reference, torch.Tensor) or not isinstance(result, torch.Tensor):
        return 0.0 if type(result) is type(reference) and result == reference else float("inf")
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return float("inf")
    if reference.numel() == 0:
        return 0.0
    result, reference = result.detach(), reference.detach().to(result.device)
    if result.layout is not torch.strided:
        result, reference = result.to_dense(), reference.to_dense()
    if not (reference.is_floating_point() or reference.is_complex()):
        return 0.0 if torch.equal(result, reference) else float("inf")
    wide = torch.complex128 if reference.is_complex() else torch.float64
    a, b = result.to(wide), reference.to(wide)
    finite = torch.isfinite(b)
    if not bool(finite.all()):
        if not torch.equal(torch.nan_to_num(a[~finite], nan=7.0), torch.nan_to_num(b[~finite], nan=7.0)):
            return float("inf")
        a, b = a[finite], b[finite]
        if b.numel() == 0:
            return 0.0
        floor = 0.0
    delta, scale = float((a - b).abs().max()), max(float(b.abs().max()), floor)
    if delta != delta:
        return float("inf")
    return delta / scale if scale else (0.0 if delta == 0 else float("inf"))


def distance(result: Any, reference: Any) -> float:
    """Return max|Δ| of two floating-point tensors; inf if one is not finite, or shape, dtype or kind differ."""
    if not isinstance(reference, torch.Tensor) or not isinstance(result, torch.Tensor):
        return float("inf")
    if (result.shape, result.dtype) != (reference.shape, reference.dtype) or reference.dtype not in LIMIT:
        return float("inf")
    if not reference.numel():
        return 0.0
    delta = float((widen(result.detach()) - widen(reference.detach()).to(result.device)).abs().max())
    return delta if delta == delta else float("inf")


def difference(result: Any, reference: Any, allowed: float) -> str:
    """Return the difference of two results as text: kind, dtype or shape, or the error and the tolerance `allowed`."""
    for ours, eager in zip(_form(result), _form(reference)):
        if ours != eager:
            return f"{ours}, not {eager}"
    return f"error {error(result, reference):.2g}, allowed {allowed:.2g}"


def _form(item: Any) -> tuple[str, str, str]:
    """Return the kind, dtype and shape of a result as text."""
    if not isinstance(item, torch.Tensor):
        return type(item).__name__, "", ""
    return "a tensor", f"of {item.dtype}", f"of shape {list(item.shape)}"


def largest(items: Iterable[Any]) -> float:
    """Return the largest finite entry of all dense floating-point tensors, or 0."""
    tensors = (item.detach() for item in items if isinstance(item, torch.Tensor) and item.numel())
    floating = (t for t in tensors if t.is_floating_point() and t.layout is torch.strided)
    return max((float(t.abs().nan_to_num(0.0, 0.0).max()) for t in floating), default=0.0)


def limit(reference: Any) -> float:
    """Return the tolerance for `reference`."""
    return LIMIT.get(reference.dtype, 0.0) if isinstance(reference, torch.Tensor) else 0.0


def rounded(graph: Graph) -> set[torch.dtype]:
    """Return the floating-point dtypes of a graph, whose numbers are rounded."""
    return {dtype for value in graph.values if (dtype := getattr(torch, value.dtype, None)) in LIMIT}


def coarse(machine: Machine | None, graph: Graph | None = None) -> float:
    """Return the tolerance for float32 where a GPU may round factors to TF32, with the mantissa of float16,
    as cuDNN does by default in convolutions and recurrent layers; else 0. None: any machine or graph."""
    names = [device.torch_device for device in machine.devices] if machine is not None else []
    gpus = [name for name in names if name.startswith("cuda")] if torch.cuda.is_available() else []
    if not any(torch.cuda.get_device_capability(name) >= _AMPERE for name in gpus):
        return 0.0
    layers = graph is None or any(_single(task, graph) for task in graph.tasks)
    backends = (torch.backends.cuda.matmul, *([torch.backends.cudnn] if layers else []))
    return LIMIT[torch.float16] if any(map(_allowed, backends)) else 0.0


def _allowed(backend: Any) -> bool:
    """Return True if a backend may use TF32, or cannot tell because `fp32_precision` was set."""
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:
        return True


def _single(task: Task, graph: Graph) -> bool:
    """Return True if a task may be a float32 layer of cuDNN."""
    return task.target.startswith(_CUDNN) and graph.value[task.outputs[0]].dtype == "float32"


_AMPERE = (8, 0)
"""The first compute capability with TF32."""
_CUDNN = (
    *(f"{space}.{name}" for space in ("aten", "autopar") for name in ("conv", "lstm", "gru", "rnn")),
    "aten._conv", "aten.cudnn", "aten.slow_conv",
)  # fmt: skip


def widen(value: Any) -> Any:
    """Return a floating-point tensor in double precision; other values unchanged."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, torch.Tensor) and value.is_complex():
        return value.to(torch.complex128)
    return value


def no_worse(result: Any, eager: Any, wide: Any, floor: float = 0.0) -> bool:
    """Return True if `result` has eager's dtype, and at most twice eager's error relative to the float64 result."""
    if (
        not all(isinstance(item, torch.Tensor) for item in (result, eager, wide))
        or result.dtype != eager.dtype
    ):
        return False
    return error(widen(result), wide, floor) <= 2 * error(widen(eager), wide, floor) + 1e-12


def interpret(
    graph: Graph, calls: Mapping[str, Callable[..., Any]], values: dict[str, Any], device: torch.device
) -> Iterator[Task]:
    """Run each task on `values`, which first holds inputs and state, and yield the task; like lanes, without
    autograd and autocast."""
    for task in graph.tasks:
        with torch.no_grad(), casting.off({"cpu", device.type}):
            results = resolve.called(task, resolve.target(task.target, calls), values.__getitem__, device)
        for name, value in zip(task.outputs, results if task.unpack else (results,)):
            values[name] = value
        yield task


class Snapshot:
    """The caller's tensors for one call, and copies of those that the call changes."""

    def __init__(self, captured: Captured, args: Sequence[Any]) -> None:
        self.captured = captured
        self.tensors = captured.flatten(args)
        mutated = captured.graph.mutated
        self.before = {name: detached_copy(tensor) for name, tensor in self.live().items() if name in mutated}
        self.random = self.drawn = generators()

    def live(self) -> dict[str, torch.Tensor]:
        """Return the caller's own inputs and state, by value name."""
        return present(self.captured, self.tensors)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore buffers, mutated inputs and generator states at the end of the block."""
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
        """Return False if the generators differ from their state at the end of `restored`: the run draws
        other numbers, or another thread has advanced them, as torch does at the end of each capture."""
        now = generators()
        return all(torch.equal(now[name], state) for name, state in self.drawn.items())


def present(captured: Captured, tensors: Sequence[torch.Tensor] = ()) -> dict[str, torch.Tensor]:
    """Return the tensors of a captured model by value: its state, and its inputs if given."""
    state = {name: owner[key] for name, (owner, key) in captured.state.items()}
    return {**state, **dict(zip(captured.graph.inputs, tensors))}


def detached_copy(leaf: Any) -> Any:
    """Return a tensor in its own memory, without history; other values unchanged."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


@contextmanager
def untouched(root: nn.Module) -> Iterator[None]:
    """Within the block, let a module write to copies of its buffers; then restore these and all generators."""
    buffers_of, random = {module: dict(module._buffers) for module in root.modules()}, generators()
    copies = {id(each): detached_copy(each) for buffers in buffers_of.values() for each in buffers.values()}
    for module, buffers in buffers_of.items():
        module._buffers.update({name: copies[id(each)] for name, each in buffers.items()})
    try:
        yield
    finally:
        restore(random)
        for module, buffers in buffers_of.items():
            module._buffers.update(buffers)


def generators() -> dict[str, torch.Tensor]:
    """Return the state of every random generator, by device; an accelerator's only once it is in use."""
    states = {"cpu": torch.get_rng_state()}
    if torch.accelerator.is_available() and (kind := torch.accelerator.current_accelerator()) is not None:
        module = torch.get_device_module(kind)
        # A backend without `is_initialized` (mps) is in use from the start.
        if getattr(module, "is_initialized", lambda: True)():
            devices = [f"{kind.type}:{index}" for index in range(torch.accelerator.device_count())]
            states.update({device: _called(module.get_rng_state, device) for device in devices})
    return states


def restore(states: dict[str, torch.Tensor]) -> None:
    """Restore the generator states returned by `generators`."""
    for name, state in states.items():
        if name == "cpu":
            torch.set_rng_state(state)
        else:
            _called(torch.get_device_module(name).set_rng_state, state, name)


def _called(function: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call, without the device if there is only one and the function takes none (mps)."""
    return function(*args[: len(inspect.signature(function).parameters)])
