"""The worst order a program permits, on real numbers: a backend for tests alone.

Ready steps run one at a time in a seeded order that looks for trouble: lanes with random priorities that
change at random points (probabilistic concurrency testing; Burckhardt et al., ASPLOS 2010), one lane starved
for as long as anything else can run, or a random walk. What is not written yet, and what is freed, reads as
poison: NaN, the largest integer, noise for bool. A missing wait thus becomes a wrong answer. All devices are
the CPU; a copy is a clone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch

from autopar.errors import AutoparError
from autopar.ir.graph import Graph, Task
from autopar.ir.program import Buffer, Compute, Copy, Free, Lane, Piece, Program, Record, Wait
from autopar.ops import resolve as bind


class Violation(AutoparError):
    """A step that could not be done in this order: an operator choked on poison, a cap broke, or no lane
    could go on.
    """


def run(
    program: Program,
    graph: Graph,
    calls: Mapping[str, Callable[..., Any]] | None,
    given: Mapping[str, Any],
    seed: int,
    turns: int = 1,
) -> tuple[list[Any], list[Any]]:
    """Outputs and updates of one run, in the order of `program.outputs` and `program.updates`.

    `given` has a tensor for each input and state, by value name or by buffer name; they are cloned first,
    storages shared between them stay shared. Right programs give the same for every seed, and what one device
    would give. Of several `turns`, each begins with the state that the one before left, at home and on the
    devices; what the last gave is returned. Raises Violation, also for a kept copy of state that is not what its
    home will hold.
    """
    found: tuple[list[Any], list[Any]] = [], []
    for turn in range(turns):
        call = _Run(program, graph, calls or {}, given, seed + turn)
        found = call.run()
        given = call.left(given)
    return found


class _Run:
    def __init__(
        self,
        program: Program,
        graph: Graph,
        calls: Mapping[str, Callable[..., Any]],
        given: Mapping[str, Any],
        seed: int,
    ):
        self.program, self.graph, self.calls = program, graph, calls
        self.random = random.Random(seed)
        self.noise = torch.Generator().manual_seed(seed)
        self.held: dict[str, Any] = {}
        self.used: dict[str, int] = {}
        self.caps = dict(program.caps)
        self.scratch = dict(program.workspace)
        storages: dict[tuple[str, int], torch.UntypedStorage] = {}
        for buffer in program.buffers:
            if buffer.kind in ("given", "resident"):
                source = given[buffer.name] if buffer.name in given else given[buffer.value]
                self.held[buffer.name] = _cloned(source, buffer.device, storages)
                if buffer.storage == buffer.name:
                    self.used[buffer.device] = self.used.get(buffer.device, 0) + buffer.bytes
        # A result holds the memory that it shares.
        self.delivered = {buffer.storage for buffer in program.buffers if buffer.kind == "result"}
        # Memory of the caller, which no free may touch, however a value came to share it.
        self.kept = {storage.data_ptr() for storage in storages.values()}
        self.order = _order(
            seed, len(program.lanes), sum(len(lane.steps) for lane in program.lanes), self.random
        )

    @torch.no_grad()
    def run(self) -> tuple[list[Any], list[Any]]:
        lanes = self.program.lanes
        at = [0] * len(lanes)
        recorded: set[str] = set()
        open_lanes = [index for index, lane in enumerate(lanes) if lane.steps]
        while open_lanes:
            ready = [i for i in open_lanes if _can(lanes[i].steps[at[i]], recorded)]
            if not ready:
                stuck = ", ".join(f"{lanes[i].name} at step {at[i]}" for i in open_lanes)
                raise Violation(f"no lane can go on: {stuck}")
            index = self.order(ready)
            step = lanes[index].steps[at[index]]
            if isinstance(step, Record):
                recorded.add(step.event)
            elif isinstance(step, Compute):
                self.compute(step, lanes[index])
            elif isinstance(step, Piece):
                self.piece(step, lanes[index])
            elif isinstance(step, Copy):
                self.allocate(self.program.buffer[step.dst].device, (step.dst,), 0, f"copy to {step.dst}")
                self.held[step.dst] = _copied(self.read(step.src))
            elif isinstance(step, Free):
                self.free(self.program.buffer[step.buffer])
            at[index] += 1
            if at[index] == len(lanes[index].steps):
                open_lanes.remove(index)
        outputs = [self.read(name) for name in self.program.outputs]
        updates = [self.new(name, target) for name, target in self.program.updates]
        self.kept_right(dict(zip((target for _, target in self.program.updates), updates)))
        return outputs, updates

    def left(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The state that is there for the next call."""
        found = dict(given)
        for buffer in self.program.buffers:
            if buffer.kind == "given":
                found[buffer.value] = self.held[buffer.name]
            elif buffer.kind == "resident":
                found[buffer.name] = self.held[buffer.name]
        for name, target in self.program.updates:
            found[target] = self.new(name, target)
        for name, state in self.program.keeps:
            found[f"{state}@{self.program.buffer[name].device}"] = self.new(name, state)
        return found

    def new(self, name: str, target: str) -> Any:
        """The tensor that a buffer holds for an input or state: itself, or a piece of it."""
        whole = self.read(name)
        if self.program.buffer[name].value not in self.graph.flat:
            return whole
        return whole.narrow(0, *self.graph.pieces[target]).view(self.graph.value[target].shape)

    def kept_right(self, updated: Mapping[str, Any]) -> None:
        at_home = {b.value: b.name for b in self.program.buffers if b.kind == "given"}
        for name, state in self.program.keeps:
            ours, theirs = (
                self.new(name, state),
                updated[state] if state in updated else self.read(at_home[state]),
            )
            if not _equal(ours, theirs):
                raise Violation(
                    f"{name}, kept as the copy of {state}, is not what the home of {state} will hold"
                )

    def compute(self, step: Compute, lane: Lane) -> None:
        task = self.graph.task[step.task]
        scratch = self.scratch.get(task.name, 0)
        self.allocate(lane.device, step.writes, scratch, f"task {task.name!r}")
        outputs = self.call(task, lane.device)
        if len(outputs) != len(step.writes):
            raise Violation(f"{task.where} gave {len(outputs)} values, not {len(step.writes)}")
        self.held.update(zip(step.writes, outputs))
        self.used[lane.device] -= scratch

    def piece(self, step: Piece, lane: Lane) -> None:
        """A kernel hands on nothing that it was given, and nothing twice."""
        scratch = self.scratch.get(step.tasks[0], 0)
        self.allocate(lane.device, step.writes, scratch, f"the piece from {step.tasks[0]!r}")
        inner = {self.program.buffer[name].value: self.read(name) for name in step.reads}
        for name in step.tasks:
            task = self.graph.task[name]
            inner.update(zip(task.outputs, self.call(task, lane.device, inner)))
        made = {name: _copied(inner[self.program.buffer[name].value]) for name in step.writes}
        self.held.update(made)
        self.used[lane.device] -= scratch

    def call(self, task: Task, device: str, inner: Mapping[str, Any] | None = None) -> list[Any]:
        def read(value: str) -> Any:
            return self.read(f"{value}@{device}") if inner is None else inner[value]

        here = torch.device("cpu")
        function = bind.target(task.target, self.calls)
        try:
            args = [bind.argument(item, read, here) for item in task.args]
            kwargs = {name: bind.argument(item, read, here) for name, item in task.kwargs}
            found = function(*args, **kwargs)
        except Exception as error:
            raise Violation(f"{task.where} failed: {type(error).__name__}: {error}") from error
        return list(found) if task.unpack else [found][: len(task.outputs)]

    def read(self, name: str) -> Any:
        if name not in self.held:
            value = self.graph.value[self.program.buffer[name].value]
            if value.dtype == "object":
                self.held[name] = "poison"
            else:
                blank = torch.empty(value.shape, dtype=getattr(torch, value.dtype))
                self.held[name] = self.poison(blank)
        return self.held[name]

    def free(self, buffer: Buffer) -> None:
        old = self.held.pop(buffer.name, None)
        if buffer.storage == buffer.name and buffer.name not in self.delivered:
            self.used[buffer.device] -= buffer.bytes
        if isinstance(old, torch.Tensor) and old.layout is torch.strided:
            storage = old.untyped_storage()
            # Those that may share its memory: a view may be memory of its own.
            about = self.program.buffer
            alike = [name for name in self.held if about[name].storage == buffer.storage]
            alive = (self.held.get(name) for name in (*alike, *self.program.results))
            kept = {t.untyped_storage().data_ptr() for t in alive if isinstance(t, torch.Tensor)} | self.kept
            if storage.data_ptr() not in kept:
                self.poison(torch.empty(0, dtype=old.dtype).set_(storage))

    def allocate(self, device: str, names: tuple[str, ...], scratch: int, what: str) -> None:
        new = [self.program.buffer[name] for name in names]
        used = self.used.get(device, 0) + scratch + sum(b.bytes for b in new if b.storage == b.name)
        self.used[device] = used
        if used > self.caps.get(device, used):
            raise Violation(f"{what} brings {device} to {used} bytes, over its cap of {self.caps[device]}")

    def poison(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, overwritten with what no right answer can come from."""
        if tensor.dtype is torch.bool:
            return tensor.copy_(torch.randint(2, tensor.shape, generator=self.noise))
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return tensor.fill_(float("nan"))
        return tensor.fill_(torch.iinfo(tensor.dtype).max)


def _can(step: object, recorded: set[str]) -> bool:
    return not isinstance(step, Wait) or step.event in recorded


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num())


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _cloned(value: Any, device: str, storages: dict[tuple[str, int], torch.UntypedStorage]) -> Any:
    """A clone in which tensors that share a storage share one again, device by device."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return _copied(value)
    source = value.detach().untyped_storage()
    storage = (
        storages.setdefault((device, source.data_ptr()), source.clone())
        if source.nbytes()
        else source.clone()
    )
    blank = torch.empty(0, dtype=value.dtype)
    return blank.set_(storage, value.storage_offset(), value.shape, value.stride())


def _order(seed: int, lanes: int, steps: int, rng: random.Random) -> Callable[[list[int]], int]:
    """Who goes next among the lanes that can. Every third seed starves one lane after the other."""
    rank = list(range(lanes))
    rng.shuffle(rank)
    if seed % 3 == 2:
        return rng.choice
    if seed % 3 == 1 and lanes:
        rank[(seed // 3) % lanes] = -1
        return lambda ready: max(ready, key=rank.__getitem__)
    changes = {rng.randrange(steps + 1) for _ in range(rng.randrange(1, 5))}
    count = 0

    def choose(ready: list[int]) -> int:
        nonlocal count
        best = max(ready, key=rank.__getitem__)
        count += 1
        if count in changes:
            rank[best] = min(rank) - 1
            best = max(ready, key=rank.__getitem__)
        return best

    return choose
