"""From a program to the Python function of each lane: which backend, which callables, which clock."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from ..ir.graph import Argument, Ref, Task
from ..ir.plan import Plan
from ..ir.program import Compute, Copy, Program, Step
from ..ops import resolve as bind
from .codegen import Code, Style, lane_code
from .kernels import Kernel
from .lanes import accelerator
from .lanes.emulated_clock import task_seconds
from .lanes.host import HostLane
from .slots import layout
from .worker import Gates

if TYPE_CHECKING:
    from ..capture.captured import Captured

LaneFunction = Callable[[list[Any], Any], None]
_NONE: Mapping[str, Kernel] = MappingProxyType({})


class Assembly:
    """The immutable compiled form of a program; events and threads are per call (`lane_threads`).

    `lanes` are the backends of all lanes that have steps.
    `streamed` says whether lanes have streams of their own, other than the caller's.
    """

    def __init__(
        self, captured: Captured, plan: Plan, program: Program, kernels: Mapping[str, Kernel] = _NONE
    ) -> None:
        self.captured, self.plan, self.program, self.kernels = captured, plan, program, kernels
        self.graph, self.machine = plan.costed.graph, plan.costed.machine
        self.layout = layout(program, self.graph)
        self.devices = tuple(
            torch.device(device.torch_device) for device in self.machine.devices if device.torch_type != "cpu"
        )
        types = ("cpu", captured.home.type, *(device.type for device in self.devices))
        self.types = tuple(dict.fromkeys(types))
        self.declared = self.machine.clock == "declared"
        self.lanes: dict[str, HostLane] = {}
        for lane in program.lanes:
            if lane.steps:
                backend = resolve_name(self.machine.device[lane.device].traits.lane)
                self.lanes[lane.name] = backend(lane, program, self.torch_device(lane.device), self.place)
        streams = {name: lane.device for name, lane in self.lanes.items() if lane.streamed}
        self.streamed = bool(streams)
        self._signals = accelerator.signals(program, streams)
        # Only to number events: every crew has gates of its own, numbered alike.
        self._gates = Gates(program)
        self._codes: dict[tuple[str, bool], Code] = {}

    def torch_device(self, name: str) -> torch.device:
        """The torch device that holds the tensors of a device of the machine."""
        return torch.device(self.machine.device[name].torch_device)

    def place(self, buffer: str) -> torch.device:
        """The torch device that holds a buffer."""
        return self.torch_device(self.program.buffer[buffer].device)

    def threads(self, backend: HostLane) -> int:
        """Intra-op threads of a lane."""
        return self.machine.device[backend.lane.device].threads

    def code(self, lane: str, recorded: bool) -> Code:
        """The code of a lane, generated at first use."""
        if (lane, recorded) not in self._codes:
            backend, gates, signals = self.lanes[lane], self._gates, self._signals
            style = Style(
                wait=lambda event: backend.wait(event, gates, signals),
                record=lambda event: backend.record(event, gates, signals),
                copy=lambda step, source: backend.copy(step, source),
                recorded=recorded,
                first=backend.first,
                last=backend.last,
            )
            if self.declared:
                style = self._on_clock(style, lane)
            self._codes[lane, recorded] = lane_code(
                self.program,
                self.graph,
                backend.lane,
                self.layout,
                backend.device,
                style,
                lambda task: backend.call(self._callable(task)),
                self.kernels,
            )
        return self._codes[lane, recorded]

    def function(self, lane: str, recorded: bool, gates: Gates) -> LaneFunction:
        """The function of a lane that goes through `gates`."""
        code = self.code(lane, recorded)
        return code.function({**gates.names(lane), **self.lanes[lane].names})

    def _on_clock(self, style: Style, lane: str) -> Style:
        durations, buffers = task_seconds(self.plan), self.program.buffer
        costed, machine = self.plan.costed, self.machine
        starts = {run.tasks[0]: run.dispatch_s * machine.slow_down for run in costed.clusters}

        def around(step: Step) -> tuple[Sequence[str], Sequence[str]]:
            if isinstance(step, Compute):
                host = starts.get(step.task, 0.0)
                return [f"c.dispatch({host!r})"] if host else (), [f"c.compute({durations[step.task]!r})"]
            assert isinstance(step, Copy)
            source, made = buffers[step.src], buffers[step.dst]
            route = machine.route(source.device, made.device)
            wires = tuple(sorted({link.wire for link in route if link.wire is not None}))
            lasts = sum(link.seconds(made.bytes) for link in route) * machine.slow_down
            return [f"c.reserve({wires!r}, {lasts!r})"], ["c.copied()"]

        return replace(
            style,
            wait=lambda event: [*style.wait(event), f"c.wait({event!r})"],
            record=lambda event: [f"c.record({event!r})", *style.record(event)],
            around=around,
            first=[f"c = d.clock({lane!r})", *style.first],
        )

    def _callable(self, task: Task) -> Callable[..., Any]:
        return self.captured.calls.get(task.target) or fast(task, bind.target(task.target))


_NAMES = """
    abs.default cos.default erf.default exp.default floor.default log.default log1p.default
    logical_not.default neg.default reciprocal.default relu.default round.default rsqrt.default
    sigmoid.default sign.default sin.default sqrt.default tanh.default gelu.default silu.default
    mish.default hardswish.default hardsigmoid.default leaky_relu.default elu.default softplus.default
    log_sigmoid.default add.Tensor sub.Tensor mul.Tensor div.Tensor maximum.default minimum.default
    pow.Tensor_Tensor pow.Tensor_Scalar eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor
    eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar logical_and.default logical_or.default
    bitwise_and.Tensor bitwise_or.Tensor where.self clamp.default masked_fill.Scalar masked_fill.Tensor
    lerp.Scalar matmul.default mm.default bmm.default addmm.default baddbmm.default linear.default
    scaled_dot_product_attention.default conv1d.default conv2d.default conv3d.default layer_norm.default
    group_norm.default batch_norm.default native_layer_norm.default embedding.default softmax.int
    log_softmax.int max_pool2d.default avg_pool2d.default adaptive_avg_pool2d.default dropout.default
    cat.default stack.default chunk.default split_with_sizes.default unbind.int transpose.int
    permute.default reshape.default view.default unsqueeze.default squeeze.dim flatten.using_ints
    select.int expand.default contiguous.default clone.default t.default narrow.default
    index_select.default gather.default sum.default sum.dim_IntList mean.default mean.dim amax.default
    amin.default cumsum.default argmax.default tril.default triu.default roll.default flip.default
"""
OPERATORS = frozenset(f"aten.{name}" for name in _NAMES.split())


def fast(task: Task, operator: Callable[..., Any]) -> Callable[..., Any]:
    """The binding that does what `operator`, the task's target, does; `operator` where none is known to."""
    if task.target not in OPERATORS or not isinstance(operator, torch._ops.OpOverload):
        return operator
    binding = _binding(operator._schema.name.partition("::")[2])
    return binding if binding is not None and _fits(task, operator._schema) else operator


def _binding(name: str) -> Callable[..., Any] | None:
    """Torch's C function or, for what only tensors have, the method of that name."""
    for owner in (torch, getattr(torch._C, "_nn", None)):
        found = getattr(owner, name, None)
        if isinstance(found, types.BuiltinFunctionType):
            return found
    found = getattr(torch.Tensor, name, None)
    return found if isinstance(found, types.MethodDescriptorType) else None


def _fits(task: Task, schema: Any) -> bool:
    """True if the arguments leave the binding no choice: tensors for tensors, keywords only where the schema
    has them.
    """
    keywords = {argument.name for argument in schema.arguments if argument.kwarg_only}
    if not keywords.issuperset(name for name, _ in task.kwargs):
        return False
    if str(schema.returns[0].type).startswith("List") and not task.unpack:
        return False
    return all(_alike(value, str(argument.type)) for value, argument in zip(task.args, schema.arguments))


def _alike(value: Argument, kind: str) -> bool:
    if kind == "Tensor":
        # A number beside a tensor is wrapped by both alike.
        return isinstance(value, Ref) or (isinstance(value, int | float) and not isinstance(value, bool))
    if kind == "List[Tensor]":
        return isinstance(value, tuple) and all(isinstance(item, Ref) for item in value)
    if kind == "Optional[Tensor]":
        return value is None or isinstance(value, Ref)
    return not isinstance(value, Ref)
