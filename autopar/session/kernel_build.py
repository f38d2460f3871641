"""A plan with the kernels of one library: fused into pieces, compiled, and compared with eager."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import fx

from ..capture import Captured
from ..capture.torch_private import pytree
from ..costs.calibrate import threads
from ..ir.graph import Const, Task
from ..ir.open_size import OPENED, Opened, OpenSize
from ..ir.plan import Plan
from ..ir.program import Buffer, Compute, Piece, Program
from ..lowering.check import check
from ..lowering.rewrites import overwriting, pieced
from ..runtime.executor import Executor
from ..runtime.kernels import Kernel, Library, Refusal, tracing
from ..runtime.kernels.differences import differs
from ..runtime.kernels.piece_module import LEAST, module_of, shortest
from ..runtime.lanes.host import clone
from ..runtime.replicas import Replicas
from ..runtime.weights import Weights
from .compare import error, interpret, largest, limit, no_worse, present, widen
from .kernel_calls import AnySize, with_eager_layout

log = logging.getLogger("autopar")

RETRIES = 3
"""Attempts to compile without the operators that a library's message names, before giving up."""

RESIZED = 1024
"""Limit on the sets of sizes for which a candidate keeps its executor."""

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
    symbols: tuple[Any, ...] = ()
    """The sizes of a call by place (`OpenSize`), for kernels that serve calls of all sizes: expressions of sympy, or
    their text in a saved program."""
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

    def shaped(self, number: Opened) -> bool:
        """Return True if an argument is known from the shapes of inputs, or fixed in this form."""
        if not isinstance(number, OpenSize):
            return False
        return not self.symbols or self.symbols[number.place].free_symbols <= self._lengths

    @cached_property
    def _lengths(self) -> set[Any]:
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


@dataclass(frozen=True, eq=False)
class Candidate:
    """A program with the kernels of one library.

    weights: the fingerprint of the state that its kernels fold; None if they take all as arguments.
    trial: its executor for calls that change nothing.
    program: the program in pieces.
    any_size: its kernels serve calls of all sizes.
    kernels: by the first task of each piece.
    error: largest difference from eager's results, relative to the largest value.
    """

    name: str
    executor: Executor
    weights: Weights | None
    trial: Executor
    program: Program
    any_size: bool
    kernels: Mapping[str, Kernel]
    error: float = 0.0
    _resized: dict[tuple[float, ...], Executor] = field(default_factory=dict)

    def tried(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the results of a call without side effects, weights checked as in any call."""
        if self.weights is not None:
            self.weights.unchanged()
        return self.trial(inputs)

    @property
    def failure(self) -> str:
        """The fault of a kernel for some sizes; "" if there is none."""
        failures = (each.call.failure for each in self.kernels.values() if isinstance(each.call, AnySize))
        return next(filter(None, failures), "")

    def without_trial(self) -> Candidate:
        """Return the candidate without the copies of state that `trial` may hold."""
        return replace(self, trial=self.executor)

    def resized(self, sizes: tuple[float, ...] | None) -> Executor:
        """Return the executor for calls with these sizes; None: those that the program was made for."""
        if sizes is None:
            return self.executor
        if len(self._resized) >= RESIZED:
            self._resized.clear()
        if sizes not in self._resized:
            self._resized[sizes] = self.executor.resized(sizes)
        return self._resized[sizes]


def build(
    name: str, library: Library, form: Form, pool: Replicas, samples: Sequence[Sample], plain: Executor
) -> Candidate:
    """Compile the pieces of a form with a library, and compare with eager. If it cannot compile for all sizes, or is
    wrong for others, it compiles for the sizes of the samples.

    Operators that the library turns out to lack stay eager, in up to `RETRIES` further attempts. `plain`: eager's
    executor, without side effects. Raises Refusal if there are no pieces, weights have changed meanwhile, or a result
    differs from eager's, and the library's errors.
    """
    if missing := library.missing():
        raise Refusal(missing)
    if library.folds and form.changing:
        raise Refusal("it folds the weights, which change from call to call")
    if form.symbols and library.any_size:
        try:
            return _built(name, library, form, pool, samples, plain)
        except Exception as problem:
            if isinstance(problem, Refusal) and problem.passing:
                raise
            log.info("%s compiles for one set of sizes, not for all: %s", name, problem)
    return _built(name, library, replace(form, symbols=()), pool, samples, plain)


def _built(
    name: str, library: Library, form: Form, pool: Replicas, samples: Sequence[Sample], plain: Executor
) -> Candidate:
    captured = form.captured
    steady = [captured.state[each] for each in form.plan.costed.graph.state if form.steady(each)]
    weights = pool.watch(steady)
    lacking: frozenset[str] = frozenset()
    for left in reversed(range(RETRIES + 1)):
        eager = partial(_eager, form, name, library, lacking)
        try:
            program, kernels = _compiled(name, library, form, pool, samples[0][0], eager)
            break
        except Exception as problem:
            tasks, known = form.plan.costed.graph.tasks, lacking
            lacking |= {task.target for task in tasks if not eager(task) and task.target in str(problem)}
            # A message that shows the whole graph names all operators, and tells more than another attempt.
            if (
                not left
                or lacking == known
                or all(_eager(form, name, library, lacking, each) for each in tasks)
            ):
                raise
            log.info("%s lacks %s: %s", name, ", ".join(sorted(lacking - known)), problem)
    executor = Executor(captured, form.plan, in_place(captured, form.plan, program), pool, kernels)
    trial = trying(form, program, pool, kernels) or executor
    candidate = Candidate(name, executor, weights, trial, program, bool(form.symbols), kernels)
    scales = [largest(each) for each in zip(*(outputs for _, outputs in samples))]
    errors = [
        _judge(form, captured.sizes, inputs, trial(inputs), outputs, scales) for inputs, outputs in samples
    ]
    candidate = replace(candidate, error=max(errors))
    if form.symbols:
        _compare_sizes(form, samples[0][0], trial, plain)
        if candidate.failure:
            raise Refusal(candidate.failure)
    if not weights.unchanged():
        raise Refusal("weights changed while it was compiled", passing=True)
    recorded = any(
        _stays(buffer, form) and buffer.kind == "resident"
        for piece, device, _ in pieces_of(form, program)
        if device.type == "cuda"
        for buffer in map(program.buffer.__getitem__, piece.reads)
    )
    return candidate if library.folds or recorded else replace(candidate, weights=None)


def pieces_of(form: Form, program: Program) -> list[tuple[Piece, torch.device, int]]:
    """Return the pieces of a program, each with its device and number of threads."""
    machine, lanes = form.plan.costed.machine, program.lanes
    return [
        (
            step,
            torch.device(machine.device[lane.device].torch_device),
            form.threads if len(lanes) == 1 else machine.device[lane.device].threads,
        )
        for lane in lanes
        for step in lane.steps
        if isinstance(step, Piece)
    ]


def _compiled(
    name: str,
    library: Library,
    form: Form,
    pool: Replicas,
    inputs: Sequence[Any],
    eager: Callable[[Task], bool],
) -> tuple[Program, dict[str, Kernel]]:
    """Return the program of a form in pieces, and the kernel of each piece by its first task. Raises Refusal and the
    library's errors."""
    graph = form.plan.costed.graph
    program = pieced(form.program, graph, eager)
    pieces = pieces_of(form, program)
    if not pieces:
        types = {graph.value[value].dtype for task in graph.tasks for value in (*task.inputs, *task.outputs)}
        reasons = {differs(task, graph, name) for task in graph.tasks} - {""}
        raise Refusal(
            "; ".join((f"it can do none of the tasks, of {', '.join(sorted(types))}", *sorted(reasons)))
        )
    check(program, graph)
    modules = modules_of(library, form, program)
    traffic, kernels = seen_in(form, program, pool, modules, inputs), {}
    for piece, _, count in pieces:
        (module, takes), (read, results) = modules[piece.tasks[0]], traffic[piece.tasks[0]]
        with tracing(), threads(count):
            call = with_eager_layout(library.build(module, read), module, read, results)
        kernels[piece.tasks[0]] = Kernel(name, call, takes)
    return program, kernels


def modules_of(
    library: Library, form: Form, program: Program
) -> dict[str, tuple[fx.GraphModule, tuple[int, ...]]]:
    """Return the module that a library compiles for each piece of a program, by its first task, with `Kernel.takes`."""
    graph, modules = form.plan.costed.graph, {}
    for piece, device, _ in pieces_of(form, program):
        state = _folded(form, program, piece, device) if library.folds else {}
        module, takes = modules[piece.tasks[0]] = module_of(
            piece, program, graph, device, state, [*map(str, form.symbols)]
        )
        module.meta["stays"] = tuple(_stays(program.buffer[piece.reads[at]], form) for at in takes)
    return modules


def _stays(buffer: Buffer, form: Form) -> bool:
    """Return True for a weight that is in the same memory in each call. A copy of a weight must also not
    change."""
    graph = form.plan.costed.graph
    if buffer.value not in form.captured.state or buffer.value in graph.streamed:
        return False
    return buffer.kind == "given" or form.steady(buffer.value)


def _eager(form: Form, name: str, library: Library, lacking: Collection[str], task: Task) -> bool:
    """Return True if a task stays eager: the user's own function, one that the library cannot compile there, lacks or
    computes otherwise than PyTorch, or one with an argument that would be another kernel in each call."""
    graph = form.plan.costed.graph
    if task.target in lacking or task.target in form.captured.calls or not library.keeps(task, graph):
        return True
    if library.devices is not None and form.types[task.name] not in library.devices:
        return True
    if differs(task, graph, name):
        return True
    numbers = (item for item in pytree.tree_leaves((task.args, task.kwargs)) if isinstance(item, OPENED))
    return any(not form.shaped(number) for number in numbers)


def _folded(form: Form, program: Program, piece: Piece, device: torch.device) -> dict[str, Any]:
    """Return the state that a kernel of a piece may fold, on its device."""
    state = present(form.captured)
    names = (program.buffer[name].value for name in piece.reads)
    return {name: state[name].detach().to(device) for name in names if name in state and form.steady(name)}


def _judge(
    form: Form,
    sizes: Sequence[float],
    inputs: Sequence[Any],
    results: Sequence[Any],
    eager: Sequence[Any],
    scales: Sequence[float],
) -> float:
    """Return the largest difference from eager's results.

    Raises Refusal if a result differs from eager's by more than the tolerance, and from the float64 result by more
    than twice eager's error. Errors are relative to `scales`, the largest values over all samples: a result of
    one number may be near zero in one of them."""
    wide: list[Any] = []
    largest_off = 0.0
    for index, (ours, right, floor) in enumerate(zip(results, eager, scales)):
        off = error(ours, right, floor)
        largest_off = max(largest_off, off)
        if off > limit(right):
            wide = wide or _in_double(form, sizes, inputs)
            if not no_worse(ours, right, wide[index], floor):
                raise Refusal(f"its answer differs from eager's by {off:.1g}, {limit(right):.1g} is allowed")
    return largest_off


def _compare_sizes(form: Form, inputs: Sequence[Any], trial: Executor, plain: Executor) -> None:
    """Compare kernels for all sizes with eager for other sizes, of those that eager accepts: all lengths one longer,
    and twice as long. A library may have assumed even lengths, or multiples, which the first call need not show. Raises
    Refusal if a result differs, or eager accepts no other sizes, and the kernels' errors."""
    known = dict(zip(form.symbols, form.captured.sizes))
    free = {symbol for expression in form.symbols for symbol in expression.free_symbols}
    graph, compared = form.plan.costed.graph, 0
    for scale, more in ((1, 1), (2, 0)) if free <= known.keys() else ():
        others = {
            symbol: known[symbol] * scale + more if isinstance(known[symbol], int) else known[symbol]
            for symbol in free
        }
        sizes = tuple(
            type(number)(expression.subs(others))
            for expression, number in zip(form.symbols, form.captured.sizes)
        )
        if shortest(sizes) < LEAST:
            continue
        longer = []
        for name, item in zip(graph.inputs, inputs):
            for axis, size in enumerate(graph.value[name].open[:-1]):
                if isinstance(size, OpenSize):
                    item = item.index_select(
                        axis, torch.arange(sizes[size.place], device="cpu") % item.shape[axis]
                    )
            longer.append(item)
        try:
            right = [*map(clone, plain.resized(sizes)(longer))]
        except Exception as refused:
            log.debug("no call has these sizes: %s", refused)
            continue
        compared += 1
        results = trial.resized(sizes)(longer)
        _judge(form, sizes, longer, results, right, [largest([each]) for each in right])
    if not compared:
        raise Refusal("there are no other sizes to compare it with eager for")


def _in_double(form: Form, sizes: Sequence[float], inputs: Sequence[Any]) -> list[Any]:
    """Return outputs and updates of a call of some sizes computed in float64."""
    graph = form.plan.costed.graph
    wide = replace(graph, tasks=tuple(_widened(task, sizes) for task in graph.tasks))
    state = {name: tensor.detach() for name, tensor in present(form.tried).items()}
    cpu = torch.device("cpu")
    pairs = (*zip(graph.inputs, inputs), *state.items())
    values = {name: widen(item.to(cpu) if isinstance(item, torch.Tensor) else item) for name, item in pairs}
    for _ in interpret(wide, form.captured.calls, values, cpu):
        pass
    return [values[name] for name in (*graph.outputs, *(update for update, _ in graph.updates))]


def _widened(task: Task, sizes: Sequence[float]) -> Task:
    """Return the task with float64 in place of float32, for a call of some sizes."""

    def widened(item: Any) -> Any:
        if isinstance(item, OPENED):
            return item.at(sizes)
        return Const("torch.float64") if isinstance(item, Const) and item.text == "torch.float32" else item

    args, kwargs = pytree.tree_map(widened, (task.args, task.kwargs))
    return replace(task, args=args, kwargs=kwargs)


def in_place(captured: Captured, plan: Plan, program: Program) -> Program:
    """Return the program, proved; if it has one lane, it updates large weights in place (`overwriting`)."""
    graph = plan.costed.graph
    if plan.costed.machine.clock == "declared":
        return program
    changed = overwriting(
        program, graph, lambda task: f"{task.target}_" in captured.calls and len(task.args) == 1
    )
    if changed is not program:
        check(changed, graph)
    return changed


def trying(
    form: Form, program: Program, pool: Replicas, kernels: Mapping[str, Kernel] = MappingProxyType({})
) -> Executor | None:
    """Return an executor that returns updates after its outputs and changes nothing; None if there are no updates."""
    if not program.updates and not program.keeps:
        return None
    outputs = (*program.outputs, *(buffer for buffer, _ in program.updates))
    tried = replace(program, outputs=outputs, updates=(), keeps=())
    return Executor(form.tried, form.plan, tried, pool, kernels)


_Tensors = Sequence[torch.Tensor]
_Modules = Mapping[str, tuple[Callable[..., Any], tuple[int, ...]]]


def seen_in(
    form: Form, program: Program, pool: Replicas, modules: _Modules, inputs: Sequence[Any]
) -> dict[str, tuple[_Tensors, _Tensors]]:
    """Return the inputs and outputs of each piece in a call with eager kernels."""
    traffic: dict[str, tuple[_Tensors, _Tensors]] = {}

    def noting(name: str, module: Callable[..., Any]) -> Callable[..., Any]:
        def call(*tensors: torch.Tensor) -> Any:
            with torch.no_grad():
                results = module(*tensors)
            traffic[name] = [tensor.detach() for tensor in tensors], results
            return results

        return call

    kernels = {
        name: Kernel("eager", noting(name, module), takes) for name, (module, takes) in modules.items()
    }
    executor = trying(form, program, pool, kernels) or Executor(
        form.captured, form.plan, program, pool, kernels
    )
    try:
        executor(inputs)
    finally:
        executor.close()
    return traffic


def perturbed(inputs: Sequence[Any], integers: bool) -> list[Any]:
    """Return other inputs of the same kind: floats scaled and shifted, `integers` rotated along their last axis."""

    def other(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        if item.is_floating_point() or item.is_complex():
            return item * 0.7 + 0.1
        return item.roll(1, -1) if integers and item.dim() else item

    return [other(item) for item in inputs]
