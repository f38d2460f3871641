"""`Executor`: a program bound to a live model, called on tensors."""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import getitem, itemgetter
from typing import TYPE_CHECKING, Any

import torch

from ..capture.autocast import anywhere
from ..costs.calibrate import pins_memory
from ..errors import RunError
from ..ir.plan import Plan
from ..ir.program import Copy, Piece, Program, Step, reads
from ..ir.timeline import Timeline
from ..system.process import reserve
from . import thread_state
from .bind_program import Assembly
from .flat_transfer import pieces
from .kernels import Kernel
from .lane_threads import Crew, failure, stop_all
from .lanes import accelerator
from .lanes.emulated_clock import Clock
from .record import CallRecord
from .replicas import Replicas

if TYPE_CHECKING:
    from ..capture.captured import Captured


_UNREAD: tuple[Mapping[str, Any], str] = {"": None}, ""
"""The place of state that a program does not read."""
PINNED_SHARE = 0.25
"""Largest share of the host's memory for pinned copies of streamed weights."""


class Executor:
    """Executor of `program`, made from `plan`, with the parameters and callables of `captured`.

    Call it on tensors in the order of `plan.costed.graph.inputs`. It returns the outputs in the order of
    `graph.outputs`, on the devices of their buffers. Once every lane is done, it writes updates back into the
    caller's tensors; then new replicas take the place of old ones in `pool` (default: a pool of its own). It
    makes no autograd graph. Calls are serialised.

    Threads start at the first call and end with `close`, the executor, or an interrupt of the caller; the next call
    starts them again. Raises RunError with task, module, source line and device if a task fails; then nothing of the
    caller's has changed, and the next call works.
    """

    any_size, due, raced = False, False, True
    """An executor without kernels, to which none will be added (`session.kernel_selection.KernelExecutor`)."""

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        program: Program,
        pool: Replicas | None = None,
        kernels: Mapping[str, Kernel] | None = None,
    ) -> None:
        self._captured, self._program, self._kernels = captured, program, kernels
        self._pool = pool or Replicas()
        self._graph = plan.costed.graph
        self._lock = threading.RLock()
        # Keeps the executor alive whose threads this one shares.
        self._origin: Executor | None = None
        self._resized: weakref.WeakSet[Executor] = weakref.WeakSet()
        self._assemble(plan)
        if len(program.lanes) == 1 and not self._assembly.devices:
            reserve(
                max((each.bytes for each in program.buffers if each.kind in ("made", "result")), default=0)
            )
        thread_state.reset_after_fork.add(self)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run one call. Raises RunError if a task fails."""
        if self.arguments is None:
            return self.run(inputs, False)[0]
        return self.compute([*self._placed(inputs), *map(getitem, self._owners, self._keys)])

    def run(self, inputs: Sequence[Any], record: bool = True) -> tuple[list[Any], Timeline | None]:
        """Run one call; return its outputs and, with `record`, its measured timeline with the prediction.

        `Timeline.on_time` raises LateError if emulated work could not keep a declared clock.
        """
        before = thread_state.entered.stack
        if id(self._crew) in before:
            raise RunError(
                f"{self._graph.name!r} is called from inside its own call, which would never end; "
                "call it after the first call has returned, or compile the inner model separately"
            )
        with self._lock:
            thread_state.entered.stack = (*before, id(self._crew))
            try:
                return self._call(inputs, CallRecord(self._plan, self._program) if record else None)
            finally:
                thread_state.entered.stack = before

    @cached_property
    def arguments(self) -> tuple[str, ...] | None:
        """Inputs and state, read or written, for each of which `compute` takes a tensor; None if the program needs more
        than the caller's thread and streams, as with other lanes, replicas, changed inputs or the user's own code."""
        with self._lock:
            self._crew.start()
            function, assembly = self._crew.alone(), self._assembly
            inputs = any(owner is None for _, owner, _ in self._updates)
            if (
                function is None
                or inputs
                or self._pieces
                or not self._residents.at_home
                # The user's own code may call this program again, which only `run` refuses.
                or self._captured.calls
                or assembly.declared
                or assembly.streamed
                # A call cannot take slices of weights as arguments.
                or any(value.slice for value in self._graph.values)
                or any(stays for _, stays in self._outputs)
            ):
                return None
            self._function, program, layout = function, self._program, assembly.layout
            values = [program.buffer[name].value for name in layout.state]
            names = [*self._graph.inputs, *values]
            written = [target for _, target in program.updates if target not in names]
            read = set(program.outputs).union(*(_read(step, assembly.kernels) for _, step in program.steps()))
            state = self._captured.state
            # Kernels have folded the state that is not read.
            places = [
                state[name] if buffer in read else _UNREAD for name, buffer in zip(values, layout.state)
            ]
            places += [state[name] for name in written]
            self._owners, self._keys = [owner for owner, _ in places], [key for _, key in places]
            self._count, names = len(names), names + written
            self._written = [(layout.slots[name], names.index(target)) for name, target in program.updates]
            self._results = selector([slot for slot, _ in self._outputs])
            return tuple(names)

    def compute(self, tensors: Sequence[Any]) -> list[Any]:
        """Run one call on exactly these tensors, one for each of `arguments`, in the caller's thread; write updates to
        them once all tasks are done. Raises RunError if a task fails."""
        with self._lock:
            slots = [*(tensors[: self._count] if self._written else tensors), *self._blank]
            try:
                if torch.is_grad_enabled() or anywhere():
                    with contextlib.ExitStack() as stack:
                        thread_state.enter(stack, False, self._assembly.types)
                        self._function(slots, None)
                else:
                    self._function(slots, None)
            except BaseException as error:
                (lane,) = self._assembly.lanes
                failed = failure(self._assembly, lane, error, True)
                if failed is error:
                    raise
                raise failed from error
            if self._written:
                _write((tensors[position], slots[slot]) for slot, position in self._written)
            return list(self._results(slots))

    def resized(self, sizes: tuple[float, ...]) -> Executor:
        """Return an executor for calls with other sizes that shares code, threads and lock with this one."""
        executor = copy.copy(self)
        executor._origin, executor._captured = self, replace(self._captured, sizes=sizes)
        executor._blank = [*self._blank[:-1], sizes]
        self._resized.add(executor)
        return executor

    def close(self) -> None:
        """Stop the threads of the lanes. A later call starts them again."""
        with self._lock:
            self._crew.stop()

    def rebind(self, plan: Plan) -> None:
        """Use `plan` from the next call on: the same program on another declared clock."""
        with self._lock:
            self._crew.stop()
            vars(self).pop("arguments", None)
            self._assemble(plan)

    def _assemble(self, plan: Plan) -> None:
        self._plan = plan
        self._assembly = Assembly(self._captured, plan, self._program, self._kernels)
        self._crew = Crew(self._assembly)
        weakref.finalize(self, stop_all, self._crew.threads)
        self._bind()

    def _bind(self) -> None:
        """Determine what fills the slots before a call, and which slots are outputs after it."""
        program, captured, assembly = self._program, self._captured, self._assembly
        layout = assembly.layout
        self._residents = _Residents(self._pool, assembly)
        inputs = {name: position for position, name in enumerate(self._graph.inputs)}
        self._places = [
            (inputs[buffer.value], assembly.place(buffer.name))
            for buffer in program.buffers
            if buffer.kind == "given" and buffer.value in inputs
        ]
        storage = {buffer.name: buffer.storage for buffer in program.buffers}
        replicas = {storage[name] for name, _ in program.keeps}
        # An output that stays here as state is cloned for the caller.
        self._outputs = [
            (
                layout.slots[name],
                program.buffer[storage[name]].kind == "resident" or storage[name] in replicas,
            )
            for name in program.outputs
        ]
        # (slot, owner, key) of each update: of state, or, without an owner, of the input at position `key`.
        self._updates: list[tuple[int, Any, Any]] = []
        self._pieces: dict[int, list[tuple[Mapping[str, Any], str]]] = {}
        for name, target in program.updates:
            slot = layout.slots[name]
            if target in self._graph.pieces:
                self._pieces.setdefault(slot, []).append(captured.state[target])
            else:
                self._updates.append((slot, *captured.state.get(target, (None, inputs.get(target)))))
        self._blank = [*[None] * (layout.size - len(inputs) - len(layout.state) - 1), captured.sizes]

    def _call(self, inputs: Sequence[Any], recording: CallRecord | None) -> tuple[list[Any], Timeline | None]:
        assembly, crew = self._assembly, self._crew
        crew.start()
        slots = self._placed(inputs)
        if assembly.devices:
            self._pool.enter(assembly.devices)
        slots += self._residents.fill()
        slots += self._blank
        clock = None
        if recording is not None:
            crew.prepare()
            for buffer in self._program.buffers:
                if buffer.kind in ("given", "resident"):
                    recording.accounts[buffer.device].hold(slots[assembly.layout.slots[buffer.name]])
            for name, copy in self._pool.there():
                recording.accounts[name].hold(copy)
            recording.restart()
        if assembly.declared:
            slow_down = assembly.machine.slow_down
            clock = Clock(self._plan.makespan * slow_down, slow_down)
        ended = crew.call(slots, clock, recording)
        results = [slots[slot] for slot, _ in self._outputs]
        if assembly.streamed:
            updates = [slots[slot] for slot in (*(slot for slot, _, _ in self._updates), *self._pieces)]
            accelerator.leave(ended, [*results, *updates], assembly.devices)
        timeline = None
        if recording is not None:
            crew.drain()
            timeline = recording.timeline(*((clock.late, clock.enough) if clock else (0.0, 0.0)))
        for position, (_, stays) in enumerate(self._outputs):
            if stays:
                results[position] = results[position].clone()
        if self._updates or self._pieces:
            self._write_back(slots, inputs)
        self._residents.swap(slots)
        return results, timeline

    def _placed(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs on the devices where the program reads them."""
        slots = list(inputs)
        for position, device in self._places:
            if slots[position].device != device:
                slots[position] = slots[position].to(device)
        return slots

    def _write_back(self, slots: list[Any], inputs: Sequence[Any]) -> None:
        _write(((inputs if owner is None else owner)[key], slots[slot]) for slot, owner, key in self._updates)
        for slot, states in self._pieces.items():
            targets = [owner[key] for owner, key in states]
            with torch.no_grad():
                torch._foreach_copy_(targets, pieces(slots[slot], targets))

    def forked(self) -> None:
        """Reset in a forked child, where the threads are gone and locks are in an unknown state."""
        self._lock = threading.RLock()
        for executor in (self, *self._resized):
            executor._lock = self._lock
        self._pool.forked()
        self._crew.forked()


@torch.no_grad()
def _write(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy a new value to each target that is not the new value itself."""
    for target, new in pairs:
        if target is not new:
            target.copy_(new)


def _read(step: Step, kernels: Mapping[str, Kernel]) -> Sequence[str]:
    """Return the buffers whose tensors a step receives."""
    if isinstance(step, Piece):
        return [step.reads[position] for position in kernels[step.tasks[0]].takes]
    return reads(step)


def selector(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that selects the items at these positions."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda items: tuple([items[position] for position in positions])


class _Residents:
    """State that a program reads, in the order of `layout.state`, or keeps: at home the tensor itself,
    elsewhere its replica in the pool."""

    def __init__(self, pool: Replicas, assembly: Assembly) -> None:
        self.pool, captured, program, layout = pool, assembly.captured, assembly.program, assembly.layout
        graph = assembly.graph
        buffers = [(name, program.buffer[name].value) for name in layout.state]
        masters = {state: pool.master(*captured.state[state]) for _, state in (*buffers, *program.keeps)}
        # A machine may lack the device that a model is on; its host then stands for that device.
        away = {
            name
            for name, state in buffers
            if program.buffer[name].kind == "resident"
            or masters[state].owner[masters[state].key].device != assembly.place(name)
        }
        pinned = _pinned(assembly) - away
        read = {
            name: pool.replica(
                masters[state], program.buffer[name].device, assembly.place(name), name in pinned
            )
            for name, state in buffers
            if name in away or name in pinned
        }
        self._masters, self._replicas = dict.fromkeys(masters.values()), dict.fromkeys(read.values())
        self._read = [read.get(name) or masters[state] for name, state in buffers]
        keeps = {
            (name, state): pool.replica(masters[state], program.buffer[name].device, assembly.place(name))
            for name, state in program.keeps
        }
        # Slots of new replicas: of one state each, and of several states in a flat tensor.
        self._single = {
            replica: layout.slots[name]
            for (name, state), replica in keeps.items()
            if state not in graph.pieces
        }
        flat = {
            name: [state for new, state in graph.updates if new == program.buffer[name].value]
            for name in dict.fromkeys(name for name, state in keeps if state in graph.pieces)
        }
        self._flat = [
            (
                layout.slots[name],
                [pool.master(*captured.state[state]) for state in states],
                [keeps.get((name, state)) for state in states],
            )
            for name, states in flat.items()
        ]
        self.at_home = not (self._replicas or program.keeps)
        """True if the program reads state only at home, and keeps no replicas."""

    def fill(self) -> list[Any]:
        """Return the tensors of the buffers that the program reads, after bringing replicas up to date."""
        return self.pool.fill(self._read, self._masters, self._replicas)

    def swap(self, slots: Sequence[Any]) -> None:
        """Keep the new replicas of a call, once all updates are written."""
        if self._single or self._flat:
            replaced = [(replica, slots[slot]) for replica, slot in self._single.items()]
            for slot, masters, replicas in self._flat:
                with torch.no_grad():
                    views = pieces(slots[slot], [master.owner[master.key] for master in masters])
                replaced += [(r, view) for r, view in zip(replicas, views) if r is not None]
            self.pool.keep(replaced)


def _pinned(assembly: Assembly) -> set[str]:
    """Return the buffers of streamed weights on the host that accelerators copy in each call; none if memory
    for pinned copies of all is missing."""
    program, graph, machine = assembly.program, assembly.graph, assembly.machine
    if not graph.streamed or not assembly.devices or not pins_memory():
        return set()
    streamed = {*graph.streamed}
    buffers = {
        step.src
        for _, step in program.steps()
        if isinstance(step, Copy)
        and program.buffer[step.src].value in streamed
        and program.buffer[step.src].kind == "given"
        and assembly.place(step.src).type == "cpu"
        and assembly.place(step.dst).type != "cpu"
    }
    memory = machine.device[machine.host].memory_bytes
    total = sum(program.buffer[name].bytes for name in buffers)
    return buffers if memory is None or total <= PINNED_SHARE * memory else set()
