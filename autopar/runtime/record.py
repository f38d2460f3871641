"""Recording of calls: spans by lane and bytes by device as a `Timeline`, and the timelines of `fast.record()`."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any, cast

import torch

from ..errors import AutoparError
from ..ir.graph import Graph
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..ir.program import Compute, Copy, Lane, Piece, Program, Step, makes, tasks_of
from ..ir.timeline import Memory, Span, Timeline
from ..system.text import counted, seconds

log = logging.getLogger("autopar")


class _Account:
    """Bytes of live storages on one device over time; a storage lives as long as any of its tensors."""

    def __init__(self, origin: float) -> None:
        self._origin = origin
        # A garbage collection inside `hold` may call `_free` on the same thread.
        self._lock = threading.RLock()
        self._alive: dict[int, list[int]] = {}
        self._closed = False
        self.bytes = 0
        self.steps: list[tuple[float, int]] = []

    def add(self, tensor: Any) -> None:
        """Count a tensor until it is freed."""
        pointer = self.hold(tensor)
        if pointer is not None:
            weakref.finalize(tensor, self._free, pointer).atexit = False

    def hold(self, tensor: Any) -> int | None:
        """Count a tensor that exists before the call until the call ends; return the address of its memory, None if it
        has none."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return None
        with self._lock:
            entry = self._alive.setdefault(storage.data_ptr(), [0, storage.nbytes()])
            entry[0] += 1
            if entry[0] == 1:
                self._change(entry[1])
        return storage.data_ptr()

    def _free(self, pointer: int) -> None:
        with self._lock:
            entry = self._alive[pointer]
            entry[0] -= 1
            if not entry[0]:
                del self._alive[pointer]
                self._change(-entry[1])

    def _change(self, count: int) -> None:
        self.bytes += count
        if not self._closed:
            self.steps.append((max(0.0, time.perf_counter() - self._origin), self.bytes))

    def restart(self, origin: float) -> None:
        """Make the current time second 0."""
        self._origin = origin
        self.steps = [(0.0, self.bytes)]

    def close(self) -> None:
        """Stop counting: the caller's use of the results is outside the call."""
        self._closed = True


def title(step: Step, graph: Graph) -> str:
    """Return the label of a step in a profiler: `linear#0 · net.fc1` for a task and its module, `h@cpu to h@cuda:0`
    for a copy."""
    if isinstance(step, Compute):
        task = graph.task[step.task]
        return f"{task.name} · {task.module}" if task.module else task.name
    if isinstance(step, Piece):
        return f"{step.tasks[0]} to {step.tasks[-1]}, {len(step.tasks)} tasks"
    return f"{step.src} to {step.dst}" if isinstance(step, Copy) else ""


class LaneRecorder:
    """Start and end of each step of one lane, in seconds of `time.perf_counter`, and the steps' outputs.

    Profilers show each step under its `title`. torch.profiler records only one thread without
    `experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)`; Nsight records all.
    """

    def __init__(self, lane: Lane, recording: CallRecord) -> None:
        self.lane, self.recording = lane, recording
        self.spans: list[tuple[int, Any, Any]] = []
        # Ranges for Nsight.
        self._nvtx: Any = torch.cuda.nvtx if torch.cuda.is_available() else None
        self._open = self._began = cast(Any, None)

    def begin(self, index: int) -> None:
        """Note the start of step `index`."""
        name = title(self.lane.steps[index], self.recording.plan.costed.graph)
        if self._nvtx is not None:
            self._nvtx.range_push(name)
        self._open = torch.profiler.record_function(name)
        self._open.__enter__()
        self._began = self.now()

    def end(self, index: int, *outputs: Any) -> None:
        """Note the end of step `index` and its outputs."""
        self.spans.append((index, self._began, self.now()))
        self._open.__exit__(None, None, None)
        if self._nvtx is not None:
            self._nvtx.range_pop()
        account = self.recording.account(self.lane.steps[index])
        for tensor in outputs:
            account.add(tensor)

    def now(self) -> Any:
        """Return a mark on the lane's clock."""
        return time.perf_counter()

    def seconds(self, mark: Any, origin: float) -> float:
        """Return a mark in seconds since `origin`."""
        return max(0.0, mark - origin)


class CallRecord:
    """Recorders of the lanes and memory accounts of the devices in one call."""

    def __init__(self, plan: Plan, program: Program) -> None:
        self.plan, self.program = plan, program
        self.origin = time.perf_counter()
        self.accounts = {device.name: _Account(self.origin) for device in plan.costed.machine.devices}
        self.lanes: dict[str, LaneRecorder] = {}

    def account(self, step: Step) -> _Account:
        """Return the account of the device on which a step allocates; the host's for a step without outputs."""
        names = makes(step)
        return self.accounts[self.program.buffer[names[0]].device if names else self.plan.costed.machine.host]

    def restart(self) -> None:
        """Start the call now: tensors held so far are in use from second 0."""
        self.origin = time.perf_counter()
        for account in self.accounts.values():
            account.restart(self.origin)

    def timeline(self, late: float, enough: float) -> Timeline:
        """Return the measured timeline of the call, which has just ended, with the prediction on the same clock."""
        makespan = time.perf_counter() - self.origin
        machine = self.plan.costed.machine
        for account in self.accounts.values():
            account.close()
        memory = tuple(
            Memory(name, tuple(account.steps), machine.device[name].memory_bytes)
            for name, account in self.accounts.items()
        )
        label = machine.label
        if enough:
            label += f", LATE by {late:.0%}: these are no figures, it needs slow_down={math.ceil(enough)}"
        return Timeline(
            self.plan.costed.graph.name,
            machine.lanes,
            tuple(self._spans()),
            makespan,
            memory,
            label,
            late,
            scaled(self.plan.timeline(), machine.stretch),
            enough,
            began=self.origin,
        )

    def _spans(self) -> list[Span]:
        graph, costed, words = self.plan.costed.graph, self.plan.costed, self.plan.words
        ready: dict[str, float] = {}
        timed: list[tuple[LaneRecorder, Any, float, float]] = []
        for recorder in self.lanes.values():
            for index, began, ended in recorder.spans:
                step = recorder.lane.steps[index]
                start, end = recorder.seconds(began, self.origin), recorder.seconds(ended, self.origin)
                timed.append((recorder, step, start, end))
                ready.update(dict.fromkeys(makes(step), end))
        clusters: dict[tuple[str, str], Span] = {}
        spans: list[Span] = []
        for recorder, step, start, end in timed:
            lane = recorder.lane
            compute = functools.partial(Span, lane.name, lane.device, "compute")
            if isinstance(step, Copy):
                source, target = self.program.buffer[step.src], self.program.buffer[step.dst]
                spans.append(
                    Span(lane.name, lane.device, "copy", target.value, start, end, src=source.device,
                         dst=target.device, bytes=target.bytes, ready=min(start, ready.get(step.src, 0.0)),
                         called=words.value(target.value))
                )  # fmt: skip
                continue
            task = graph.task[tasks_of(step)[0]]
            cluster, where = costed.cluster_of[task.name], (task.module, task.source)
            if isinstance(step, Piece):
                called = title(step, graph)
                spans.append(compute(cluster, start, end, "", *where, called=called, phase=task.phase))
                continue
            called, phase = words.task(task), words.phase_of_task[task.name]
            spans.append(compute(task.name, start, end, cluster, *where, called=called, phase=phase))
            whole = clusters.get((lane.name, cluster)) or compute(
                cluster, start, end, "", *where, called=words.cluster(cluster), phase=words.phase(cluster)
            )
            first, last = min(whole.start, start), max(whole.end, end)
            clusters[lane.name, cluster] = replace(whole, start=first, end=last)
        # A cluster comes before the tasks nested in it.
        return sorted(
            [*clusters.values(), *spans],
            key=lambda span: (span.start, span.lane, -span.end, bool(span.cluster)),
        )


def scaled(timeline: Timeline, factor: float) -> Timeline:
    """Return the timeline with every time multiplied by `factor`."""
    if factor == 1.0:
        return timeline
    spans = (
        replace(
            s, start=s.start * factor, end=s.end * factor, ready=None if s.ready is None else s.ready * factor
        )
        for s in timeline.spans
    )
    memory = (replace(m, steps=tuple((at * factor, count) for at, count in m.steps)) for m in timeline.memory)
    return replace(timeline, spans=tuple(spans), memory=tuple(memory), makespan=timeline.makespan * factor)


class Recording:
    """The timelines of the calls within `with fast.record() as timeline`."""

    def __init__(self) -> None:
        self.calls: list[Timeline] = []

    @property
    def last(self) -> Timeline:
        """The timeline of the last call. Raises AutoparError if there was none."""
        if not self.calls:
            raise AutoparError(
                "nothing was recorded; call the compiled model inside `with fast.record() as timeline:`. "
                "Calls that ran as written have no timeline; print(fast.explain()) counts them and says why"
            )
        return self.calls[-1]

    @property
    def counted(self) -> list[Timeline]:
        """Valid calls: all except those in which emulated work could not keep its declared clock, and those on a
        faster clock than the last."""
        valid = [timeline for timeline in self.calls if not timeline.needs_slow_down]
        return [timeline for timeline in valid if timeline.label == valid[-1].label]

    @property
    def median(self) -> Timeline:
        """The timeline with the median makespan of the valid calls, or of all if none is valid. Raises AutoparError if
        there are none."""
        ordered = sorted(self.counted or self.calls, key=lambda timeline: timeline.makespan)
        return ordered[(len(ordered) - 1) // 2] if ordered else self.last

    def save(self, path: str | PathLike[str]) -> None:
        """Write the median call: `.json`, `.json.gz` for Perfetto, `.svg`, `.html`, `.png` as a picture."""
        self.median.save(path)

    def __repr__(self) -> str:
        if not self.calls:
            return "recording without calls"
        return f"recording of {counted(len(self.calls), 'call')}, median {seconds(self.median.makespan)}"

    def _repr_html_(self) -> str | None:
        return self.median._repr_html_() if self.calls else None


class Recorded:
    """Base class for objects whose calls can be recorded. During a `recording`, each call adds its timeline
    to it; `timeline` is the last.

    If a recorded call falls behind its declared clock and the user has not set the slow-down of `machine`,
    the clock is slowed down for later calls. `prepared`: a plan with its executor (`session.stages.Prepared`).
    """

    machine: Machine
    recording: Recording | None = None
    timeline: Timeline | None = None

    def executed(self, prepared: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of one call, measured during a recording."""
        recording = self.recording
        if recording is None:
            outputs: list[Any] = prepared.executor(inputs)
            return outputs
        outputs, timeline = prepared.executor.run(inputs)
        recording.calls.append(timeline)
        self.timeline = timeline
        self.keep_up(prepared, timeline)
        return outputs

    def keep_up(self, prepared: Any, timeline: Timeline) -> None:
        """Slow the clock down as far as `timeline` requires, unless the user has set it."""
        needed = timeline.needs_slow_down
        if not self.machine.slow_down and needed > prepared.plan.costed.machine.slow_down:
            prepared.slower(needed)
            log.info(
                "%s was %.0f %% behind its declared clock, which runs %g times slower than the chips from now on",
                timeline.title, 100 * timeline.late, prepared.plan.costed.machine.slow_down,
            )  # fmt: skip

    @contextmanager
    def record(self) -> Iterator[Recording]:
        """Measure every call within the block: `with step.record() as timeline: step(x, y)`."""
        outer, self.recording = self.recording, Recording()
        try:
            yield self.recording
        finally:
            self.recording = outer
