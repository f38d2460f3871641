"""A plan with the kernels of one stack: fused into pieces, compiled, and compared with eager."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils import _pytree as pytree

from ..capture import Captured
from ..capture.results import expressions, resizable
from ..ir.costed import CostedGraph
from ..ir.graph import Const, Task
from ..ir.open_size import OPENED, Opened, OpenSize
from ..ir.plan import Plan
from ..ir.program import Buffer, Compute, Piece, Program
from ..lowering.check import check
from ..lowering.rewrites import overwriting, pieced
from ..runtime.choice import Arrangement
from ..runtime.executor import Executor
from ..runtime.kernels import Compilation, Kernel, Refusal, Stack
from ..runtime.kernels.differences import differs
from ..runtime.kernels.stack import LEAST, Axes, module_of, shortest
from ..runtime.kernels.worker import CompilerProcess
from ..runtime.replicas import Replicas
from ..runtime.weights import Weights
from .compare import error, interpret, largest, limit, no_worse, present, widen
from .kernel_calls import fitting, fitting_all

log = logging.getLogger("autopar")

RETRIES = 3
"""Attempts to compile without the operators that a library's message names, before giving up."""

Sample: TypeAlias = tuple[Sequence[Any], Sequence[Any]]
"""Inputs of a call, and eager's results for them."""


@dataclass(frozen=True)
class Form:
    """A proved program of a plan, to run with `threads` in each lane."""

    captured: Captured
    plan: Plan
    program: Program
    threads: int
    changing: bool = False
    """True if all its weights change from call to call, so that kernels cannot fold them."""
    symbols: tuple[sympy.Expr, ...] = ()
    """The sizes of a call by place (`OpenSize`), for kernels that serve calls of all sizes."""
    held: dict[str, torch.Tensor] = field(default_factory=dict)
    """Copies of the state that a call changes. While kernels are compiled and compared, calls without side
    effects (`trying`) read them, since other calls go on."""

    def hold(self) -> None:
        """Copy the state that a call changes, unless all weights change."""
        state = {} if self.changing else self.captured.state
        for name in self.plan.costed.graph.mutated & state.keys():
            owner, key = state[name]
            self.held[name] = owner[key].detach().clone()

    @property
    def tried(self) -> Captured:
        """The captured model for calls that change nothing."""
        held = {name: (self.held, name) for name in self.held}
        return replace(self.captured, state={**self.captured.state, **held})

    def steady(self, name: str) -> bool:
        """Return True for state that only the user changes, so that kernels may fold it."""
        return not self.changing and name not in self.plan.costed.graph.mutated

    @property
    def lanes(self) -> int:
        """Number of compute lanes."""
        return len(self.program.lanes)

    def shaped(self, number: Opened) -> bool:
        """Return True if an argument is known from the shapes of inputs, or fixed in this form."""
        if not isinstance(number, OpenSize):
            return False
        return not self.symbols or self.symbols[number.place].free_symbols <= self._lengths

    @cached_property
    def _lengths(self) -> set[sympy.Basic]:
        """The symbols in the shapes of inputs that tasks read."""
        graph = self.plan.costed.graph
        sizes = (size for name in graph.inputs if graph.readers[name] for size in graph.value[name].open[:-1])
        return {
            symbol
            for size in sizes
            if isinstance(size, OpenSize)
            for symbol in self.symbols[size.place].free_symbols
        }

    @cached_property
    def types(self) -> dict[str, str]:
        """The type of the torch device of each task."""
        device = self.plan.costed.machine.device
        return {
            step.task: device[lane.device].torch_type
            for lane in self.program.lanes
            for step in lane.steps
            if isinstance(step, Compute)
        }


def symbols_of(captured: Captured, costed: CostedGraph) -> tuple[sympy.Expr, ...]:
    """Return the sizes of a call by place if one kernel can serve calls of all sizes; else ()."""
    on_cpu = all(device.torch_type == "cpu" for device in costed.machine.devices)
    long = bool(captured.sizes) and shortest(captured.sizes) >= LEAST
    return expressions(captured.open or ()) if on_cpu and long and resizable(captured, costed) else ()


def arranged(
    name: str,
    stack: Stack,
    form: Form,
    pool: Replicas,
    samples: Sequence[Sample],
    watch: Weights,
    worker: CompilerProcess,
    plain: Executor,
    turn: AbstractContextManager[Any],
) -> Arrangement:  # fmt: skip
    """Compile the pieces of a form with a stack; return the arrangement. `watch` covers all state that is folded.

    Operators that the stack turns out to lack stay eager, in up to `RETRIES` further attempts.

    plain: eager's executor, without side effects; it runs the samples again if `form.changing`.
    turn: keeps other calls out while kernels and eager run the samples.

    Raises Refusal if there are no pieces, weights have changed meanwhile, or a result differs from eager's,
    and the stack's errors.
    """
    if missing := stack.missing():
        raise Refusal(missing)
    lacking: frozenset[str] = frozenset()
    limits: list[str] = []
    for left in reversed(range(RETRIES + 1)):
        try:
            program, kernels = _compiled(stack, form, pool, samples[0][0], worker, lacking, limits)
            break
        except Refusal as refusal:
            known, lacking = lacking, lacking | refusal.lacking
            able = (
                task.target not in lacking and not _eager(form, stack, task)
                for task in form.plan.costed.graph.tasks
            )
            # A message that shows the whole graph names all operators, and tells more than another attempt.
            if not left or lacking == known or not any(able):
                raise
            log.info("%s lacks %s: %s", name, ", ".join(sorted(lacking)), refusal)
    captured = form.captured
    made = Executor(captured, form.plan, in_place(captured, form.plan, program), pool, kernels)
    trial = trying(form, program, pool, kernels) or made
    with turn:
        right = [plain(inputs) if form.changing else outputs for inputs, outputs in samples]
        scales = [largest(each) for each in zip(*right)]
        for (inputs, _), eager in zip(samples, right):
            _judge(form, inputs, trial(inputs), eager, scales)
        if form.symbols:
            _lengthened(form, samples[0][0], trial, plain)
    if limits:
        raise Refusal(f"it is right for some sizes alone: {limits[0]}")
    if not watch.unchanged():
        raise Refusal("weights changed while it was compiled")
    copied = any(
        _stays(buffer, form) and buffer.kind == "resident"
        for piece, device in _pieces(form, program)
        if device.type == "cuda"
        for buffer in map(program.buffer.__getitem__, piece.reads)
    )
    return Arrangement(
        name, made, watch if stack.frozen or copied else None, trial, bool(form.symbols), limits
    )


def _pieces(form: Form, program: Program) -> list[tuple[Piece, torch.device]]:
    """Return the pieces of a program, each with its device."""
    machine = form.plan.costed.machine
    return [
        (step, torch.device(machine.device[lane.device].torch_device))
        for lane in program.lanes
        for step in lane.steps
        if isinstance(step, Piece)
    ]


def _compiled(
    stack: Stack,
    form: Form,
    pool: Replicas,
    inputs: Sequence[Any],
    worker: CompilerProcess,
    lacking: frozenset[str],
    limits: list[str],
) -> tuple[Program, dict[str, Kernel]]:
    """Return the program of a form in pieces, and the kernel of each piece by its first task. Operators in
    `lacking` stay eager; `limits` is as in `fitting_all`. Raises Refusal and the stack's errors."""
    graph = form.plan.costed.graph
    program = pieced(form.program, graph, lambda task: task.target in lacking or _eager(form, stack, task))
    pieces = _pieces(form, program)
    if not pieces:
        types = {graph.value[name].dtype for task in graph.tasks for name in (*task.inputs, *task.outputs)}
        reasons = {differs(task, graph, stack.name) for task in graph.tasks} - {""}
        raise Refusal(
            "; ".join((f"it can do none of the tasks, of {', '.join(sorted(types))}", *sorted(reasons)))
        )
    check(program, graph)
    folded = {
        piece.tasks[0]: _folded(form, program, piece, device) if stack.frozen else {}
        for piece, device in pieces
    }
    modules = {
        piece.tasks[0]: module_of(piece, program, graph, device, folded[piece.tasks[0]], form.symbols)
        for piece, device in pieces
    }
    seen = _seen(form, program, pool, modules, inputs)
    kernels = {}
    for piece, device in pieces:
        first = piece.tasks[0]
        (module, takes, axes), (read, wanted) = modules[first], seen[first]
        with tempfile.TemporaryDirectory(prefix="autopar-") as folder:
            weights = tuple(_stays(program.buffer[piece.reads[at]], form) for at in takes)
            work = Compilation(module, read, device, form.threads, form.lanes, Path(folder), weights, axes)
            if stack.compile is not None:
                worker.compile(stack.name, piece, program, graph, folded[first], form.symbols, work)
            call = stack.load(work)
            call = fitting_all(call, work, wanted, limits) if form.symbols else fitting(call, work, wanted)
        kernels[first] = Kernel(stack.name, call, takes)
    return program, kernels


def _stays(buffer: Buffer, form: Form) -> bool:
    """Return True for a weight that is in the same memory in each call. A copy of a weight must also not
    change."""
    graph = form.plan.costed.graph
    if buffer.value not in form.captured.state or buffer.value in graph.streamed:
        return False
    return buffer.kind == "given" or form.steady(buffer.value)


def _eager(form: Form, stack: Stack, task: Task) -> bool:
    """Return True if a task stays eager: the user's own function, one that the stack cannot compile there or computes
    otherwise than PyTorch, or one with an argument that would be another kernel in each call."""
    graph = form.plan.costed.graph
    if task.target in form.captured.calls or not stack.keeps(task, graph) or differs(task, graph, stack.name):
        return True
    if stack.devices is not None and form.types[task.name] not in stack.devices:
        return True
    numbers = (item for item in pytree.tree_leaves((task.args, task.kwargs)) if isinstance(item, OPENED))
    return any(not form.shaped(number) for number in numbers)


def _folded(form: Form, program: Program, piece: Piece, device: torch.device) -> dict[str, Any]:
    """Return the state that a kernel of a piece may fold, on its device."""
    state = present(form.captured)
    names = (program.buffer[name].value for name in piece.reads)
    return {name: state[name].detach().to(device) for name in names if name in state and form.steady(name)}


def _judge(
    form: Form, inputs: Sequence[Any], found: Sequence[Any], eager: Sequence[Any], scales: Sequence[float]
) -> None:
    """Raise Refusal if a result differs from eager's by more than the tolerance, and from the float64 result by more
    than twice eager's error. Errors are relative to `scales`, the largest values over all samples: a result of
    one number may be near zero in one of them."""
    wide: list[Any] = []
    for index, (ours, right, floor) in enumerate(zip(found, eager, scales)):
        if (off := error(ours, right, floor)) > limit(right):
            wide = wide or _in_double(form, inputs)
            if not no_worse(ours, right, wide[index], floor):
                raise Refusal(f"its answer differs from eager's by {off:.1g}, {limit(right):.1g} is allowed")


def _lengthened(form: Form, inputs: Sequence[Any], trial: Executor, plain: Executor) -> None:
    """Run kernels for all sizes on inputs whose lengths are longer by one, if eager accepts these. A library
    may have assumed even lengths, or multiples, and the first calls need not show that. Raises the kernels'
    errors."""
    known = dict(zip(form.symbols, form.captured.sizes))
    free = {symbol for expression in form.symbols for symbol in expression.free_symbols}
    if not free <= known.keys():
        return
    longer = {symbol: sympy.sympify(known[symbol] + isinstance(known[symbol], int)) for symbol in free}
    sizes = tuple(
        type(number)(expression.xreplace(longer))
        for expression, number in zip(form.symbols, form.captured.sizes)
    )
    if shortest(sizes) < LEAST:
        return
    graph, others = form.plan.costed.graph, []
    for name, item in zip(graph.inputs, inputs):
        for axis, size in enumerate(graph.value[name].open[:-1]):
            if isinstance(size, OpenSize):
                item = item.index_select(axis, torch.arange(sizes[size.place]) % item.shape[axis])
        others.append(item)
    try:
        plain.resized(sizes)(others)
    except Exception as refused:
        log.debug("no call is one longer: %s", refused)
        return
    # The kernels compare themselves with eager in their first calls of new sizes (`kernel_calls`).
    trial.resized(sizes)(others)


def _in_double(form: Form, inputs: Sequence[Any]) -> list[Any]:
    """Return outputs and updates of a graph computed in float64."""
    graph, captured = form.plan.costed.graph, form.captured
    wide = replace(graph, tasks=tuple(map(_widened, graph.tasks)))
    state = {name: tensor.detach() for name, tensor in present(form.tried).items()}
    cpu = torch.device("cpu")
    given = (*zip(graph.inputs, inputs), *state.items())
    values = {name: widen(item.to(cpu) if isinstance(item, torch.Tensor) else item) for name, item in given}
    for _ in interpret(wide, captured.calls, values, cpu):
        pass
    return [values[name] for name in (*graph.outputs, *(made for made, _ in graph.updates))]


def _widened(task: Task) -> Task:
    """Return the task with float64 in place of float32."""
    given = {"torch.float32": Const("torch.float64")}
    made = pytree.tree_map_only(Const, lambda item: given.get(item.text, item), (task.args, task.kwargs))
    return replace(task, args=made[0], kwargs=made[1])


def in_place(captured: Captured, plan: Plan, program: Program) -> Program:
    """Return the program, proved; if it has one lane, it updates large weights in place (`overwriting`)."""
    graph = plan.costed.graph
    if plan.costed.machine.clock == "declared":
        return program
    made = overwriting(
        program, graph, lambda task: f"{task.target}_" in captured.calls and len(task.args) == 1
    )
    if made is not program:
        check(made, graph)
    return made


def trying(
    form: Form, program: Program, pool: Replicas, kernels: Mapping[str, Kernel] = MappingProxyType({})
) -> Executor | None:
    """Return an executor that returns updates after its outputs and changes nothing; None if there are no updates."""
    if not program.updates and not program.keeps:
        return None
    made = (*program.outputs, *(buffer for buffer, _ in program.updates))
    tried = replace(program, outputs=made, updates=(), keeps=())
    return Executor(form.tried, form.plan, tried, pool, kernels)


_Tensors = Sequence[torch.Tensor]
_Modules = Mapping[str, tuple[Callable[..., Any], tuple[int, ...], Axes]]


def _seen(
    form: Form, program: Program, pool: Replicas, modules: _Modules, inputs: Sequence[Any]
) -> dict[str, tuple[_Tensors, _Tensors]]:
    """Return the inputs and outputs of each piece in a call with eager kernels."""
    seen: dict[str, tuple[_Tensors, _Tensors]] = {}

    def noting(name: str, module: Callable[..., Any]) -> Callable[..., Any]:
        def call(*tensors: torch.Tensor) -> Any:
            with torch.no_grad():
                made = module(*tensors)
            seen[name] = [tensor.detach() for tensor in tensors], made
            return made

        return call

    kernels = {
        name: Kernel("eager", noting(name, module), takes) for name, (module, takes, _) in modules.items()
    }
    executor = trying(form, program, pool, kernels) or Executor(
        form.captured, form.plan, program, pool, kernels
    )
    try:
        executor(inputs)
    finally:
        executor.close()
    return seen


def perturbed(inputs: Sequence[Any], integers: bool) -> list[Any]:
    """Return other inputs of the same kind: floats scaled and shifted, `integers` rotated along their last axis."""

    def other(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        if item.is_floating_point() or item.is_complex():
            return item * 0.7 + 0.1
        return item.roll(1, -1) if integers and item.dim() else item

    return [other(item) for item in inputs]
