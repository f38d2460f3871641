"""On real GPUs: two devices at once, copies behind compute, the runtime's own time, a two-layer MLP, training steps of
an MLP and of a transformer, models with compiled kernels against `torch.compile`, and a model larger than the memory
it may use.

Use a fresh `AUTOPAR_CACHE`, and a GPU that nothing else keeps busy: rates are measured once and kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from autopar.bench import rivals, stacks
from autopar.bench.contest import contest
from autopar.costs.detect import accelerators
from autopar.engine.api import compile, train_step
from autopar.errors import DeviceError
from autopar.pipeline import compare as equal
from autopar.system.text import seconds, table

from . import overhead, overlap, training
from .timing import interleaved, report

WIDTH, ROWS = 4096, 8192
"""A product large enough for a GPU to be busy, small enough to fit on any."""
HIDDEN, BLOCKS = 2048, 12
"""Width and number of the feed-forward layers of the larger model: 1.6 GB."""
MODELS = {"mlp784": (1, 256), "bert_small": (1, 8), "clip": (8,), "googlenet": (8,)}
"""Batch sizes of the models with compiled kernels."""


def run(rounds: int = 0) -> dict[str, Any]:
    """Print and return every figure, `rounds` of each (default: each part's own). DeviceError without a CUDA device."""
    there = [name for name in accelerators() if name.startswith("cuda:")]
    if not there:
        raise DeviceError(
            "the gpu suite needs a CUDA device and there is none here; python -m tests.benchmarks.timed overlap "
            "runs its figures on stand-ins"
        )
    print(", ".join(f"{name} {torch.cuda.get_device_name(name)}" for name in there))
    if len(there) == 1:
        print("one GPU: parallel_matmul needs two and runs on stand-ins")
    data: dict[str, Any] = {"overlap": overlap.run(rounds)}
    print(f"\noverhead on {there[0]}")
    data["overhead"] = overhead.chain(there[0], rounds)
    print("\ntwo-layer MLP")
    data["mlp"] = mlp(["cpu", *there], rounds)
    print("\na training step")
    data["training"] = training.measured(there[0], ["cpu", *there], rounds)
    print("\na training step of a transformer with dropout")
    data["transformer"] = transformer(there[0], rounds)
    print("\na model twice as large as the memory it may use")
    data["larger"] = larger(there[0], rounds)
    for name, batches in MODELS.items():
        for batch in batches:
            try:
                data[f"{name} {batch}"] = kernels(name, batch, there[0], rounds)
            except ModuleNotFoundError as error:
                print(f"\n{name} is left out: {error}; pip install 'autopar[zoo]'")
                break
    return data


def kernels(name: str, batch: int, gpu: str, rounds: int = 0) -> dict[str, Any]:
    """Eager, autopar and `torch.compile` on a model of `bench --suite stacks` that is on the GPU."""
    torch.manual_seed(0)
    model, args = getattr(stacks, name)(batch)
    case = rivals.Case(model.to(gpu), tuple(each.to(gpu) for each in args), [gpu])
    taking = rivals.chosen(["autopar", "autopar-auto", "compile", "reduce-overhead"], rivals.RIVALS)
    row = contest(f"{name}, batch {batch}", case, taking, rounds=rounds or 9)
    print(f"\n{row}", flush=True)
    return row.data()


def transformer(gpu: str, rounds: int = 0) -> dict[str, Any]:
    """Steps of four layers of 512 with dropout, batch 16 of 128 tokens: the plain loop, autopar, `torch.compile`."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(gpu)
    x = torch.randn(16, 128, 512, device=gpu)

    def loop(wrap: Callable[[nn.Module], Any]) -> training.Step:
        own = copy.deepcopy(model)
        call, optimizer = wrap(own), torch.optim.AdamW(own.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad()
            _mean_square(call(x)).backward()
            optimizer.step()

        return step

    own = copy.deepcopy(model)
    whole = train_step(own, _mean_square, torch.optim.AdamW(own.parameters(), lr=1e-4), [gpu])
    contestants = {
        "plain loop": loop(lambda model: model),
        "autopar.compile": loop(lambda model: compile(model, [gpu])),
        "autopar.train_step": lambda: whole(x),
        "torch.compile": loop(torch.compile),
    }
    samples = interleaved({name: training.turns(step) for name, step in contestants.items()}, rounds or 9)
    return report(samples, base="plain loop", unit="ms/step", per=training.STEPS)


def _mean_square(made: torch.Tensor) -> torch.Tensor:
    return made.square().mean()


def larger(gpu: str, rounds: int = 0) -> dict[str, Any]:
    """The model on the CPU and on the whole GPU, and autopar's plans with half of its bytes as the GPU's cap."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*(_Block(HIDDEN) for _ in range(BLOCKS))).eval(), torch.randn(512, HIDDEN)
    cap = sum(parameter.nbytes for parameter in model.parameters()) // 2
    twin = copy.deepcopy(model).to(gpu)
    with torch.no_grad():
        plans = {
            "autopar": compile(model, ["cpu", gpu], memory={gpu: cap}),
            "autopar, all streamed": compile(model, ["cpu", gpu], memory={gpu: cap}, home="cpu"),
        }
        expected = model(x)
        errors = {name: equal.error(fast(x), expected) for name, fast in plans.items()}
        contestants: dict[str, Callable[[], Any]] = {
            "eager, cpu": lambda: model(x),
            f"eager, {gpu}, no cap": lambda: twin(x.to(gpu)).cpu(),
        }
        contestants |= {name: partial(fast, x) for name, fast in plans.items()}
        data = report(interleaved(contestants, rounds or 5), base="eager, cpu")
    for name, fast in plans.items():
        data[name]["predicted_s"] = fast.plan.makespan
        print(f"{name}: predicted {seconds(fast.plan.makespan)}, error {errors[name]:.2g}")
        fast.close()
    return data


class _Block(nn.Module):
    """The feed-forward half of a transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the layers' output to `x`."""
        return x + self.layers(self.norm(x))


def mlp(devices: list[str], rounds: int = 0) -> dict[str, Any]:
    """Eager on the first GPU, and the plans for it and for all `devices`, from input on the CPU to output there."""
    gpu = devices[1]
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)).eval()
    x = torch.randn(ROWS, WIDTH)
    twin = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)).eval().to(gpu)
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        plans = {
            f"autopar, {gpu} alone": compile(model, devices, policy=f"single {gpu}", split=None),
            "autopar, auto": compile(model, devices),
            "autopar, 8 parts": compile(model, devices, policy="heft", split=8),
        }
        expected = model(x)
        rows = [("plan", "placed on", "error", "allowed")]
        errors = {}
        for name, fast in plans.items():
            errors[name] = equal.error(fast(x), expected)
            used = sorted({placed.device for placed in fast.plan.placed})
            rows.append((name, ", ".join(used), f"{errors[name]:.2g}", f"{equal.limit(expected):.2g}"))
        print(table(rows, right=(2, 3)))
        contestants: dict[str, Callable[[], Any]] = {f"eager, {gpu}": lambda: twin(x.to(gpu)).cpu()}
        contestants |= {name: partial(fast, x) for name, fast in plans.items()}
        data = report(interleaved(contestants, rounds or 10), base=f"eager, {gpu}")
    for fast in plans.values():
        fast.close()
    return {**data, "errors": errors}
