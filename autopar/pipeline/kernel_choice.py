"""Choice of the compiled form of a program that is the fastest on this machine: build, check, race, verdict."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import torch

from ..capture import Captured
from ..capture.strides import laid
from ..costs.blocks import Turn, median, timed
from ..ir.plan import Plan
from ..ir.program import Piece, Program
from ..lowering.check import check
from ..lowering.pieces import pieced
from ..runtime.executor import Executor
from ..runtime.kernels import STACKS, Kernel, Refusal, Stack
from ..runtime.kernels.module import module_of
from ..runtime.replicas import Replicas, Watch
from ..runtime.tuned import Arrangement, Changed, TunedExecutor
from ..system import cache
from ..text.progress import ticking
from .compare import error, limit

log = logging.getLogger("autopar")

BUILD_S = 60.0
"""Seconds of compiling after which no other stack is begun."""
ROUNDS, RACE_S, BLOCK_S = 5, 8.0, 0.04
"""Undisturbed blocks of each contestant, seconds after which fewer are enough, seconds of a block."""
WORTH = 0.03
"""Share of eager's seconds that a compiled form must save."""
NICE = 10
"""How far a thread that compiles stands back behind the caller's, on systems where threads can."""
_Made = TypeVar("_Made")


@dataclass
class Verdict:
    """What came of a race: the name of the fastest arrangement, the median seconds of each, and why others were not in
    it."""

    winner: str = "eager"
    seconds: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        eager = self.seconds.get("eager", 0.0)
        if not eager:
            return f"kernels: {self.winner}"
        ratios = {name: took / eager for name, took in self.seconds.items()}
        rest = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items() if name != self.winner)
        lost = "".join(f"; {name}: {why}" for name, why in self.refused.items())
        return f"kernels: {self.winner}, {ratios.get(self.winner, 1.0):.2f} of eager's time ({rest}{lost})"


def compilable(captured: Captured, plan: Plan) -> str:
    """Why no kernels are compiled for a plan, "" where they can be."""
    graph, machine = captured.graph, plan.costed.machine
    if machine.absent or machine.clock == "declared":
        return "its devices are not here, or run on a declared clock"
    if any(machine.device[placed.device].torch_type != "cpu" for placed in plan.placed):
        return "it is not of the CPU alone"
    if captured.tangents or graph.updates:
        return "it trains, or changes its buffers"
    if any(task.random for task in graph.tasks):
        return "it draws random numbers"
    for memory in plan.memory:
        # A library may keep the weights twice more, and what it takes besides is in no proof.
        state = sum(graph.value[name].bytes for name in graph.state)
        cap = machine.device[memory.device].memory_bytes
        if cap is not None and memory.peak + 2 * state > cap:
            return f"{memory.device} lacks the memory for other copies of the weights"
    return ""


class KernelChoice:
    """The choice for one program. `wanted` is the name of a stack, or "auto" for the fastest of all."""

    def __init__(
        self, wanted: str, captured: Captured, plan: Plan, program: Program, pool: Replicas, plain: Executor
    ) -> None:
        self.wanted, self.captured, self.plan, self.program = wanted, captured, plan, program
        self.pool, self.plain, self.graph = pool, plain, plan.costed.graph
        self.threads = torch.get_num_threads()
        self.verdict: Verdict | None = None

    def __call__(self, inputs: Sequence[Any], tuned: TunedExecutor) -> Arrangement | None:
        """The fastest arrangement on these inputs, None for the eager program. Raises Changed."""
        known = self.verdict or self._kept()
        stacks = [stack for stack in STACKS if self.wanted in ("auto", stack.name)]
        if known is not None and known.winner == "eager":
            self.verdict = known
            return None
        if known is not None:
            stacks = [stack for stack in stacks if stack.name == known.winner]
        verdict = Verdict()
        started, found = time.perf_counter(), []
        masters = [self.pool.master(name, *self.captured.state[name]) for name in self.graph.state]
        watch = self.pool.watch(masters)
        with ticking("autopar: kernels"), tuned.turn:
            expected = [self._eager(each) for each in (inputs, perturbed(inputs))]
        for stack in stacks:
            if time.perf_counter() - started > BUILD_S:
                verdict.refused[stack.name] = f"not tried, {BUILD_S:.0f} s of compiling were over"
                continue
            try:
                with ticking(f"autopar: kernels of {stack.name}"):
                    found.append(aside(partial(self._arranged, stack, inputs, expected, watch)))
            except Exception as problem:
                if not watch.unchanged():
                    raise Changed from problem
                verdict.refused[stack.name] = reason(problem)
                log.info("%s is not used: %s", stack.name, verdict.refused[stack.name])
        if known is not None and found:
            self.verdict = known
            return found[0]
        best = self._race(inputs, found, tuned, verdict)
        self.verdict = verdict
        self._keep(verdict)
        log.info("%s", verdict)
        return best

    def _eager(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
        return inputs, [
            item.clone() if isinstance(item, torch.Tensor) else item for item in self.plain(inputs)
        ]

    def _arranged(
        self,
        stack: Stack,
        inputs: Sequence[Any],
        expected: Sequence[tuple[Sequence[Any], list[Any]]],
        watch: Watch,
    ) -> Arrangement:
        """The program with pieces that a stack compiled. Raises Refusal where there is none, or its answers differ."""
        if missing := stack.missing():
            raise Refusal(missing)
        graph, captured = self.graph, self.captured
        calls = captured.calls
        program = pieced(
            self.program, graph, lambda task: task.target in calls or not stack.keeps(task, graph)
        )
        pieces = [step for lane in program.lanes for step in lane.steps if isinstance(step, Piece)]
        if not pieces:
            raise Refusal("it can do none of the tasks")
        check(program, graph)
        state = {name: owner[key] for name, (owner, key) in captured.state.items()} if stack.frozen else {}
        device = torch.device("cpu")
        kernels: dict[str, Kernel] = {}
        seen: dict[str, tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = {}
        for piece in pieces:
            module, takes = module_of(piece, program, graph, device, state)
            kernels[piece.tasks[0]] = Kernel("eager", _seeing(module, piece.tasks[0], seen), takes)
        plain = Executor(captured, self.plan, program, self.pool, kernels)
        plain(inputs)
        plain.close()
        for piece in pieces:
            first, start = piece.tasks[0], time.perf_counter()
            module, takes = module_of(piece, program, graph, device, state)
            read, wanted = seen[first]
            call = fitting(stack.build(module, read, self.threads), read, wanted)
            folded = tuple(n for n in (program.buffer[b].value for b in piece.reads) if n in state)
            kernels[first] = Kernel(stack.name, call, takes, folded, time.perf_counter() - start)
        made = Executor(captured, self.plan, program, self.pool, kernels)
        for given, reference in expected:
            for found, right in zip(made(given), reference):
                if (off := error(found, right)) > limit(right):
                    raise Refusal(
                        f"its answer differs from eager's by {off:.1g}, {limit(right):.1g} is allowed"
                    )
        if not watch.unchanged():
            raise Refusal("weights changed while it was compiled")
        return Arrangement(stack.name, made, watch if stack.frozen else None)

    def _race(
        self, inputs: Sequence[Any], found: Sequence[Arrangement], tuned: TunedExecutor, verdict: Verdict
    ) -> Arrangement | None:
        """Time the arrangements and the eager program in turn; the fastest, None for eager."""
        if not found:
            return None
        turns = {"eager": Turn(lambda: self.plain(inputs), self.threads)}
        for each in found:
            turns[each.name] = Turn(_caller(each.executor, inputs), self.threads)
        with ticking("autopar: timing kernels"):
            blocks = timed(turns, ROUNDS, RACE_S, BLOCK_S, tuned.turn)
        verdict.seconds = {name: median(own) for name, own in blocks.items()}
        eager = verdict.seconds["eager"]
        best = min(found, key=lambda each: verdict.seconds[each.name])
        if self.wanted == "auto" and verdict.seconds[best.name] > (1 - WORTH) * eager:
            return None
        verdict.winner = best.name
        for each in found:
            if each is not best:
                each.executor.close()
        return best

    def _key(self) -> str:
        tasks = [(t.target, str(t.args), str(t.kwargs)) for t in self.graph.tasks]
        values = [(value.name, value.shape, value.dtype) for value in self.graph.values]
        text = repr((tasks, values, str(self.program), self.threads))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _kept(self) -> Verdict | None:
        """The verdict of an earlier process; None where there is none."""
        entry = cache.load(_file()).get(self._key()) if self.wanted == "auto" else None
        with suppress(TypeError):
            return Verdict(**entry) if isinstance(entry, Mapping) else None
        return None

    def _keep(self, verdict: Verdict) -> None:
        if self.wanted == "auto" and verdict.seconds:
            entries = cache.load(_file())
            entries[self._key()] = vars(verdict)
            cache.store(_file(), entries)


def _file() -> Any:
    packages = ("torch", "onnxruntime", "openvino")
    return cache.file_for("kernels", [_version(name) for name in packages])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _seeing(
    module: Callable[..., Any], name: str, seen: dict[str, tuple[Sequence[Any], Sequence[Any]]]
) -> Callable[..., Any]:
    """A module that notes what it is given and what it makes."""

    def call(*tensors: torch.Tensor) -> Any:
        with torch.no_grad():
            made = module(*tensors)
        seen[name] = [tensor.detach() for tensor in tensors], made
        return made

    return call


def _caller(executor: Executor, inputs: Sequence[Any]) -> Callable[[], Any]:
    return lambda: executor(inputs)


def fitting(
    call: Callable[..., Any], read: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]
) -> Callable[..., Any]:
    """A kernel that lays out its results as eager does. Raises Refusal where they are no such tensors."""
    made = call(*read)
    if len(made) != len(wanted):
        raise Refusal(f"it makes {len(made)} results, eager {len(wanted)}")
    for ours, right in zip(made, wanted):
        if ours.dtype != right.dtype or ours.shape != right.shape:
            raise Refusal(
                f"it makes {ours.dtype} of shape {list(ours.shape)}, eager {right.dtype} of {list(right.shape)}"
            )
    strides = [
        None if ours.stride() == right.stride() else right.stride() for ours, right in zip(made, wanted)
    ]
    if not any(strides):
        return call

    def fitted(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [own if to is None else laid(own, to) for own, to in zip(call(*tensors), strides)]

    return fitted


def perturbed(inputs: Sequence[Any]) -> list[Any]:
    """Other inputs of the same kind: floats scaled and shifted, the rest in another order along the first axis."""

    def other(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        if item.is_floating_point() or item.is_complex():
            return item * 0.7 + 0.1
        return item.flip(0) if item.dim() else item.clone()

    return [other(item) for item in inputs]


def reason(problem: Exception) -> str:
    """One line of an error."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    text = lines[0] if lines else type(problem).__name__
    text = text if isinstance(problem, Refusal) else f"{type(problem).__name__}: {text}"
    return text if len(text) <= 160 else f"{text[:157]}..."


def aside(work: Callable[[], _Made]) -> _Made:
    """Do work in a thread that stands back behind others, and wait for it."""
    made: list[_Made] = []
    failed: list[BaseException] = []

    def run() -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            made.append(work())
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run, name="autopar compiler", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
