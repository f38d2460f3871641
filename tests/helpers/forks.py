"""A process that has loaded autopar and used it once, whose forks are there in milliseconds with all of that done."""

from __future__ import annotations

import atexit
import functools
import gc
import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

FORK_S = 60.0
"""Seconds after which a fork that has not answered is killed."""


class RankError(AssertionError):
    """A process has raised; its traceback is the message."""


def served(work: Callable[..., Any], *args: Any) -> Any:
    """What `work(*args)` answers in the server, which has no threads: it may fork, and should leave no trace there.

    `work` is a function of a module; arguments and answers are pickled. Raises RankError with the traceback of what it
    raises.
    """
    server = _server()
    server.send((work, args))
    answer, error = server.recv()
    if error is not None:
        raise RankError(error)
    return answer


def forked(work: Callable[..., Any], *args: Any) -> Any:
    """What `work(*args)` answers in a fork of the server: a process of its own, in which torch is loaded already.

    It may have threads and signals, and change what it likes. Raises RankError as `served` does, or where it ends
    without an answer.
    """
    return served(_in_a_fork, work, args)


def _in_a_fork(work: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answers, args=(theirs, work, args))
    process.start()
    theirs.close()
    try:
        if not ours.poll(FORK_S):
            raise RankError(f"no answer in {FORK_S:g} s")
        answer, error = ours.recv()
        process.join(5)
    except EOFError:
        process.join()
        raise RankError(f"it ended without an answer, with code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    if error is not None:
        raise RankError(error)
    return answer


def _answers(asked: Connection, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = work(*args), None
    except BaseException:
        answer = None, traceback.format_exc()
    asked.send(answer)


@functools.cache
def _server() -> Connection:
    """The server of this process, which ends with it."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    theirs.close()
    # Before processes are joined at the end of this one.
    atexit.register(ours.close)
    return ours


def _serve(asked: Connection) -> None:
    _warm()
    while True:
        try:
            work, args = asked.recv()
        except EOFError:
            return
        try:
            answer = work(*args), None
        except RankError as error:
            answer = None, str(error)
        except Exception:
            answer = None, traceback.format_exc()
        asked.send(answer)


def _warm() -> None:
    """Load what tests use and do once what takes long the first time: each fork begins with it."""
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.run
    import torch.hub
    from helpers.job_models import loss, made
    from torch import nn

    import autopar
    import autopar.distributed.checkpoint
    import autopar.distributed.distribute
    import autopar.distributed.tensor_split
    from autopar.distributed.pipeline.units import units

    # Threads would not be there in a fork: those of operators, and one that watches progress bars of torch.fx.
    torch.set_num_threads(1)
    torch.hub.tqdm.monitor_interval = 0
    if torch.backends.cuda.is_built():
        # Its autograd has threads from the first backward on, also without a GPU, and forks cannot have one then.
        return
    x, y = torch.ones(4, 1, 4, 4), torch.ones(4, 2)
    devices: dict[str, Any] = {"devices": ["cpu", "emulated:0"], "policy": "round_robin"}

    def model() -> nn.Module:
        front = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Flatten()
        return nn.Sequential(*front, nn.Linear(32, 4), nn.Tanh(), nn.Linear(4, 2))

    fast = autopar.compile(model(), **devices)
    fast(x).sum().backward()
    fast.close()
    network = model()
    step = autopar.train_step(network, nn.MSELoss(), torch.optim.SGD(network.parameters()), **devices)
    step(x, y)
    step.close()
    for name in ("mlp", "cnn", "gpt"):
        network, x, y = made(name)
        loss(network(x), y).backward()
        units(network, (x[:4],), {})
    gc.collect()
    # A collection in a fork would write to each object, and so copy all of the memory.
    gc.freeze()
