"""A wide MLP split over the ranks of a job by columns and rows, and measured.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py --width 4096 --rows 512

Each rank computes with one thread. In turn, medians: one rank alone, all ranks with both layers split, and one process
with as many threads as there are ranks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autopar.distributed import tensor_parallel


def mlp(width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width // 4, width), nn.GELU(), nn.Linear(width, width // 4))


def step(model: nn.Module, given: Tensor) -> float:
    """The loss of one step, forward and backward where the model trains."""
    with torch.set_grad_enabled(model.training):
        loss = model(given).square().mean()
    if model.training:
        loss.backward()
    return loss.item()


def medians(contestants: dict[str, tuple[Callable[[], object], bool, int]], times: int) -> dict[str, float]:
    """Seconds of each, one after the other in each turn: (call, whether all ranks make it, threads)."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(times + 2):
        for name, (call, together, threads) in contestants.items():
            torch.set_num_threads(threads)
            dist.barrier()
            begin = time.perf_counter()
            if together or dist.get_rank() == 0:
                call()
            took = time.perf_counter() - begin
            dist.barrier()
            if turn > 1:
                found[name].append(took)
    return {name: statistics.median(each) for name, each in found.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--width", type=int, default=4096)
    options.add_argument("--rows", type=int, default=512)
    options.add_argument("--times", type=int, default=15)
    options.add_argument("--serve", action="store_true", help="forward alone")
    asked = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    given = torch.randn(asked.rows, asked.width // 4, generator=torch.Generator().manual_seed(1))
    plain, split = (mlp(asked.width).train(not asked.serve) for _ in range(2))
    plan = tensor_parallel(split, example_inputs=(given,))
    losses = [step(model, given) for model in (plain, split)]
    took = medians(
        {
            "one rank": (lambda: step(plain, given), False, 1),
            "split": (lambda: step(split, given), True, 1),
            "one process, all threads": (lambda: step(plain, given), False, dist.get_world_size()),
        },
        asked.times,
    )
    if dist.get_rank() == 0:
        print(plan)
        one = took["one rank"]
        print(f"\nlosses {losses}")
        for name, each in took.items():
            print(f"{name:26} {each * 1e3:8.2f} ms  {each / one:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
