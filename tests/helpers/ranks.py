"""Processes of one `torch.distributed` job on this machine, over gloo and loopback, as `torchrun` would start them."""

from __future__ import annotations

import multiprocessing
import os
import queue
import socket
import time
import traceback
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 60.0
"""Seconds after which ranks that have not answered are killed."""

# A server that has loaded torch and has no threads of its own: each rank is a fork of it, there in milliseconds.
_CONTEXT = multiprocessing.get_context("forkserver")
# Optimizers load Dynamo at their first step.
_CONTEXT.set_forkserver_preload(["torch._dynamo", "torch.distributed.checkpoint", "autopar.engine.api"])


class RankError(AssertionError):
    """A rank has raised; its traceback is the message."""


def ranks(count: int, work: Callable[..., Any], *args: Any, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """The answers of `work(rank, *args)` in each of `count` processes of one gloo job, in the order of ranks.

    `work` is a function of a module; arguments and answers are pickled (no tensors that share memory: give lists or
    numpy arrays). Raises RankError with the traceback of the first rank that raises, or where one gives no answer in
    `timeout_s` seconds; no process is left.
    """
    answers: Any = _CONTEXT.Queue()
    port = free_port()
    started = [
        _CONTEXT.Process(target=_rank, args=(rank, count, port, answers, work, args), daemon=True)
        for rank in range(count)
    ]
    for process in started:
        process.start()
    found: dict[int, Any] = {}
    until = time.monotonic() + timeout_s
    try:
        while len(found) < count:
            try:
                rank, answer, error = answers.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                missing = sorted(set(range(count)) - set(found))
                raise RankError(f"no answer of ranks {missing} in {timeout_s:g} s") from None
            if error:
                raise RankError(f"rank {rank}:\n{error}")
            found[rank] = answer
        for process in started:
            process.join(5)
    finally:
        for process in started:
            process.kill()
            process.join()
    return [found[rank] for rank in range(count)]


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _rank(rank: int, count: int, port: int, answers: Any, work: Callable[..., Any], args: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(count),
        LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count), GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    try:
        dist.init_process_group("gloo")
        answer = work(rank, *args)
        dist.barrier()
        dist.destroy_process_group()
        answers.put((rank, answer, ""))
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))
