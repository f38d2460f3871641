"""Processes of one `torch.distributed` job on this machine, over gloo and loopback, as `torchrun` would start them."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from helpers.forks import RankError, served

TIMEOUT_S = 120.0
"""Seconds after which ranks that have not answered are killed."""


def ranks(
    count: int,
    work: Callable[..., Any],
    *args: Any,
    before: tuple[Any, ...] = (),
    timeout_s: float = TIMEOUT_S,
    grace_s: float = 0.0,
) -> list[Any]:
    """The answers of `work(rank, *args)` in each of `count` processes of one gloo job, in the order of ranks.

    `work` is a function of a module; arguments and answers are pickled (no tensors that share memory: give lists or
    numpy arrays). `before` is a function and its arguments, called in the process that all ranks are forks of: they
    have what it caches. Raises RankError with the traceback of the first rank that raises, or where one ends without
    an answer or gives none in `timeout_s` seconds; the others are killed `grace_s` seconds later, and no process is
    left.
    """
    return served(_job, count, work, args, before, timeout_s, grace_s)


def _job(
    count: int,
    work: Callable[..., Any],
    args: tuple[Any, ...],
    before: tuple[Any, ...],
    timeout_s: float,
    grace_s: float,
) -> list[Any]:
    if before:
        prepare, *given = before
        prepare(*given)
    port, context = free_port(), multiprocessing.get_context("fork")
    started, waited = [], {}
    for rank in range(count):
        ours, theirs = context.Pipe(duplex=False)
        started.append(
            context.Process(target=_rank, args=(rank, count, port, theirs, work, args), daemon=True)
        )
        started[-1].start()
        # Held by the rank alone, so that its end is seen.
        theirs.close()
        waited[ours] = rank
    found: dict[int, Any] = {}
    until = time.monotonic() + timeout_s
    try:
        while waited:
            ready = wait([*waited], max(0.0, until - time.monotonic()))
            if not ready:
                raise RankError(f"no answer of ranks {sorted(waited.values())} in {timeout_s:g} s")
            for ours in ready:
                rank = waited.pop(ours)
                found[rank] = _answer(rank, started[rank], ours)
        for process in started:
            process.join(5)
    except RankError:
        until = time.monotonic() + grace_s
        for process in started:
            process.join(max(0.0, until - time.monotonic()))
        raise
    finally:
        for process in started:
            process.kill()
            process.join()
    return [found[rank] for rank in range(count)]


def _answer(rank: int, process: Any, ours: Connection) -> Any:
    """What a rank has answered; RankError where it raised or has ended."""
    with ours:
        try:
            answer, error = ours.recv()
        except EOFError:
            process.join()
            raise RankError(f"rank {rank} ended without an answer, with code {process.exitcode}") from None
    if error:
        raise RankError(f"rank {rank}:\n{error}")
    return answer


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _rank(rank: int, count: int, port: int, answers: Connection, work: Callable[..., Any], args: Any) -> None:
    import torch.distributed as dist

    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(count),
        LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count), GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    try:
        dist.init_process_group("gloo")
        answer = work(rank, *args)
        dist.barrier()
        dist.destroy_process_group()
        answers.send((answer, ""))
    except BaseException:
        answers.send((None, traceback.format_exc()))
