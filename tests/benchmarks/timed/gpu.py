"""On real GPUs: two devices at once, copies behind compute, the runtime's own time, a two-layer MLP against eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from autopar.costs.detect import accelerators
from autopar.engine.api import compile
from autopar.errors import DeviceError
from autopar.pipeline import compare as equal
from autopar.system.text import table

from . import overhead, overlap, training
from .timing import interleaved, report

WIDTH, ROWS = 4096, 8192
"""A product large enough for a GPU to be busy, small enough to fit on any."""


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
    return data


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
