"""The store of a job, which listens at one address of rank 0's host instead of on all its interfaces."""

from __future__ import annotations

import functools
import itertools
import os
import socket
from datetime import timedelta

import torch.distributed as dist

from ..errors import RunError

_jobs = itertools.count()


def bound_store(*, timeout_s: float = 1800.0) -> dist.Store:
    """Return the store of the job of `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`; rank 0 holds it.

        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=bound_store(), rank=rank, world_size=ranks)

    It listens at `MASTER_ADDR` alone; `init_process_group()` without a store listens on all interfaces.
    `timeout_s`: seconds to wait for the other ranks, and for each answer of the store; the default is that of
    `init_process_group`. All ranks must call it equally often, because each call begins another job.

    Raises RunError if a variable is missing, or if torchrun itself holds the store of the job.
    """
    if store_of_torchrun():
        raise RunError(
            "torchrun holds the store of this job, and listens on all interfaces; start it with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --rdzv-backend=c10d --rdzv-conf=store_type=file "
            "--rdzv-endpoint=FILE --local-addr=ADDRESS …"
        )
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except KeyError as missing:
        raise RunError(f"{missing.args[0]} is not set; start the script with torchrun, or set it") from None
    # A later job of this process finds the same server, but none of the earlier job's keys.
    return dist.PrefixStore(str(next(_jobs)), _server(host, port, rank, size, timeout_s))


def store_of_torchrun() -> bool:
    """Return True if torchrun, not rank 0, holds the store of the job."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


@functools.cache
def _server(host: str, port: int, rank: int, size: int, timeout_s: float) -> dist.Store:
    """Return the server of a job on rank 0, a connection to it on others."""
    listener = None
    if rank == 0:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family).detach()
    return dist.TCPStore(host, port, size, rank == 0, timedelta(seconds=timeout_s), master_listen_fd=listener)
