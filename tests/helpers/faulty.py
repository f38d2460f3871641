"""A job that steps, and in which one rank fails as it is told: `faulty.py WHAT RANK STEP [KIND]`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from helpers.job_models import loss, made

import autopar

TIMEOUT_S = 3
"""Timeout of the job's process group."""


def fails(what: str) -> None:
    """Fail as it is told, with the second on the clock of all processes at which it does."""
    print(f"fails at {time.monotonic()}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)


def stepped(kind: str) -> Callable[[], object]:
    """What a step does: `sums` over the ranks, or the micro-batches of a `pipeline` of one stage on each."""
    if kind == "sums":
        return lambda: dist.all_reduce(torch.ones(1))
    model, x, y = made("mlp")
    hosts = f"{dist.get_world_size()} x cpu over ethernet-10"
    staged = {"stages": dist.get_world_size(), "replicas": 1, "micro_batches": 4, "schedule": "1f1b"}
    piped = autopar.distribute(model, hosts, example_inputs=(x,), loss=loss, **staged)
    return lambda: piped.step(x, target=y)


def run(what: str, failing: int, at: int, kind: str = "sums") -> None:
    """Take 30 steps, of which rank `failing` fails in step `at`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    rank = dist.get_rank()
    takes = stepped(kind)
    for step in range(30):
        if rank == failing and step == at:
            fails(what)
        takes()
    print(f"rank {rank} is done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
