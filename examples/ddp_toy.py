"""The ToyModel of PyTorch's DistributedDataParallel tutorial, on several processes, each with a plan of its own.

    torchrun --nproc-per-node 2 examples/ddp_toy.py [--devices cpu] [--steps 20]

https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html, "Basic Use Case". One line differs: DDP is given
autopar.compile(model, devices), and no device_ids, since the plan says what is where. Afterwards each rank trains a
plain model on the rows of all ranks by itself, and the weights are the same.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP

import autopar

ROWS = 20


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net2(self.relu(self.net1(x)))


def batches(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The rows of all ranks, and their labels."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(ROWS * dist.get_world_size(), 10, generator=draw)
        yield x, x[:, :5].sin()


def own(rows: torch.Tensor) -> torch.Tensor:
    """Those of this rank."""
    return rows[ROWS * dist.get_rank() :][:ROWS]


def train(model: nn.Module, data: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """The losses of the tutorial's loop."""
    loss_fn, losses = nn.MSELoss(), []
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for x, labels in data:
        optimizer.zero_grad()
        loss = loss_fn(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def apart(model: nn.Module, plain: nn.Module) -> float:
    """The largest difference of two models' weights."""
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    return max((a.cpu() - b).abs().max().item() for a, b in pairs)


def demo(devices: list[str], steps: int) -> tuple[list[float], float]:
    """The losses of this rank, and how far its weights are from those of one process with all rows."""
    torch.manual_seed(0)
    model = ToyModel()
    plain = copy.deepcopy(model)
    ddp_model = DDP(
        autopar.compile(model, devices)
    )  # the line that changes; was: DDP(model, device_ids=[device_id])
    losses = train(ddp_model, ((own(x), own(labels)) for x, labels in batches(steps)))
    train(plain, batches(steps))
    return losses, apart(model, plain)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--devices", nargs="+", default=["auto"], help="what this rank plans for")
    options.add_argument("--steps", default=20, type=int)
    chosen = options.parse_args()
    dist.init_process_group()
    try:
        losses, error = demo(chosen.devices, chosen.steps)
        print(
            f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {losses[0]:.4f} → {losses[-1]:.4f}; weights from "
            f"those of one process with all rows: {error:.1e}"
        )
        assert error <= 1e-5, "not the weights of one process"
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
