"""Threads of a program: one for each lane but the busiest, which runs in the caller's; errors of lanes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import torch

from ..errors import RunError
from ..ir.device import kind_of
from ..ir.program import Compute, Copy, Lane, Piece, Wait, tasks_of
from . import thread_state
from .bind_program import Assembly, LaneFunction
from .lanes import accelerator
from .lanes.emulated_clock import Clock
from .lanes.host import HostLane
from .record import CallRecord, LaneRecorder


class _CallContext:
    """Context of one call, `d` in the code of a lane: clock, recorder, and events of the caller's streams. `inference`
    and `entered`: state of the caller's thread."""

    def __init__(self, assembly: Assembly, clock: Clock | None, recording: CallRecord | None) -> None:
        self.assembly, self._clock, self.recording = assembly, clock, recording
        self.inference, self.entered = torch.is_inference_mode_enabled(), thread_state.entered.stack
        self.arrived = accelerator.arrivals(assembly.devices) if assembly.streamed else []
        self.ended: list[torch.Event] = []

    def clock(self) -> Any:
        """Return a lane's own declared clock."""
        assert self._clock is not None
        return self._clock.lane()

    def recorder(self, lane: str) -> LaneRecorder:
        """Return a new recorder of a lane."""
        assert self.recording is not None
        recorder = self.recording.lanes[lane] = self.assembly.lanes[lane].recorder(self.recording)
        return recorder


class _Cancelled(Exception):
    """Raised in a lane that must stop because another one failed."""


class _Gates:
    """Locks of the lanes that wait for each event of a program, released when the event is recorded; and the failures
    of the current call, in order, as (lane, error)."""

    def __init__(self, assembly: Assembly) -> None:
        self.failed: list[tuple[str, BaseException]] = []
        self._locks: dict[str, dict[str, threading.Lock]] = {}
        for event, lanes in assembly.waiters.items():
            self._locks[event] = {lane: threading.Lock() for lane in lanes}
            for lock in self._locks[event].values():
                lock.acquire()

    def names(self, lane: str) -> dict[str, Any]:
        """Return the globals of a lane's code (`bind_program`)."""
        names: dict[str, Any] = {"f": self.failed, "Cancelled": _Cancelled}
        for number, locks in enumerate(self._locks.values()):
            if lane in locks:
                names[f"w{number}"] = locks[lane].acquire
            names |= {f"r{number}_{place}": lock.release for place, lock in enumerate(locks.values())}
        return names

    def fail(self, lane: str, error: BaseException) -> None:
        """Record a failure, then open every gate."""
        self.failed.append((lane, error))
        for locks in self._locks.values():
            for lock in locks.values():
                with contextlib.suppress(RuntimeError):
                    lock.release()


class Crew:
    """Threads and gates of an assembly. Threads start at the first call, and again after `stop`, an interrupt or a
    fork.

    The caller's thread runs the lane with the most tasks: of the CPU lanes with as many intra-op threads as
    the caller, else of the accelerators' lanes. A program of one such lane has no other thread.
    """

    def __init__(self, assembly: Assembly) -> None:
        self.assembly = assembly
        self.threads: list[ThreadPoolExecutor] = []
        """An executor of one thread for each lane but the caller's."""
        self._gates = _Gates(assembly)
        self._functions: dict[tuple[str, bool], LaneFunction] = {}
        self._caller: HostLane | None = None
        self._busy = False
        self._others: list[tuple[HostLane, ThreadPoolExecutor]] | None = None

    def start(self) -> None:
        """Start the threads unless they run."""
        if self._busy:
            self._gates.fail("", KeyboardInterrupt())
            self._abandon()
        if self._others is None:
            self._others = self._start()

    def prepare(self) -> None:
        """Generate the code of a recorded call beforehand, so that it is not timed."""
        for lane in self.assembly.lanes:
            self._function(lane, True)

    def call(self, slots: list[Any], clock: Clock | None, recording: CallRecord | None) -> list[torch.Event]:
        """Run every lane; return the events at the end of the streams' work. Raises RunError for the first task that
        failed, once all lanes have stopped."""
        call = _CallContext(self.assembly, clock, recording)
        # Stays set until the next call if a second interrupt cuts off the handling of the first.
        self._busy = True
        try:
            assert self._others is not None
            jobs = [thread.submit(self._job(backend, slots, call)) for backend, thread in self._others]
            if self._caller is not None:
                self._job(self._caller, slots, call)()
            for job in jobs:
                job.result()
        except BaseException as error:
            # Only an interrupt gets here, at any point: any lane may be not yet started or still running.
            self._gates.fail("", error)
            self._abandon()
            raise
        self._busy = False
        if self._gates.failed:
            self._raise()
        return call.ended

    def alone(self) -> LaneFunction | None:
        """Return the code of the caller's lane if it is the only one, else None."""
        if self._caller is None or self._others:
            return None
        return self._function(self._caller.lane.name, False)

    def stop(self) -> None:
        """Stop the threads."""
        self._others = None
        stop_all(self.threads)

    def forked(self) -> None:
        """Reset in a forked child, where the threads are gone and locks are in an unknown state."""
        self.threads.clear()
        self._renew()

    def drain(self) -> None:
        """Block until the accelerators have finished the lanes' work."""
        for backend in self.assembly.lanes.values():
            backend.drain()

    def _start(self) -> list[tuple[HostLane, ThreadPoolExecutor]]:
        # An interrupt may have left threads of an earlier attempt.
        stop_all(self.threads)
        assembly, threads = self.assembly, torch.get_num_threads()
        counts = intra_op_threads(assembly)

        def weight(backend: HostLane) -> tuple[bool, int]:
            tasks = sum(len(tasks_of(step)) for step in backend.lane.steps)
            return backend.device.type == "cpu", tasks

        able = [
            backend
            for backend in assembly.lanes.values()
            if weight(backend)[1] and (backend.device.type != "cpu" or counts[backend] == threads)
        ]
        self._caller = max(able, key=weight, default=None)
        others = []
        for name, backend in assembly.lanes.items():
            if backend is not self._caller:
                self.threads.append(
                    ThreadPoolExecutor(1, initializer=_begin, initargs=(name, counts[backend]))
                )
                others.append((backend, self.threads[-1]))
        # An initialiser runs once the first job is there.
        for job in [thread.submit(int) for thread in self.threads]:
            job.result()
        if others:
            # Threads that start later take over the number that any thread has set last.
            torch.set_num_threads(threads)
        return others

    def _function(self, lane: str, recorded: bool) -> LaneFunction:
        if (lane, recorded) not in self._functions:
            self._functions[lane, recorded] = self.assembly.function(lane, recorded, self._gates.names(lane))
        return self._functions[lane, recorded]

    def _job(self, backend: HostLane, slots: list[Any], call: _CallContext) -> Callable[[], None]:
        name, gates = backend.lane.name, self._gates
        function = self._function(name, call.recording is not None)
        caller = backend is self._caller
        types = self.assembly.types if caller else ()

        def run() -> None:
            try:
                with contextlib.ExitStack() as stack:
                    if not caller:
                        thread_state.entered.stack = call.entered
                    thread_state.enter(stack, call.inference, types)
                    backend.enter(stack)
                    function(slots, call)
            except BaseException as error:
                gates.fail(name, error)

        return run

    def _raise(self) -> NoReturn:
        lane, error = self._gates.failed[0]
        # An exception raised from outside may have left a thread in any state.
        self._abandon()
        caller = self._caller is not None and lane == self._caller.lane.name
        failed = failure(self.assembly, lane, error, caller)
        try:
            if failed is error:
                raise failed
            raise failed from error
        finally:
            # The error refers to this frame, whose locals would keep the executor and its threads alive.
            del error, failed

    def _abandon(self) -> None:
        """Stop every lane, whatever its state, and restore the state before the first call."""
        for _ in range(2):
            try:
                stop_all(self.threads)
                self.drain()
                break
            except BaseException:
                # Interrupted while waiting for a busy lane: wait once more, then leave the lane to itself.
                continue
        self.threads.clear()
        self._renew()

    def _renew(self) -> None:
        self._others = None
        self._busy = False
        self._gates.failed.clear()
        self._gates = _Gates(self.assembly)
        self._functions.clear()


def intra_op_threads(assembly: Assembly) -> dict[HostLane, int]:
    """Return the intra-op threads of each lane. Those of accelerators stage transfers with all threads of a host that
    computes nothing."""
    device, lanes = assembly.machine.device, assembly.lanes.values()
    tasks = [
        name
        for lane in lanes
        if lane.device.type == "cpu"
        for step in lane.lane.steps
        for name in tasks_of(step)
    ]
    idle = all(assembly.graph.task[name].free for name in tasks)
    staging = device[assembly.machine.host].threads if idle else 1
    return {
        lane: device[lane.lane.device].threads if lane.device.type == "cpu" else staging for lane in lanes
    }


def stop_all(threads: list[ThreadPoolExecutor]) -> None:
    """Stop each thread after its current job and wait for its end; empty the list. If interrupted, call it again."""
    for thread in threads:
        thread.shutdown(wait=False)
    while threads:
        # A garbage collection may run this on the very thread that it stops.
        with contextlib.suppress(RuntimeError):
            threads[-1].shutdown()
        threads.pop()


def _begin(lane: str, threads: int) -> None:
    threading.current_thread().name = f"autopar {lane}"
    # The first query in a thread resets the number to what any thread has set last.
    torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)


SHOWN = 5
"""Limit on the tasks that are named as possible sources of an error."""

_ASSERT = "aten._assert_async."
"""Target of the task of an `assert` on a tensor."""


def failure(assembly: Assembly, name: str, error: BaseException, caller: bool) -> BaseException:
    """Return the exception to raise for an error in lane `name`; `caller`: the lane runs in the caller's thread.

    An interrupt of the caller is returned unchanged; any other error becomes a RunError, also of its own class.
    """
    lane = assembly.lanes[name].lane
    index = assembly.step_of(name, error.__traceback__)
    step = lane.steps[index] if index >= 0 else None
    if caller and not isinstance(error, Exception):
        return error
    what = f"lane {name}"
    if isinstance(step, Compute):
        task = assembly.graph.task[step.task]
        what = task.where
        if task.target.startswith(_ASSERT):
            # PyTorch's operator raises RuntimeError where the model's `assert` raises AssertionError.
            error = AssertionError(str(error))
    elif isinstance(step, Piece):
        first = assembly.graph.task[step.tasks[0]].where
        what = f"the kernel of {len(step.tasks)} tasks from {first}"
    elif isinstance(step, Copy):
        what = f"the copy of {step.src} to {step.dst}"
    text = f"{what} failed on {lane.device} (lane {name}): {type(error).__name__}: {error}"
    # A lane that fails while it waits for an event reports an error of the lane that records the event.
    source = assembly.program.lane[assembly.recorder[step.event]] if isinstance(step, Wait) else lane
    kind = assembly.torch_device(source.device).type
    if kind == "cpu" or not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError):
        return RunError.like(error, text)
    if isinstance(step, Compute | Piece) and not isinstance(error, torch.AcceleratorError):
        return RunError.like(
            error, f"{text} (or a task launched before it there did: accelerators report errors late)"
        )
    launched = _launched(assembly, source, index if source is lane else len(source.steps))
    return RunError(
        f"{source.device} reported an error when {what} came to it (lane {name}): {type(error).__name__}: "
        f"{str(error).partition(chr(10))[0]}. "
        f"Accelerators report errors late, so it may be of any task launched there before, in this call{launched} or "
        "an earlier one. To find it, run the model alone, or with launches that wait: "
        + (kind_of(kind).blocking or f"the setting for that of the {kind} backend")
    )


def _launched(assembly: Assembly, lane: Lane, index: int) -> str:
    """Return the last tasks launched on the device of a lane before its step `index` (-1: its end)."""
    steps = list(lane.steps[: index if index >= 0 else None])
    if not any(map(tasks_of, steps)):
        lanes = (other for other in assembly.program.lanes if other.device == lane.device)
        steps = [step for other in lanes for step in other.steps]
    tasks = [assembly.graph.task[task].where for step in steps for task in tasks_of(step)]
    last = "; ".join(reversed(tasks[-SHOWN:]))
    return f" (last first: {last})" if last else ""
