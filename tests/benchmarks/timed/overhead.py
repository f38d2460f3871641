"""Seconds of the runtime itself: a call, an op of a 400-op chain of tiny tensors, and a hand-off between two lanes."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from autopar.capture.ahead import ahead
from autopar.costs.clustering import fuse
from autopar.costs.roofline import cost
from autopar.engine.api import compile
from autopar.ir.device import Device
from autopar.ir.machine import Machine
from autopar.lowering.lower import lower
from autopar.planner import Schedule, place
from autopar.runtime.executor import Executor

from .timing import report

OPS = 400
HOPS = 200
ROUNDS = 15


class Chain(nn.Module):
    """400 elementwise operations, each reading the one before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last of the chain."""
        for _ in range(OPS // 4):
            x = torch.tanh(torch.neg(torch.relu(torch.sigmoid(x))))
        return x


def run(rounds: int = 0) -> dict[str, Any]:
    """Print and return µs per call, per op and per hand-off of each contestant, `rounds` (default 15) of
    each."""
    data: dict[str, Any] = {}
    for layers, grad in ((3, False), (60, False), (3, True)):
        data[f"call_{layers}{'_grad' * grad}"] = call(layers, grad, rounds)
        print()
    data["chain"] = chain("cpu", rounds)
    print()
    hops = {"autopar lanes": ping_pong(), "SimpleQueue": queues(), "ThreadPoolExecutor": pool()}
    data["hand_off"] = report(
        hops, rounds or ROUNDS, base="autopar lanes", scale=1e6, unit="µs/hop", per=HOPS
    )
    return data


def call(layers: int, grad: bool = False, rounds: int = 0) -> dict[str, Any]:
    """Print and return µs per call of an MLP, 8 wide, batch 2, as inference or so that it can be
    differentiated. Guards alone are those of `torch.compile` around the graph that it captured."""
    parts = [part for _ in range(layers) for part in (nn.Linear(8, 8), nn.ReLU())]
    model, x = nn.Sequential(*parts[:-1]).eval(), torch.randn(2, 8)
    guarded = torch.compile(model, backend=lambda module, _: module.forward)
    fast = compile(model, ["cpu"], check="never")
    calls: dict[str, Callable[..., Any]] = {"eager": model, "guards alone": guarded, "autopar": fast}
    with torch.set_grad_enabled(grad):
        contestants = {name: partial(called, x) for name, called in calls.items()}
        print(f"{layers} layers{', to be differentiated' * grad}")
        return report(contestants, rounds or ROUNDS, base="eager", scale=1e6, unit="µs/call")


def chain(device: str, rounds: int = 0) -> dict[str, Any]:
    """Print and return µs per op of each contestant on one device."""
    model, x = Chain().eval(), torch.randn(8, device=device)
    traced = torch.fx.symbolic_trace(model)
    with torch.no_grad():
        fast = compile(model, list(dict.fromkeys(["cpu", device])), policy=f"single {device}", split=None,
                       example_inputs=(x,), check="never")  # fmt: skip
        interpreter = torch.fx.Interpreter(traced)
        contestants = {
            "eager": partial(model, x),
            "GraphModule": partial(traced, x),
            "autopar": partial(fast, x),
            "fx.Interpreter": partial(interpreter.run, x),
        }
        return report(contestants, rounds or ROUNDS, base="eager", scale=1e6, unit="µs/op", per=OPS)


def ping_pong() -> Callable[[], Any]:
    """A chain of tiny tasks that changes CPU lane at every task."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(HOPS):
            x = torch.neg(x)
        return x

    x = torch.randn(8)
    with torch.no_grad():
        captured, _ = ahead(chain, (x,), {})
    machine = Machine((Device("cpu", "cpu", lanes=2, threads=torch.get_num_threads()),)).check()
    costed = cost(captured.graph, machine, homes={})
    costed = replace(costed, clusters=fuse(captured.graph, machine, costed.costs, shortest_s=0.0))
    names = [run.name for run in costed.clusters]
    plan = place(
        costed, lambda _: Schedule("ping-pong", {"cpu/0": tuple(names[::2]), "cpu/1": tuple(names[1::2])})
    )
    executor = Executor(captured, plan, lower(plan))

    def call() -> None:
        with torch.no_grad():
            executor([x])

    return call


def queues() -> Callable[[], Any]:
    """A token through two SimpleQueues between two threads."""

    def call() -> None:
        there: queue.SimpleQueue[int] = queue.SimpleQueue()
        back: queue.SimpleQueue[int] = queue.SimpleQueue()

        def serve() -> None:
            for _ in range(HOPS // 2):
                back.put(there.get())

        thread = threading.Thread(target=serve)
        thread.start()
        for token in range(HOPS // 2):
            there.put(token)
            back.get()
        thread.join()

    return call


def pool() -> Callable[[], Any]:
    """A call handed to a thread pool and waited for; one hand-off there and one back."""
    workers = concurrent.futures.ThreadPoolExecutor(1)

    def call() -> None:
        for _ in range(HOPS // 2):
            workers.submit(int).result()

    return call
