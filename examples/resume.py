"""Training that survives its processes: killed, stopped or hung, it goes on from the last checkpoint.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/resume.py --path run1 [--steps 40]

Every process trains on its rows of each batch (DistributedDataParallel around a compiled model). If one dies or stops,
the collectives of the others fail, at the latest after the timeout of the process group; torchrun starts all of them
again, and `load_latest` takes them to the last complete checkpoint. To see it, kill or stop one of the processes, or
let a rank do so in a step: `--rank 0 --kill 23` or `--stop 23`. The losses are those of a run that nothing happened to.
The variable has torchrun make a new store for each restart: in the one that it keeps otherwise, new processes may find
the addresses of dead ones (pytorch issue 135712).
"""

import argparse
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autopar
from autopar.distributed import load_latest, save


def batch(step: int, rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a rank: drawn by the number of the step, so that a resumed run sees the same."""
    draw = torch.Generator().manual_seed(step)
    x = torch.randn(16 * ranks, 10, generator=draw)[rank::ranks]
    return x, x.square().sum(1, keepdim=True)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--path", required=True, help="directory of the checkpoints, one that all hosts share"
    )
    options.add_argument("--steps", default=40, type=int)
    options.add_argument("--every", default=10, type=int, help="steps between checkpoints")
    options.add_argument("--timeout", default=30, type=float, help="seconds of a collective")
    options.add_argument("--rank", default=1, type=int, help="the rank that kills or stops itself, once")
    options.add_argument("--kill", default=-1, type=int, help="the step in which it kills itself")
    options.add_argument("--stop", default=-1, type=int, help="the step in which it stops itself")
    chosen = options.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(seconds=chosen.timeout))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    fast = DistributedDataParallel(autopar.compile(model, ["cpu"], check="never"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"model": model, "optimizer": optimizer}
    begin = load_latest(chosen.path, state) or 0
    if rank == 0:
        print(f"begins at step {begin}", flush=True)
    for step in range(begin, chosen.steps):
        x, y = batch(step, rank, ranks)
        loss = nn.functional.mse_loss(fast(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: loss {loss.item():.9g}", flush=True)
        fails = rank == chosen.rank and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if fails and step in (chosen.kill, chosen.stop):
            os.kill(os.getpid(), signal.SIGKILL if step == chosen.kill else signal.SIGSTOP)
        if (step + 1) % chosen.every == 0:
            save(chosen.path, {**state, "step": step + 1})
    # A process may hang if it frees a gloo group one of whose threads still works.
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
