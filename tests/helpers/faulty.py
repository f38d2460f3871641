"""A job that steps, and in which one rank fails as it is told: `faulty.py WHAT RANK STEP`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from helpers.job_models import loss, made

import autopar
from autopar.distributed.faults.heartbeat import bound_store, guarded
from autopar.training.messages import agree


def listening() -> list[str]:
    """Addresses that this process listens at, as hexadecimal of the kernel's tables: `0100007F:…` is loopback."""
    handles = Path("/proc/self/fd")
    own = {os.readlink(handle) for handle in handles.iterdir() if handle.is_symlink()}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
    ]
    return sorted(row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own)


def fails(what: str) -> None:
    """Fail as it is told, with the second on the clock of all processes at which it does."""
    print(f"fails at {time.monotonic()}", flush=True)
    if what in ("kill", "busy"):
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "raise":
        raise ValueError("a bad batch")
    if what == "hang":
        time.sleep(600)
    if what == "slow":
        time.sleep(3)


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
    """Take 30 steps, of which rank `failing` fails in step `at`, if it is told to."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = bound_store() if what == "listen" else None
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    before = listening()
    with guarded(timeout_s=2, step_timeout_s=2 if what == "hang" else None, grace_s=1) as guard:
        takes = stepped(kind)
        for step in range(30):
            guard.step(step)
            if rank == failing and step == at:
                fails(what)
            elif step == at and what == "busy":
                time.sleep(600)
            takes()
        if what == "listen":
            agree(lambda: {"step": "30"})
            assert listening() == before, (before, listening())
            # In one write: ranks under torchrun share a pipe.
            os.write(1, f"listens: {' '.join(before)}\n".encode())
    print(f"rank {rank} is done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
