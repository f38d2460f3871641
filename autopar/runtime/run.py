"""`Executor`: a program bound to a live model, called with tensors."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..errors import RunError
from ..plans import Plan
from ..programs import Program
from ..timeline import Timeline
from . import accelerator, ambient
from .assembly import Assembly
from .crew import Crew
from .emulated import TOLERANCE, Clock, LaneClock
from .lanes import stop_all
from .memory import Residents
from .record import LaneRecorder, Recording

if TYPE_CHECKING:
    from ..capture.captured import Captured

_alive: weakref.WeakSet[Executor] = weakref.WeakSet()


class Call:
    """What the code of a lane finds in `d`: the clock, the recorder, events of the caller's streams."""

    def __init__(self, assembly: Assembly, clock: Clock | None, recording: Recording | None) -> None:
        self.assembly, self._clock, self._recording = assembly, clock, recording
        self.arrived: list[torch.Event] = []
        self.ended: list[torch.Event] = []

    def clock(self, lane: str) -> LaneClock:
        """The declared clock of a lane."""
        assert self._clock is not None
        return LaneClock(self._clock)

    def recorder(self, lane: str) -> LaneRecorder:
        """The recorder of a lane."""
        assert self._recording is not None
        made = self.assembly.lanes[lane].recorder(self._recording)
        self._recording.lanes[lane] = made
        return made


class Executor:
    """Executes `program`, made from `plan`, with the parameters and callables of `captured`.

    Call it with tensors in the order of `plan.costed.graph.inputs`; it returns the outputs in the order of
    `graph.outputs`, on the devices of the program's output buffers, and writes updates back into the caller's
    tensors once every lane is done. No autograd graph is made. One call runs at a time, whoever makes it.
    Threads start at the first call and end with `close`, the executor, or when the caller is interrupted;
    the next call starts them anew.

    Raises RunError naming task, module, source line and device when a task fails; nothing of the caller's has
    changed then, and the next call works.
    """

    def __init__(self, captured: Captured, plan: Plan, program: Program) -> None:
        self._captured, self._plan, self._program = captured, plan, program
        self._graph = plan.costed.graph
        self._assembly = Assembly(captured, plan, program)
        self._crew = Crew(self._assembly, id(self))
        self._lock = threading.Lock()
        self._bind()
        _alive.add(self)
        weakref.finalize(self, stop_all, self._crew.workers)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """One call. Raises RunError when a task fails."""
        return self._enter(inputs, None)[0]

    def run(self, inputs: Sequence[Any], record: bool = True) -> tuple[list[Any], Timeline | None]:
        """One call and, with `record`, its measured timeline, the predicted one in the same clock beside it.

        `Timeline.on_time` raises LateError where emulated work could not keep a declared clock.
        """
        return self._enter(inputs, Recording(self._plan, self._program) if record else None)

    def refresh(self) -> None:
        """Copy parameters to their devices again at the next call, for writes that leave no trace in them:
        through `.data` or a numpy view.
        """
        with self._lock:
            self._residents.forget()

    def close(self) -> None:
        """End its threads. A later call starts them again."""
        with self._lock:
            self._crew.stop()

    def source(self, lane: str, recorded: bool = False) -> str:
        """The Python that executes a lane."""
        return self._assembly.code(lane, recorded).source

    def _bind(self) -> None:
        """Find out what goes into the slots before a call and comes out of them after it."""
        program, captured, assembly = self._program, self._captured, self._assembly
        layout = assembly.layout
        self._residents = Residents()
        for name in layout.fed:
            buffer = program.buffer[name]
            owner, key = captured.state[buffer.value]
            device = assembly.place(name)
            # A machine may lack the device a model is on; its host then stands for it.
            copy = buffer.kind == "resident" or owner[key].device != device
            self._residents.add(buffer.value, owner, key, device, copy)
        inputs = {name: position for position, name in enumerate(self._graph.inputs)}
        self._places = [
            (inputs[buffer.value], assembly.place(buffer.name))
            for buffer in program.buffers
            if buffer.kind == "given" and buffer.value in inputs
        ]
        self._outputs = [
            (layout.slots[name], program.buffer[program.buffer[name].storage].kind == "resident")
            for name in program.outputs
        ]
        self._updates = [
            (layout.slots[name], inputs.get(target), captured.state.get(target))
            for name, target in program.updates
        ]
        self._blank = [None] * (layout.size - len(inputs) - len(layout.fed))

    def _enter(self, inputs: Sequence[Any], recording: Recording | None) -> tuple[list[Any], Timeline | None]:
        before = ambient.entered.stack
        if id(self) in before:
            raise RunError(
                f"{self._graph.name!r} is called from inside its own call, which would never end; "
                "call it after the first call has returned, or compile the inner model separately"
            )
        with self._lock:
            ambient.entered.stack = (*before, id(self))
            try:
                return self._call(inputs, recording)
            finally:
                ambient.entered.stack = before

    def _call(self, inputs: Sequence[Any], recording: Recording | None) -> tuple[list[Any], Timeline | None]:
        assembly, crew = self._assembly, self._crew
        threaded = crew.start()
        current = ambient.read(assembly.types, assembly.user_code and threaded)
        assembly.current[0] = current
        slots = list(inputs)
        for position, device in self._places:
            if slots[position].device != device:
                slots[position] = slots[position].to(device)
        slots += self._residents.fill(_refreshed)
        slots += self._blank
        clock = None
        if recording is not None:
            crew.prepare(True)
            for buffer in self._program.buffers:
                if buffer.kind in ("given", "resident"):
                    recording.accounts[buffer.device].hold(slots[assembly.layout.slots[buffer.name]])
            recording.restart()
        if assembly.declared:
            slow_down = assembly.machine.slow_down
            clock = Clock(self._plan.makespan * slow_down, slow_down)
        call = Call(assembly, clock, recording)
        if assembly.streamed:
            call.arrived = accelerator.arrivals(assembly.devices)
        crew.call(slots, call, current, recording is not None)
        results = [slots[slot] for slot, _ in self._outputs]
        if assembly.streamed:
            updates = [slots[slot] for slot, _, _ in self._updates]
            accelerator.leave(call.ended, [*results, *updates], assembly.devices)
        timeline = None if recording is None else self._measured(recording, clock)
        for position, (_, resides) in enumerate(self._outputs):
            if resides:
                results[position] = results[position].clone()
        if self._updates:
            self._write_back(slots, inputs)
        return results, timeline

    def _measured(self, recording: Recording, clock: Clock | None) -> Timeline:
        self._crew.drain()
        makespan = time.perf_counter() - recording.origin
        late = clock.late if clock is not None else 0.0
        return recording.timeline(
            makespan, late, clock.enough if clock is not None and late > TOLERANCE else 0.0
        )

    def _write_back(self, slots: list[Any], inputs: Sequence[Any]) -> None:
        with torch.no_grad():
            for slot, position, state in self._updates:
                if position is not None:
                    target = inputs[position]
                else:
                    assert state is not None
                    target = state[0][state[1]]
                if target is not slots[slot]:
                    target.copy_(slots[slot])

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._crew.forked()


def _refreshed(tensor: torch.Tensor, device: torch.device, held: torch.Tensor | None) -> torch.Tensor:
    """A copy of `tensor` on `device`, in the memory of the copy there was where that is possible."""
    with torch.inference_mode(False), torch.no_grad():
        if held is not None and device.type != "cpu":
            # Lanes of an earlier call, made from another thread, may still read it.
            torch.accelerator.synchronize(device)
        if held is None or _form(held) != _form(tensor):
            held = tensor.detach().to(device, copy=True)
        else:
            held.copy_(tensor)
        if device.type != "cpu":
            # A later call may come from another stream, which does not wait for this one.
            torch.accelerator.current_stream(device).synchronize()
        return held


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tensor.shape, tensor.dtype, tensor.layout, strides


def _after_fork() -> None:
    ambient.entered.stack = ()
    for executor in list(_alive):
        executor._forked()


os.register_at_fork(after_in_child=_after_fork)
