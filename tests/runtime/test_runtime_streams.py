"""What the lanes of an accelerator ask of its streams, seen by streams that only take notes.

Tensors stay on the CPU. A note is (stream, what, event or None); "caller" is the stream the call comes from.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from naive import plan
from runtime_cases import mlp
from samples import on, step

from autopar.errors import RunError
from autopar.ir.device import Device, Link
from autopar.ir.machine import Machine
from autopar.ir.program import Copy
from autopar.lowering.lower import lower
from autopar.runtime import replicas as memory
from autopar.runtime.bind_program import Assembly
from autopar.runtime.executor import Executor
from autopar.runtime.lane_threads import intra_op_threads
from autopar.runtime.lanes import accelerator


class Notes:
    """A stand-in for streams and events of one or more accelerators."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, object]] = []
        self.numbers = itertools.count()
        self.current = threading.local()
        notes = self

        class Event:
            def __init__(self, device: torch.device, enable_timing: bool = False) -> None:
                self.name, self.recorded = f"event {next(notes.numbers)}", False

            def synchronize(self) -> None:
                assert self.recorded
                notes.log.append(("host", "synchronize", self))

            def elapsed_time(self, other: Event) -> float:
                return 0.0

        class Stream:
            def __init__(self, name: str, device: torch.device) -> None:
                self.name, self.device = name, device

            def record_event(self, event: Event | None = None) -> Event:
                event = event or Event(self.device)
                event.recorded = True
                notes.log.append((self.name, "record", event))
                return event

            def wait_event(self, event: Event) -> None:
                assert event.recorded, "waited for before it was recorded: that is no wait at all"
                notes.log.append((self.name, "wait", event))

            def synchronize(self) -> None:
                notes.log.append((self.name, "synchronize", None))

        self.Event, self.Stream = Event, Stream

    def stream(self, lane: str, device: torch.device):
        return self.Stream(lane, device)

    def current_stream(self, device: torch.device):
        return getattr(self.current, "streams", {}).get(device) or self.Stream("caller", device)

    def set_stream(self, stream) -> None:
        self.current.streams = {**getattr(self.current, "streams", {}), stream.device: stream}

    def of(self, stream: str) -> list[str]:
        return [what for name, what, _ in self.log if name == stream]

    def waited(self, waiter: str, recorder: str) -> bool:
        """Whether `waiter` waited for an event of `recorder`."""
        events = {event for name, what, event in self.log if (name, what) == (recorder, "record")}
        return any((name, what) == (waiter, "wait") and event in events for name, what, event in self.log)


@pytest.fixture
def notes(monkeypatch):
    found = Notes()
    monkeypatch.setattr(accelerator, "stream", found.stream)
    monkeypatch.setattr(torch, "Event", found.Event)
    for name in ("current_stream", "set_stream"):
        monkeypatch.setattr(torch.accelerator, name, getattr(found, name))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(accelerator, "to_host", lambda value: value.clone())
    monkeypatch.setattr(accelerator, "to_device", lambda value, device: value.clone())
    monkeypatch.setattr(memory, "bring", lambda tensors, device: ([t.clone() for t in tensors], 1))
    return found


@torch.no_grad()
def test_two_accelerators_and_the_cpu(notes):
    case, x, eager = mlp("cuda:0/0", "cuda:1/0", "cpu/0")
    executor = case.executor()
    for _ in range(2):
        notes.log.clear()
        assert torch.equal(executor([x])[0], eager(x))
        for lane in ("cuda:0/in", "cuda:0/0", "cuda:1/in", "cuda:1/0", "cuda:1/out"):
            assert notes.waited(lane, "caller"), "what the caller's stream still computes must be there"
            assert notes.waited("caller", lane), "the caller's stream must not run ahead of the call"
        assert notes.waited("cuda:0/0", "cuda:0/in") and notes.waited("cuda:1/in", "cuda:0/0")
        assert notes.waited("cuda:1/0", "cuda:1/in") and notes.waited("cuda:1/out", "cuda:1/0")
        # The CPU reads what cuda:1/out brought only when it is there.
        brought = next(event for name, what, event in notes.log if name == "cuda:1/out" and what == "record")
        assert ("host", "synchronize", brought) in notes.log
        assert notes.of("cuda:0/in")[-1] == "synchronize", (
            "the caller may write to a pinned input after the call"
        )
        # Freed in the lane that allocated, after the reader on another stream.
        assert notes.waited("cuda:0/0", "cuda:1/in") and notes.waited("cuda:1/0", "cuda:1/out")
    executor.close()


@torch.no_grad()
def test_a_result_on_the_cpu_is_there_when_the_call_returns(notes):
    case, x, eager = mlp("cuda:0/0", "cuda:0/0", "cuda:0/0")
    executor = case.executor()
    assert torch.equal(executor([x])[0], eager(x))
    assert notes.of("cuda:0/out")[-1] == "synchronize"
    executor.close()


@torch.no_grad()
def test_a_program_of_copies_alone_has_streams_of_its_own(notes):
    """On the caller's own stream nothing would wait for what comes to the CPU."""
    case, _, _ = mlp("cuda:0/0", "cuda:0/0", "cuda:0/0")
    captured, plan, program = case.build()
    lane = program.lane["cuda:0/in"]
    steps = tuple(step for step in lane.steps if isinstance(step, Copy))
    assembly = Assembly(captured, plan, replace(program, lanes=(replace(lane, steps=steps),)))
    (lane,) = assembly.lanes.values()
    assert lane.streamed and assembly.streamed
    assert lane.last[-1] == "stream.synchronize()"


@torch.no_grad()
@pytest.mark.parametrize(("last", "threads"), [("cuda:0/0", 5), ("cpu/0", 1)], ids=["idle host", "busy host"])
def test_transfers_are_staged_with_the_threads_of_an_idle_host(notes, last, threads):
    case, _, _ = mlp("cuda:0/0", "cuda:0/0", last)
    captured, plan, program = case.build()
    machine = plan.costed.machine
    devices = tuple(replace(each, threads=5 if each.name == "cpu" else 1) for each in machine.devices)
    machine = replace(machine, devices=devices)
    assembly = Assembly(captured, replace(plan, costed=replace(plan.costed, machine=machine)), program)
    found = {lane.lane.device: count for lane, count in intra_op_threads(assembly).items()}
    assert found["cuda:0"] == threads and found.get("cpu", 5) == 5


@torch.no_grad()
def test_copies_between_accelerators_leave_the_computing_stream_alone(notes, monkeypatch):
    case, x, _ = mlp("cuda:0/0", "cuda:1/0", "cpu/0")
    seen = []

    def to_device(value, device):
        seen.append(dict(notes.current.streams))
        return value.clone()

    monkeypatch.setattr(accelerator, "to_device", to_device)
    executor = case.executor()
    executor([x])
    between = next(streams for streams in seen if len(streams) == 2)
    assert [stream.name for stream in between.values()] == ["cuda:1/in", "cuda:1/in"]
    assert [str(device) for device in between] == ["cuda:0", "cuda:1"]
    executor.close()


@torch.no_grad()
def test_a_recorded_call_counts_from_the_start_of_the_call(notes):
    case, x, eager = mlp("cuda:0/0", "cuda:1/0", "cpu/0")
    executor = case.executor()
    (y,), timeline = executor.run([x])
    assert torch.equal(y, eager(x))
    assert {span.lane for span in timeline.spans} >= {
        "cuda:0/in",
        "cuda:0/0",
        "cuda:1/in",
        "cuda:1/0",
        "cpu/0",
    }
    assert all(0 <= span.start <= span.end for span in timeline.spans)
    executor.close()


@torch.no_grad()
def test_a_failure_waits_for_every_stream(notes):
    case, x, eager = mlp("cuda:0/0", "cuda:1/0", "cpu/0")
    executor = case.executor()
    with pytest.raises(RunError, match=r"failed on cuda:0 \(lane cuda:0/0\)"):
        executor([torch.randn(2, 3)])
    assert all(
        "synchronize" in notes.of(lane) for lane in ("cuda:0/0", "cuda:1/0", "cuda:1/in", "cuda:1/out")
    )
    assert torch.equal(executor([x])[0], eager(x))
    executor.close()


@torch.no_grad()
def test_copies_that_a_call_kept_are_waited_for_on_every_callers_stream(notes):
    """The next call may come from another thread, whose stream knows nothing of the one that brought them."""
    names = ("cpu", "cuda:0", "cuda:1")
    devices = tuple(Device(name, name.split(":")[0]) for name in names)
    links = tuple(Link(a, b, 1e-6, 1e9, None) for a in names for b in names if a != b)
    where = {task: place.replace("emulated", "cuda") for task, place in on("cpu").items()}
    each = plan(step(), Machine(devices, links), where)
    state, inputs = {"w": torch.randn(4, 4)}, torch.randn(4, 4)
    captured = SimpleNamespace(
        graph=step(), state={"w": (state, "w")}, calls={}, home=torch.device("cpu"), sizes=()
    )
    executor = Executor(captured, each, lower(each))
    executor([inputs])
    kept = {event for name, what, event in notes.log if (name, what) == ("caller", "record")}
    w, results = state["w"].clone(), []

    def elsewhere() -> None:
        with torch.no_grad():
            for device in map(torch.device, names[1:]):
                notes.set_stream(notes.Stream("other caller", device))
            results.append(executor([inputs])[0])

    caller = threading.Thread(target=elsewhere)
    caller.start()
    caller.join()
    waits = {event for name, what, event in notes.log if (name, what) == ("other caller", "wait")}
    assert len(waits & kept) == 2, "one for each device"
    assert torch.equal(results[0], torch.sin(inputs @ w) + torch.tanh(inputs @ w))
    executor.close()


def test_the_allocator_hears_of_every_stream_that_may_read_a_copy_given_up(notes):
    device, told = torch.device("cuda:0"), []
    pool = memory.Replicas()
    copy = pool.replica(pool.master("w", {"w": torch.zeros(2)}, "w"), "cuda:0", device)
    pool.enter([device])
    copy.tensor = SimpleNamespace(device=device, record_stream=told.append)
    tensors = pool.fill([copy], [copy.master], [copy])
    assert [stream.name for stream in told] == ["caller"]
    assert torch.equal(tensors[0], torch.zeros(2))
