"""Each synchronisation of the runtime, taken out alone, makes some call go wrong, or is about speed or memory alone."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator

import pytest
import removals
import torch
from rig import KIND, LIMIT, error, in_turn, machine, synchronize
from torch import nn

import autopar
from autopar.errors import AutoparError
from autopar.ir.program import Free, Record, Wait
from autopar.runtime import flat_transfer as flat
from autopar.runtime import replicas as memory
from autopar.runtime.lanes import accelerator
from autopar.runtime.lanes import host as hosts
from autopar.runtime.lanes.accelerator import AcceleratorLane

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two accelerators"),
    pytest.mark.skipif(KIND != "strict", reason="only the stand-in is sure to notice"),
]

SEEDS = 12
INIT = AcceleratorLane.__init__


def gate_alone(self, event, signal):
    """The host still waits for the other thread, the stream for nothing."""
    return []


def without(**changed: tuple[str, ...]) -> Callable[..., None]:
    """The constructor of a lane whose attributes are then filtered."""

    def init(self, *args):
        INIT(self, *args)
        for name, parts in changed.items():
            kept = [item for item in getattr(self, name) if parts and not any(part in item for part in parts)]
            setattr(self, name, tuple(kept))

    return init


def only_recorded(ended, results, devices):
    for device in devices:
        queue = torch.accelerator.current_stream(device)
        for tensor in results:
            if isinstance(tensor, torch.Tensor) and tensor.device == device:
                tensor.record_stream(queue)


def only_waited(ended, results, devices):
    for device in devices:
        for event in ended:
            torch.accelerator.current_stream(device).wait_event(event)


def rewritten(function, old: str, new: str):
    """A function with part of its source replaced."""
    source = inspect.getsource(function)
    assert source.count(old) == 1
    scope = dict(vars(inspect.getmodule(function)))
    exec(source.replace(old, new), scope)
    return scope[function.__name__]


SYNCHRONISE = "torch.accelerator.current_stream(device).synchronize()"
STAGING = 'torch.accelerator.current_stream(device if device.type != "cpu" else home).synchronize()'

Removal = tuple[object, str, object]
NEEDED: dict[str, tuple[Callable[[], list[Removal]], Callable[[], float]]] = {
    "a lane's stream waits for another's": (
        lambda: [(AcceleratorLane, "wait", gate_alone)], removals.in_a_row),
    "a CPU lane waits for a stream": (
        lambda: [(hosts.HostLane, "wait", gate_alone)], removals.in_a_row),
    "lanes wait for what the caller's streams were given": (
        lambda: [(AcceleratorLane, "__init__", without(first=()))], removals.on_the_device),
    "lanes wait for another caller's step, which the caller's streams wait for": (
        lambda: [(AcceleratorLane, "__init__", without(first=()))], removals.trained_by_two),
    "the call waits for a result on the CPU": (
        lambda: [(AcceleratorLane, "__init__", without(last=("synchronize",)))], removals.in_a_row),
    "the call waits for the copy of a pinned input": (
        lambda: [(AcceleratorLane, "__init__", without(last=("synchronize",)))], removals.pinned),
    "the caller's streams wait for the lanes": (
        lambda: [(accelerator, "leave", only_recorded)], removals.on_the_device),
    "results are recorded on the caller's streams": (
        lambda: [(accelerator, "leave", only_waited)], removals.on_the_device),
    "new copies of weights are there when their call begins": (
        lambda: [(memory, "bring", rewritten(flat.bring, SYNCHRONISE, "pass"))], removals.copies_of_another_caller),
    "old copies of weights are recorded on all callers' streams": (
        lambda: [(memory.Replicas, "enter", lambda self, devices: None)], removals.copies_that_are_read_still),
}  # fmt: skip
"""Each synchronisation: how to take it out, and the calls that notice."""

SPARED: dict[str, Callable[[], list[Removal]]] = {
    # torch copies between accelerators on the source's current stream, with a barrier on both sides of it. On the
    # caller's stream it would be as right, but keep what the caller has put there waiting.
    "copies between accelerators have streams of their own": (
        lambda: [(AcceleratorLane, "__init__", without(_peers=()))]),
    # torch keeps pinned memory, and memory of a stream, until the copies from it are done: this bounds how much.
    "staging waits for what was staged before": (
        lambda: [(flat, "_together", rewritten(flat._together, STAGING, "pass"))]),
}  # fmt: skip
"""Synchronisations that are about speed or memory alone."""
CASES = [removals.in_a_row, removals.on_the_device, removals.pinned, removals.copies_of_another_caller,
         removals.copies_that_are_read_still, removals.trained, removals.trained_by_two]  # fmt: skip


def goes_wrong(case: Callable[[], float], seed: int) -> bool:
    """True if a case gives something else than eager, or fails."""
    torch.manual_seed(seed)
    module = torch.get_device_module(KIND)
    module.set_seed(seed)
    module.set_delay(4000, 0.5)
    try:
        return not case() <= LIMIT
    except (AutoparError, RuntimeError):
        return True
    finally:
        synchronize()


@pytest.mark.parametrize("what", NEEDED)
def test_each_synchronisation_is_needed(what, monkeypatch):
    removed, case = NEEDED[what]
    assert not goes_wrong(case, 0)
    with monkeypatch.context() as patch:
        for owner, name, value in removed():
            patch.setattr(owner, name, value)
        assert any(goes_wrong(case, seed) for seed in range(SEEDS)), f"nobody misses that {what}"


@pytest.mark.parametrize("what", SPARED)
def test_what_is_about_speed_or_memory_alone(what, monkeypatch):
    with monkeypatch.context() as patch:
        for owner, name, value in SPARED[what]():
            patch.setattr(owner, name, value)
        if owner is flat:
            patch.setattr(flat, "LARGEST", 1 << 10)
        wrong = [case.__name__ for case in CASES if goes_wrong(case, 0)]
    assert not wrong


@contextlib.contextmanager
def skipped(lane: str, event: str) -> Iterator[None]:
    """One wait of a program for a stream taken out; its lane still waits for the thread of the other."""
    before = AcceleratorLane.wait, hosts.HostLane.wait

    def choose(original):
        def wait(self, name, signal):
            return [] if (self.lane.name, name) == (lane, event) else original(self, name, signal)

        return wait

    AcceleratorLane.wait, hosts.HostLane.wait = map(choose, before)
    try:
        yield
    finally:
        AcceleratorLane.wait, hosts.HostLane.wait = before


class Wide(nn.Module):
    """Two towers, views and a sum of weights: waits of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        left, right = self.left(x), self.right(x.t().reshape(16, 32))
        return torch.einsum("ij->j", left) + right.tanh(), left * right.sum(0)


@torch.no_grad()
def test_each_wait_of_a_program_is_needed():
    """One by one: what reads too early, and what is freed too early."""
    torch.manual_seed(0)
    model = Wide().eval()
    xs = [torch.randn(16, 32) for _ in range(4)]
    expected = [model(x) for x in xs]

    def run() -> tuple[float, autopar.Program]:
        fast = autopar.compile(model, machine(), policy=in_turn, split=None, check="never")
        try:
            found = [tuple(item.clone() for item in fast(x)) for x in xs for _ in range(2)]
            pairs = zip(found, [y for y in expected for _ in range(2)])
            return max(error(a, b) for a, b in pairs), fast.program
        finally:
            fast.close()

    worst, program = run()
    assert worst <= LIMIT
    recorder = {
        step.event: lane.name for lane in program.lanes for step in lane.steps if isinstance(step, Record)
    }
    streamed = {lane.name for lane in program.lanes if lane.device != "cpu"}
    waits = [
        (lane.name, step.event)
        for lane in program.lanes
        for place, step in enumerate(lane.steps)
        if isinstance(step, Wait) and recorder[step.event] in streamed
        # A CPU lane that only frees from there on waits for the other thread alone.
        if lane.device != "cpu" or not all(isinstance(later, Wait | Free) for later in lane.steps[place:])
    ]
    assert len(waits) >= 10
    missed = []
    for lane, event in waits:
        with skipped(lane, event):
            if not any(goes_wrong(lambda: run()[0], seed) for seed in range(SEEDS)):
                missed.append((lane, event))
    assert not missed, program
