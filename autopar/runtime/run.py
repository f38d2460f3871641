"""`Executor`: a program bound to a live model, called with tensors."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ..errors import RunError
from ..graph import Task
from ..plans import Plan
from ..programs import Compute, Copy, Program, Step
from ..timeline import Timeline
from . import accelerator, ambient, bind
from .accelerator import AcceleratorLane
from .codegen import Code, Style, lane_code
from .emulated import TOLERANCE, Clock, LaneClock, task_seconds
from .fast import fast
from .handoff import Gates
from .hosts import HostLane
from .lanes import Worker, stop_all
from .layout import layout
from .memory import Residents
from .record import LaneRecorder, Recording, hold_all

if TYPE_CHECKING:
    from ..capture.captured import Captured

_alive: weakref.WeakSet[Executor] = weakref.WeakSet()


class _Call:
    """What the lanes of one call share besides the slots."""

    def __init__(self, executor: Executor, clock: Clock | None, recording: Recording | None) -> None:
        self._executor, self._clock, self.recording = executor, clock, recording
        self.arrived: list[Any] = []
        self.ended: list[Any] = []

    def clock(self, lane: str) -> LaneClock:
        assert self._clock is not None
        return LaneClock(self._clock)

    def recorder(self, lane: str) -> LaneRecorder:
        recording = self.recording
        assert recording is not None
        backend = self._executor._backends[lane]
        found = recording.lanes[lane] = backend.recorder(recording.account)
        return found


class Executor:
    """Executes `program`, made from `plan`, with the parameters and callables of `captured`.

    Call it with tensors in the order of `plan.costed.graph.inputs`; it returns the outputs in the order of
    `graph.outputs`, on the devices of the program's output buffers, and writes updates back into the caller's tensors once
    every lane is done. One call runs at a time, whoever makes it. Threads start at the first call and end with `close`, with
    the executor, or when the caller is interrupted; the next call starts them anew.

    Raises RunError naming task, module, source line and device when a task fails; nothing of the caller's has changed
    then, and the next call works.
    """

    def __init__(self, captured: Captured, plan: Plan, program: Program) -> None:
        self._captured, self._plan, self._program = captured, plan, program
        self._graph, self._machine = plan.costed.graph, plan.costed.machine
        self._layout = layout(program, self._graph)
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        self._current = [ambient.read((), False)]
        self._devices = tuple(
            torch.device(device.name)
            for device in self._machine.devices
            if device.kind not in ("cpu", "emulated")
        )
        self._kinds = tuple(
            dict.fromkeys(("cpu", captured.home.type, *(device.type for device in self._devices)))
        )
        self._user_code = any(task.target in captured.calls for task in self._graph.tasks)
        lanes = [lane for lane in program.lanes if lane.steps]
        direct = len(lanes) == 1
        self._backends: dict[str, HostLane] = {}
        for lane in lanes:
            device = self._torch_device(lane.device)
            if device.type == "cpu":
                self._backends[lane.name] = HostLane(lane, program, device)
            else:
                self._backends[lane.name] = AcceleratorLane(lane, program, device, self._place, direct)
        streams = {
            name: backend.device
            for name, backend in self._backends.items()
            if isinstance(backend, AcceleratorLane)
        }
        self._streamed = bool(streams) and not direct
        self._signals = accelerator.signals(program, streams)
        self._gates = Gates(program)
        self._declared = self._machine.clock == "declared"
        self._codes: dict[tuple[str, bool], Code] = {}
        self._functions: dict[tuple[str, bool], Callable[[list[Any], Any], None]] = {}
        self._own: HostLane | None = None
        self._crew: list[tuple[HostLane, Worker]] | None = None
        self._bind_state()
        _alive.add(self)
        weakref.finalize(self, stop_all, self._workers)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """One call. Raises RunError when a task fails."""
        return self._call(inputs, None)[0]

    def run(self, inputs: Sequence[Any], record: bool = True) -> tuple[list[Any], Timeline | None]:
        """One call and, with `record`, its measured timeline with the predicted one beside it."""
        return self._call(inputs, Recording(self._plan, self._program) if record else None)

    def close(self) -> None:
        """End its threads. A later call starts them again."""
        with self._lock:
            self._stop()

    def source(self, lane: str, recorded: bool = False) -> str:
        """The Python that executes a lane."""
        return self._code(self._backends[lane], recorded).source

    # Building

    def _torch_device(self, name: str) -> torch.device:
        emulated = self._machine.device[name].kind == "emulated"
        return torch.device("cpu") if emulated else torch.device(name)

    def _place(self, buffer: str) -> torch.device:
        return self._torch_device(self._program.buffer[buffer].device)

    def _bind_state(self) -> None:
        program, captured = self._program, self._captured
        self._residents = Residents()
        for name in self._layout.fed:
            buffer = program.buffer[name]
            owner, key = captured.state[buffer.value]
            device = self._place(name)
            # A machine may lack the device a model is on; its host then stands for it.
            copy = buffer.kind == "resident" or owner[key].device != device
            self._residents.add(buffer.value, owner, key, device, copy)
        inputs = {name: position for position, name in enumerate(self._graph.inputs)}
        self._places = [
            (inputs[buffer.value], self._place(buffer.name))
            for buffer in program.buffers
            if buffer.kind == "given" and buffer.value in inputs
        ]
        slots = self._layout.slots
        self._outputs = [
            (slots[name], program.buffer[program.buffer[name].storage].kind == "resident")
            for name in program.outputs
        ]
        self._updates = [
            (slots[name], inputs.get(target), captured.state.get(target)) for name, target in program.updates
        ]
        self._blank = [None] * (self._layout.size - len(inputs) - len(self._layout.fed))

    def _code(self, backend: HostLane, recorded: bool) -> Code:
        lane = backend.lane
        if (lane.name, recorded) not in self._codes:
            gates, signals = self._gates, self._signals
            style = Style(
                wait=lambda event: backend.wait(event, gates, signals),
                record=lambda event: backend.record(event, gates, signals),
                copy=lambda step, source: backend.copy(step, source, self._place),
                recorded=recorded, first=backend.first, last=backend.last,
            )  # fmt: skip
            if self._declared:
                style = self._on_clock(style, lane.name)
            self._codes[lane.name, recorded] = lane_code(
                self._program, self._graph, lane, self._layout, backend.device, style, self._callables
            )
        return self._codes[lane.name, recorded]

    def _on_clock(self, style: Style, lane: str) -> Style:
        durations, buffers = task_seconds(self._plan), self._program.buffer
        costed, machine = self._plan.costed, self._machine
        starts = {run.tasks[0]: run.dispatch_s * machine.slow_down for run in costed.runs}

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

    @property
    def _callables(self) -> Callable[[Task], Callable[..., Any]]:
        captured, current = self._captured, self._current

        @cache
        def kept(target: str) -> Callable[..., Any]:
            return ambient.as_caller(captured.calls[target], current)

        def call(task: Task) -> Callable[..., Any]:
            return (
                kept(task.target) if task.target in captured.calls else fast(task, bind.target(task.target))
            )

        return call

    # Threads

    def _start(self) -> list[tuple[HostLane, Worker]]:
        threads = torch.get_num_threads()
        backends = list(self._backends.values())

        def weight(backend: HostLane) -> tuple[bool, int]:
            return backend.device.type == "cpu", sum(isinstance(step, Compute) for step in backend.lane.steps)

        fit = [b for b in backends if b.device.type != "cpu" or self._threads(b) == threads]
        self._own = max((b for b in fit if weight(b)[1]), key=weight, default=None)
        crew = []
        for backend in backends:
            if backend is not self._own:
                self._workers.append(Worker(backend.lane.name))
                crew.append((backend, self._workers[-1]))
                self._workers[-1].submit(_thread_setup(self._threads(backend)))
        for _, worker in crew:
            worker.wait()
        if crew:
            # Threads that the program starts later take over the number that was set last, by whomever.
            torch.set_num_threads(threads)
        return crew

    def _threads(self, backend: HostLane) -> int:
        return self._machine.device[backend.lane.device].threads

    def _stop(self) -> None:
        self._crew = None
        stop_all(self._workers)
        self._gates.close()

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._workers.clear()
        self._crew = None
        self._gates = Gates(self._program)
        self._functions.clear()

    def _function(self, backend: HostLane, recorded: bool) -> Callable[[list[Any], Any], None]:
        key = backend.lane.name, recorded
        if key not in self._functions:
            code = self._code(backend, recorded)
            self._functions[key] = code.function({**self._gates.names(backend.lane.name), **backend.names})
        return self._functions[key]

    # Calling

    def _call(self, inputs: Sequence[Any], recording: Recording | None) -> tuple[list[Any], Timeline | None]:
        before = ambient.entered.stack
        if id(self) in before:
            raise RunError(
                f"{self._graph.name!r} is called from inside its own call, which would never end; "
                "call it after the first call has returned, or compile the inner model separately"
            )
        with self._lock:
            ambient.entered.stack = (*before, id(self))
            try:
                return self._locked(inputs, recording)
            finally:
                ambient.entered.stack = before

    def _locked(
        self, inputs: Sequence[Any], recording: Recording | None
    ) -> tuple[list[Any], Timeline | None]:
        if self._crew is None:
            self._crew = self._start()
        current = self._current[0] = ambient.read(self._kinds, self._user_code and bool(self._crew))
        slots = list(inputs)
        for position, device in self._places:
            if slots[position].device != device:
                slots[position] = slots[position].to(device)
        slots += self._residents.fill(_refresh)
        slots += self._blank
        if recording is not None:
            for backend in self._backends.values():
                self._function(backend, True)
            self._hold(recording, slots)
            recording.restart()
        machine = self._machine
        clock = Clock(self._plan.makespan * machine.slow_down, machine.slow_down) if self._declared else None
        call = _Call(self, clock, recording)
        if self._streamed:
            call.arrived = accelerator.arrivals(self._devices)
        try:
            for backend, worker in self._crew:
                worker.submit(self._job(backend, slots, call, current, (), recording is not None))
            if self._own is not None:
                self._job(self._own, slots, call, current, self._kinds, recording is not None)()
            for _, worker in self._crew:
                worker.wait()
        except BaseException as error:
            # Only an interrupt gets here, at any point: no lane can be taken to have been started or waited for.
            self._gates.fail("", error)
            self._interrupted()
            raise
        if self._gates.failed:
            self._raise()
        results = [slots[slot] for slot, _ in self._outputs]
        if self._streamed:
            accelerator.leave(
                call.ended, [*results, *(slots[slot] for slot, _, _ in self._updates)], self._devices
            )
        timeline = self._finish(recording, clock)
        results = [value.clone() if owned else value for value, (_, owned) in zip(results, self._outputs)]
        if self._updates:
            self._write_back(slots, inputs)
        return results, timeline

    def _job(
        self, backend: HostLane, slots: list[Any], call: _Call, current: ambient.Ambient, kinds: tuple[str, ...],
        recorded: bool,
    ) -> Callable[[], None]:  # fmt: skip
        function, gates = self._function(backend, recorded), self._gates
        inside = (*current.stack, id(self)) if backend is not self._own else None

        def job() -> None:
            try:
                with contextlib.ExitStack() as stack:
                    if inside is not None:
                        ambient.entered.stack = inside
                    ambient.enter(stack, current, kinds)
                    backend.enter(stack)
                    function(slots, call)
            except BaseException as error:
                gates.fail(backend.lane.name, error)

        return job

    def _finish(self, recording: Recording | None, clock: Clock | None) -> Timeline | None:
        if recording is None:
            return None
        if self._devices:
            for backend in self._backends.values():
                backend.drain()
        makespan = time.perf_counter() - recording.origin
        late, enough = 0.0, 0.0
        if clock is not None:
            late = clock.late
            enough = clock.enough if late > TOLERANCE else 0.0
        return recording.timeline(makespan, late, enough)

    def _hold(self, recording: Recording, slots: list[Any]) -> None:
        for buffer in self._program.buffers:
            if buffer.kind in ("given", "resident"):
                hold_all(recording.accounts[buffer.device], [slots[self._layout.slots[buffer.name]]])

    def _write_back(self, slots: list[Any], inputs: Sequence[Any]) -> None:
        with torch.no_grad():
            for slot, position, state in self._updates:
                target = inputs[position] if position is not None else state[0][state[1]] if state else None
                if target is not None and target is not slots[slot]:
                    target.copy_(slots[slot])

    def _interrupted(self) -> None:
        """End every lane, whatever state it is in, and go back to the state before the first call."""
        for _ in range(2):
            try:
                while self._workers:
                    self._workers[-1].stop()
                    self._workers.pop()
                for backend in self._backends.values():
                    backend.drain()
                break
            except BaseException:
                # Interrupted again while waiting for a lane that is busy; a third time it is left to itself.
                continue
        self._workers.clear()
        self._crew = None
        self._gates = Gates(self._program)
        self._functions.clear()

    def _raise(self) -> None:
        name, error = self._gates.failed[0]
        for backend in self._backends.values():
            backend.drain()
        if not isinstance(error, Exception):
            self._interrupted()
            raise error
        self._gates.close()
        raise self._error(self._backends[name], error) from error

    def _error(self, backend: HostLane, error: Exception) -> RunError:
        lane = backend.lane
        index = -1
        for recorded in (False, True):
            code = self._codes.get((lane.name, recorded))
            if code is not None and index < 0:
                index = code.step_of(error.__traceback__)
        step = lane.steps[index] if index >= 0 else None
        what = f"lane {lane.name}"
        if isinstance(step, Compute):
            what = self._graph.task[step.task].where
        elif isinstance(step, Copy):
            what = f"the copy of {step.src} to {step.dst}"
        return RunError(f"{what} failed on {lane.device} (lane {lane.name}): {type(error).__name__}: {error}")


def _refresh(tensor: Any, device: torch.device, held: Any) -> Any:
    with torch.inference_mode(False), torch.no_grad():
        if (
            held is None
            or held.shape != tensor.shape
            or held.dtype != tensor.dtype
            or held.stride() != tensor.stride()
        ):
            return tensor.detach().to(device, copy=True)
        if device.type != "cpu":
            # Lanes of an earlier call, made from another thread, may still read it.
            torch.accelerator.synchronize(device)
        return held.copy_(tensor)


def _thread_setup(threads: int) -> Callable[[], None]:
    def setup() -> None:
        # The first look at the number resets it to what was set last in any thread.
        torch.get_num_threads()
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

    return setup


def _after_fork() -> None:
    for executor in list(_alive):
        executor._forked()


os.register_at_fork(after_in_child=_after_fork)
