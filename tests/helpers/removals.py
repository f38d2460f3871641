"""Synchronisations of the runtime, each to be taken out alone, and calls that go wrong without it."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import torch
from models import eager_step
from rig import KIND, Towers, accelerators_in_turn, error, in_turn, machine, sleep, synchronize
from torch import nn

import autopar

DEVICES = 2
LATE_S = 0.04


class Streams:
    """A caller's streams, one on each accelerator."""

    def __init__(self) -> None:
        self.own = [torch.Stream(device=f"{KIND}:{index}") for index in range(DEVICES)]

    @contextmanager
    def current(self, late: bool = False):
        """Make them the current ones, busy for a while when `late`."""
        before = [torch.accelerator.current_stream(stream.device) for stream in self.own]
        try:
            for stream in self.own:
                torch.accelerator.set_stream(stream)
                if late:
                    sleep(LATE_S)
            torch.accelerator.set_device_index(0)
            yield self
        finally:
            for stream in before:
                torch.accelerator.set_stream(stream)
            torch.accelerator.set_device_index(0)


def towers(policy, home: str, **options):
    """A model in evaluation, itself on the CPU and compiled at `home`."""
    model = Towers().eval()
    reference = copy.deepcopy(model)
    return (
        reference,
        autopar.compile(model.to(home), machine(), policy=policy, split=None, check="never", **options),
        model,
    )


class Alone(nn.Module):
    """Without an input: where all of it is on one accelerator, the program is one lane, on the caller's stream."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(32, 32) / 6) for _ in range(2))

    def forward(self):
        return torch.tanh(self.a @ self.b)


def alone(home: str):
    """Such a model on the CPU, and compiled at `home` for the second accelerator."""
    reference = Alone()
    model = copy.deepcopy(reference).to(home)

    def second(costed) -> dict[str, str]:
        return {cluster.name: f"{KIND}:1" for cluster in costed.clusters if cluster.name != "loss"}

    fast = autopar.compile(model, machine(), policy=second, split=None, check="never", outputs="as_placed")
    return reference, fast, model


@torch.no_grad()
def scaled(*models: nn.Module) -> None:
    """Change all weights."""
    for model in models:
        for parameter in model.parameters():
            parameter.mul_(1.1)


def first_on_cpu(costed) -> dict[str, str]:
    """The input is read on the CPU, so that no copy of it makes the host wait; all else is on accelerators."""
    given = set(costed.graph.inputs)
    return accelerators_in_turn(costed) | {
        cluster.name: "cpu" for cluster in costed.clusters if given & set(cluster.reads)
    }


@torch.no_grad()
def in_a_row(policy=in_turn) -> float:
    """Calls from the CPU, each answer read at once."""
    reference, fast, _ = towers(policy, "cpu")
    worst = 0.0
    for _ in range(6):
        x = torch.randn(16, 32)
        worst = max(worst, error(fast(x).clone(), reference(x)))
    fast.close()
    return worst


@torch.no_grad()
def on_the_device() -> float:
    """Inputs that the caller's stream is still computing, and results that it reads late and drops at once."""
    reference, fast, _ = towers(in_turn, f"{KIND}:0", outputs="as_placed")
    xs = [torch.randn(16, 32) for _ in range(6)]
    found = []
    fast(xs[0].to(f"{KIND}:0"))
    for x in xs:
        given = x.to(f"{KIND}:0", non_blocking=True)
        for _ in range(3):
            given = (given + 1) - 1
        y = fast(given)
        del given
        with torch.accelerator.device_index(y.device.index):
            sleep(0.002)
            found.append(y * 1)
        del y
        junk = [
            torch.full((16, width), 7.0, device=f"{KIND}:{index}")
            for index in range(DEVICES)
            for width in (10, 32)
        ]
        del junk
    synchronize()
    worst = error(found, [reference(x) for x in xs])
    fast.close()
    return worst


@torch.no_grad()
def pinned() -> float:
    """An input in pinned memory that the caller overwrites as soon as the call returns."""
    reference, fast, _ = towers(accelerators_in_turn, "cpu", outputs="as_placed")
    found, expected = [], []
    for _ in range(6):
        x = torch.randn(16, 32).pin_memory()
        expected.append(reference(x))
        found.append(fast(x))
        x.fill_(7.0)
    synchronize()
    fast.close()
    return error(found, expected)


@torch.no_grad()
def copies_of_another_caller() -> float:
    """Weights on the CPU change; a caller who is late brings their copies, and another one, whose program is one lane
    on his own stream, uses them.
    """
    reference, fast, model = alone("cpu")
    late, early = Streams(), Streams()
    found, expected = [], []
    fast()
    for _ in range(3):
        scaled(model, reference)
        for caller, busy in ((late, True), (early, False)):
            expected.append(reference())
            with caller.current(busy):
                found.append(fast())
    synchronize()
    fast.close()
    return error(found, expected)


@torch.no_grad()
def copies_that_are_read_still() -> float:
    """A late caller still reads copies of weights when another one, after a change, brings new ones."""
    reference, fast, model = towers(first_on_cpu, "cpu", outputs="as_placed")
    late, early = Streams(), Streams()
    found, expected = [], []
    for _ in range(3):
        for caller, busy in ((early, False), (late, True)):
            x = torch.randn(16, 32)
            expected.append(reference(x))
            with caller.current(busy):
                found.append(fast(x))
        scaled(model, reference)
    synchronize()
    fast.close()
    return error(found, expected)


def trained() -> float:
    """Steps of training in a row: losses and weights."""
    model = Towers().train()
    reference = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1, momentum=0.9) for one in (model, reference)]
    step = autopar.train_step(
        model, nn.CrossEntropyLoss(), optimizers[0], machine(), policy=in_turn, split=None
    )
    losses, expected = [], []
    for _ in range(4):
        x, y = torch.randn(16, 32), torch.randint(0, 10, (16,))
        losses.append(step(x, y))
        loss = eager_step(reference, nn.functional.cross_entropy, optimizers[1], x, y)
        expected.append(loss.detach())
    return error([*losses, *model.state_dict().values()], [*expected, *reference.state_dict().values()])


def trained_by_two() -> float:
    """Steps of training by two callers in turn, one of them late, whose streams on the device of the model wait for
    each other; the step is computed on the other device, which keeps replicas of the weights."""
    model = Towers().train()
    reference = copy.deepcopy(model)
    model.to(f"{KIND}:0")
    optimizers = [torch.optim.SGD(one.parameters(), 0.1, momentum=0.9) for one in (model, reference)]

    def second(costed) -> dict[str, str]:
        return {cluster.name: f"{KIND}:1" for cluster in costed.clusters if cluster.name != "loss"}

    step = autopar.train_step(
        model, nn.CrossEntropyLoss(), optimizers[0], machine(), policy=second, split=None, check="never"
    )
    callers = Streams(), Streams()
    losses, expected = [], []
    for count in range(6):
        x, y = torch.randn(16, 32), torch.randint(0, 10, (16,))
        caller, before = callers[count % 2], callers[1 - count % 2]
        caller.own[0].wait_stream(before.own[0])
        with caller.current(late=not count % 2):
            losses.append(step(x.to(f"{KIND}:0", non_blocking=True), y.to(f"{KIND}:0", non_blocking=True)))
        expected.append(eager_step(reference, nn.functional.cross_entropy, optimizers[1], x, y).detach())
    synchronize()
    return error([*losses, *model.state_dict().values()], [*expected, *reference.state_dict().values()])
