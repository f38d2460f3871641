"""Steps of one model over several processes: planned pipelines, even splits by hand, DistributedDataParallel.

Each model is trained by the processes of one job over gloo, a core each, that take turns at all ways to do so, and by
one process with all cores while the others wait. Predicted seconds stand beside measured ones, and the share of a step
in which the busiest process waits beside the schedule's formula.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from autopar.errors import AutoparError
from autopar.system.process import cores
from autopar.system.text import table

from .stacks import ROOT, mlp

ROUNDS = 15
PROCESSES = 2
MICRO_BATCHES = 8
"""Micro-batches of what is split by hand."""


class Skipping(nn.Module):
    """Convolutions, each reading what all before it made, as a dense block has them."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(width * (i + 1), width, 3, padding=1) for i in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (batch, 10) of images (batch, width, height, width)."""
        found = [x]
        for layer in self.layers:
            found.append(torch.relu(layer(torch.cat(found, 1))))
        scores: torch.Tensor = self.head(found[-1].mean((2, 3)))
        return scores


class Decoder(nn.Module):
    """A decoder of tokens whose head is its embedding."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores (batch, length, vocabulary) of tokens (batch, length)."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        scores: torch.Tensor = self.head(x)
        return scores


def _mlp() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return mlp(*[768] * 13), torch.randn(256, 768), torch.randint(0, 768, (256,))


def _cnn() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return Skipping(16, 6), torch.randn(32, 16, 32, 32), torch.randint(0, 10, (32,))


def _gpt() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return Decoder(2000, 256, 4), torch.randint(0, 2000, (16, 64)), torch.randint(0, 2000, (16, 64))


MODELS = {"12-layer MLP": _mlp, "CNN with skips": _cnn, "GPT, tied embeddings": _gpt}


def run(rounds: int = 0, models: Sequence[str] = tuple(MODELS)) -> dict[str, Any]:
    """Print and return milliseconds a step, predicted and measured, of each way to train each model, `rounds` (default
    15) turns of each. A prediction is of forward, backward and the sum of gradients, and is compared with these; what
    is measured has the optimizer's step beside."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command += [
            str(PROCESSES),
            "-m",
            "tests.benchmarks.timed.pipelines",
            str(rounds or ROUNDS),
            str(path),
            *models,
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode or not path.exists():
            raise AutoparError(f"the processes of the job failed:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(path.read_text())
    for name, rows in found.items():
        print(f"\n{name}, {PROCESSES} processes")
        shown = [("", "predicted", "measured", "÷ predicted", "÷ one process", "waits", "by formula")]
        base = rows["one process, all cores"]["measured_s"]
        for way, row in rows.items():
            predicted, measured = row.get("predicted_s"), row["measured_s"]
            shown.append((
                way, f"{predicted * 1e3:.1f} ms" if predicted else "", f"{measured * 1e3:.1f} ms",
                f"{row['step_s'] / predicted:.2f}" if predicted else "", f"{measured / base:.2f}",
                *(f"{row[key]:.0%}" if row.get(key) is not None else "" for key in ("waits", "formula")),
            ))  # fmt: skip
        print(table(shown, right=range(1, 7)))
    return found


def _contestants(model: Callable[[], Any]) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """A step of each way, and the jobs among them, by name. Every process makes the same."""
    import torch.distributed as dist

    from autopar.distributed.distribute import distribute
    from autopar.ir.distribution import Stage

    def loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(scores.flatten(0, -2), target.flatten())

    def job(**options: Any) -> Any:
        torch.manual_seed(0)
        net, x, _ = model()
        return distribute(net, example_inputs=(x,), loss=loss, **options)

    count = dist.get_world_size()
    jobs = {"planned": job()}
    jobs["planned replicas"] = job(stages=1, replicas=count)
    jobs["planned replicas, sharded"] = job(stages=1, replicas=count, shard_replicas=True)
    for schedule in ("1f1b", "zero-bubble"):
        jobs[f"planned pipeline, {schedule}"] = job(stages=count, replicas=1, schedule=schedule)
    plan = jobs["planned pipeline, 1f1b"].plan
    ends = [len(plan.units) * i // count for i in range(count + 1)]
    even = tuple(Stage(a, b, 1, 1, 1, 1, 1) for a, b in pairwise(ends))
    names = (tuple(host.name for host in plan.hosts.hosts),)
    for schedule in ("gpipe", "1f1b"):
        split = replace(plan, stages=even, ranks=names, schedule=schedule, micro_batches=MICRO_BATCHES)
        jobs[f"even split by hand, {schedule}"] = job(plan=split)
    torch.manual_seed(0)
    _, x, y = model()
    rank, share = dist.get_rank(), len(x) // count
    own = slice(rank * share, (rank + 1) * share)
    steps: dict[str, Callable[[], Any]] = {}
    for name, made in jobs.items():
        steps[name] = _stepped(made.parameters(), partial(made.step, x, target=y))
    net = nn.parallel.DistributedDataParallel(model()[0])
    steps["DistributedDataParallel"] = _stepped(
        net.parameters(), lambda: loss(net(x[own]), y[own]).backward()
    )
    alone = model()[0]
    one = _stepped(alone.parameters(), lambda: loss(alone(x), y).backward())

    def with_all_cores() -> None:
        if rank == 0:
            torch.set_num_threads(cores())
            one()
            torch.set_num_threads(1)
        dist.barrier()

    steps["one process, all cores"] = with_all_cores
    return steps, jobs


def _stepped(parameters: Any, call: Callable[[], Any]) -> Callable[[], None]:
    optimizer = torch.optim.SGD(list(parameters), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        call()
        optimizer.step()

    return step


def _measured(rounds: int, model: Callable[[], Any]) -> dict[str, Mapping[str, Any]]:
    import torch.distributed as dist

    steps, jobs = _contestants(model)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    busy: dict[str, list[float]] = {name: [] for name in jobs}
    steps_s: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 2):
        for name, step in steps.items():
            dist.barrier()
            began = time.perf_counter()
            step()
            dist.barrier()
            if turn > 1:
                taken[name].append(time.perf_counter() - began)
            if name in jobs:
                seen = jobs[name].timeline
                worked = torch.tensor([sum(s.seconds for s in seen.spans) / seen.makespan, seen.makespan])
                dist.all_reduce(worked, dist.ReduceOp.MAX)
                busy[name].append(float(worked[0]))
                steps_s[name].append(float(worked[1]))
    rows: dict[str, Any] = {
        name: {"measured_s": statistics.median(seconds)} for name, seconds in taken.items()
    }
    for name, made in jobs.items():
        plan = made.plan
        chunks = len(plan.stages) // plan.positions
        rows[name] |= {
            "predicted_s": plan.step_s if name.startswith("planned") else None,
            "step_s": statistics.median(steps_s[name]),
            "waits": 1 - statistics.median(busy[name]),
            "formula": (plan.positions - 1) / (chunks * plan.micro_batches + plan.positions - 1),
            "plan": f"{len(plan.stages)} stages × {plan.replicas}, {plan.micro_batches} micro-batches, {plan.schedule}",
        }
    return rows


def main(rounds: int, path: str, models: Sequence[str]) -> None:
    """One process of the job: rank 0 writes the figures as JSON."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {name: _measured(rounds, MODELS[name]) for name in models}
    if dist.get_rank() == 0:
        Path(path).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:] or list(MODELS))
