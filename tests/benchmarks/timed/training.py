"""A training step of a 784-512-512-10 MLP at batch 1024, SGD: the plain loop, autopar's two doors, and data parallel.

The rivals of one process take turns with DistributedDataParallel, whose two processes (gloo) wait at a pipe
between their turns; each of them has half the batch and one thread. `nn.DataParallel` and DDP over NCCL join in
where there are two GPUs (suite `gpu`). What the comparison leaves out: the start of DDP's processes, and that
DDP's batch must be shared out by the user.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import multiprocessing, nn
from torch.nn import functional

from autopar.api import compile, train_step

from .timing import report

BATCH = 1024
ROUNDS = 15
STEPS = 4
"""Steps in a turn, so that a turn is long beside the pipe."""

Step = Callable[[], Any]


def run(rounds: int = 0) -> dict[str, Any]:
    """Print and return milliseconds a step of each contestant, `rounds` (default 15) turns of four steps each."""
    return {"cpu": measured("cpu", ["cpu"], rounds), "cpu*2": measured("cpu", ["cpu*2"], rounds)}


def measured(home: str, devices: list[str], rounds: int = 0) -> dict[str, Any]:
    """One table: the model at home on `home`, autopar on `devices`."""
    print(f"\nmodel on {home}, autopar on {', '.join(devices)}")
    contestants = {
        "plain loop": loop(home),
        "autopar.compile": loop(home, lambda model: compile(model, devices)),
        "autopar.train_step": whole(home, devices),
    }
    gpus = torch.cuda.device_count()
    if home != "cpu" and gpus > 1:
        contestants["nn.DataParallel"] = loop(home, nn.DataParallel)
    processes = 2 if home == "cpu" else gpus
    with ExitStack() as stack:
        each = {name: turns(step) for name, step in contestants.items()}
        if processes > 1:
            name = f"DDP, {processes} processes ({'gloo' if home == 'cpu' else 'nccl'})"
            each[name] = stack.enter_context(distributed(processes, home != "cpu"))
        return report(each, rounds or ROUNDS, base="plain loop", unit="ms/step", per=STEPS)


def net(device: str) -> nn.Module:
    """The model of the PyTorch quickstart."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    ).to(device)


def rows(count: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images and labels."""
    made = torch.Generator().manual_seed(1)
    x, y = torch.randn(count, 784, generator=made), torch.randint(0, 10, (count,), generator=made)
    return x.to(device), y.to(device)


def turns(step: Step) -> Step:
    """Several steps, awaited."""

    def turn() -> None:
        for _ in range(STEPS):
            step()
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    return turn


def loop(device: str, wrap: Callable[[nn.Module], Any] = lambda model: model, count: int = BATCH) -> Step:
    """The user's own loop, about the model or what wraps it."""
    model = net(device)
    call, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=2e-3)
    x, y = rows(count, device)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(call(x), y).backward()
        optimizer.step()

    return step


def whole(device: str, devices: list[str]) -> Step:
    """The whole step as one placed graph."""
    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3)
    step = train_step(model, functional.cross_entropy, optimizer, devices)
    x, y = rows(BATCH, device)
    return lambda: step(x, y)


@contextmanager
def distributed(count: int, gpus: bool) -> Iterator[Step]:
    """DDP in `count` processes that wait at a pipe; what is yielded lets all of them take one turn."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for rank in range(count):
        ours, theirs = spawn.Pipe()
        worker = spawn.Process(target=_serve, args=(rank, count, port, gpus, theirs), daemon=True)
        worker.start()
        pipes.append(ours)
        workers.append(worker)

    def turn() -> None:
        for pipe in pipes:
            pipe.send(True)
        for pipe in pipes:
            pipe.recv()

    try:
        yield turn
    finally:
        for pipe in pipes:
            pipe.send(False)
        for worker in workers:
            worker.join()


def _serve(rank: int, count: int, port: int, gpus: bool, pipe: Any) -> None:
    from torch import distributed as dist

    device = f"cuda:{rank}" if gpus else "cpu"
    if not gpus:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if gpus else "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count
    )
    turn = turns(loop(device, nn.parallel.DistributedDataParallel, BATCH // count))
    while pipe.recv():
        turn()
        pipe.send(None)
    dist.destroy_process_group()
