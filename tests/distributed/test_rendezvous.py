"""The store of a job at one address: its refusals, and one job after the other."""

from __future__ import annotations

import os
import time

import pytest
from helpers.ranks import free_port, ranks

from autopar import RunError
from autopar.distributed import bound_store

VARIABLES = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun"),
        ({"RANK": None}, "RANK is not set; start the script with torchrun"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
    ],
)
def test_a_job_whose_store_is_not_its_own_is_refused(monkeypatch, changed, says):
    for name, value in (VARIABLES | changed).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(RunError, match=says):
        bound_store()


def _two_jobs(rank: int, port: int) -> list[float]:
    """The sums over the ranks of two jobs, one after the other."""
    import torch
    import torch.distributed as dist

    from autopar.distributed import guarded

    os.environ["MASTER_PORT"] = str(port)
    sums = []
    for _ in range(2):
        dist.destroy_process_group()
        # The other rank looks for the address of this one, and must not find that of the first job.
        time.sleep(0.5 * (rank == 0))
        dist.init_process_group("gloo", store=bound_store(), rank=rank, world_size=2)
        with guarded(timeout_s=30):
            term = torch.tensor([rank + 1.0])
            dist.all_reduce(term)
            sums.append(term.item())
    return sums


@pytest.mark.slow
def test_jobs_of_the_same_processes_share_a_store():
    assert ranks(2, _two_jobs, free_port()) == [[3, 3], [3, 3]]
