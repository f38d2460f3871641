"""A model over two devices inside each process, and DistributedDataParallel over the processes.

    torchrun --nproc-per-node 2 examples/ddp_two_devices.py [--steps 20]

https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html, "Combining DDP with Model Parallelism". The tutorial
writes a second model whose forward moves tensors from device to device. Here it is the plain ToyModel, and one line
differs: the model is autopar.compile(ToyModel(), [dev0, dev1], …). Its pins put the two layers where the tutorial has
them; without pins the planner chooses. Where a rank has no two accelerators, its devices are stand-ins.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from ddp_toy import ToyModel, apart, batches, own, train
from torch.nn.parallel import DistributedDataParallel as DDP

import autopar


def pair(rank: int, count: int) -> tuple[str, str]:
    """The two devices of this rank, of `count` ranks on this machine."""
    kind = torch.accelerator.current_accelerator()
    if kind is None or torch.accelerator.device_count() < 2 * count:
        return "emulated:0", "emulated:1"
    return f"{kind.type}:{2 * rank}", f"{kind.type}:{2 * rank + 1}"


def demo(dev0: str, dev1: str, steps: int) -> tuple[list[float], float, dict[str, str]]:
    """The losses of this rank, how far its weights are from those of one process with all rows, and what was where."""
    torch.manual_seed(0)
    plain = ToyModel()
    torch.manual_seed(0)
    # The line that changes; was: mp_model = ToyMpModel(dev0, dev1)
    mp_model = autopar.compile(ToyModel(), [dev0, dev1], pins={"net1": dev0, "net2": dev1})
    ddp_mp_model = DDP(mp_model)
    losses = train(ddp_mp_model, ((own(x), own(labels)) for x, labels in batches(steps)))
    train(plain, batches(steps))
    return losses, apart(mp_model, plain), mp_model.plan.device_map()


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--steps", default=20, type=int)
    steps = options.parse_args().steps
    dist.init_process_group()
    try:
        here = pair(int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
        losses, error, places = demo(*here, steps)
        print(
            f"rank {dist.get_rank()} of {dist.get_world_size()}: {places}; loss {losses[0]:.4f} → {losses[-1]:.4f}; "
            f"weights from those of one process with all rows: {error:.1e}"
        )
        assert error <= 1e-5, "not the weights of one process"
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
