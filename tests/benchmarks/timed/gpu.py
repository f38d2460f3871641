"""`python -m autopar bench --suite gpu`: rows for one GPU, from offloading to kernels, each in a process of its own.

Use a fresh `AUTOPAR_CACHE`, and a GPU that nothing else keeps busy: rates are measured once and kept.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autopar.api import compile, train_step
from autopar.bench import machine, rivals
from autopar.bench.contest import contest
from autopar.costs.detect import accelerators
from autopar.errors import AutoparError, DeviceError
from autopar.system.text import seconds

from . import overhead, stacks, training
from .offload import copies, larger, mean_square, update
from .racing import Call, race
from .timing import report

BUDGET_S, ROW_S, LEAST_S = 480.0, 150.0, 10.0
"""Limits in seconds: of all rows, of one, and what must be left for one to begin."""
ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "tests.benchmarks.timed.gpu")
"""The command that runs rows, from the root of the clone."""


def mlp(gpu: str, rounds: int = 0) -> dict[str, Any]:
    """Race plans for a two-layer MLP, from input on the CPU to output there."""
    width, count = (4096, 8192) if gpu.startswith("cuda") else (32, 64)
    model = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)).eval()
    twin, x = copy.deepcopy(model).to(gpu), torch.randn(count, width)

    def placed(**options: Any) -> Call:
        fast = compile(model, ["cpu", gpu], **options)
        return lambda: fast(x)

    base = f"eager, {gpu}"
    with torch.no_grad():
        makers: dict[str, Callable[[], Call]] = {
            base: lambda: lambda: twin(x.to(gpu)).cpu(),
            f"autopar, {gpu} alone": partial(placed, policy=f"single {gpu}", split=None),
            "autopar, auto": placed,
            "autopar, 8 parts": partial(placed, policy="heft", split=8),
        }
        return race(makers, [model(x)], gpu, rounds or 10, base=base)


def transformer(gpu: str, rounds: int = 0) -> dict[str, Any]:
    """Time training steps of a transformer with dropout, four layers of 512, batch 16 of 128 tokens."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(gpu)
    x = torch.randn(16, 128, 512, device=gpu)

    def loop(wrap: Callable[[nn.Module], Any]) -> training.Step:
        own = copy.deepcopy(model)
        call, optimizer = wrap(own), torch.optim.AdamW(own.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad()
            mean_square(call(x)).backward()
            optimizer.step()

        return step

    own = copy.deepcopy(model)
    whole = train_step(own, mean_square, torch.optim.AdamW(own.parameters(), lr=1e-4), [gpu])
    contestants = {
        "plain loop": loop(lambda model: model),
        "autopar.compile": loop(lambda model: compile(model, [gpu])),
        "autopar.train_step": lambda: whole(x),
        "torch.compile": loop(torch.compile),
    }
    return report(contestants, rounds or 9, base="plain loop", unit="ms/step")


def kernels(gpu: str, rounds: int = 0, *, name: str, batch: int) -> dict[str, Any]:
    """Time eager, autopar and `torch.compile` on a model of `bench --suite stacks` that is on the GPU."""
    torch.manual_seed(0)
    model, args = getattr(stacks, name)(batch)
    case = rivals.Case(model.to(gpu), tuple(each.to(gpu) for each in args), [gpu])
    taking = rivals.chosen(["autopar", "autopar-auto", "compile", "reduce-overhead"], rivals.RIVALS)
    row = contest(f"{name}, batch {batch}", case, taking, rounds=rounds or 9, timing_s=10.0, build_s=60.0)
    print(f"\n{row}", flush=True)
    return row.data()


Row = Callable[[str, int], dict[str, Any]]

ROWS: dict[str, Row] = {
    "larger, 2 times": partial(larger, times=2),
    "larger, 4 times": partial(larger, times=4),
    "copies": copies,
    "update": update,
    "overhead": overhead.chain,
    "mlp": mlp,
    "training": lambda gpu, rounds: training.measured(gpu, ["cpu", gpu], rounds),
    "transformer": transformer,
    **{
        f"{name}, batch {batch}": partial(kernels, name=name, batch=batch)
        for name, batch in (
            ("clip", 8), ("googlenet", 8), ("bert_small", 8), ("bert_small", 1), ("mlp784", 256), ("mlp784", 1)
        )
    },
}  # fmt: skip
"""The function of each row, from the name of the GPU and the rounds (0: its own number) to data. Rows without figures
in docs/benchmarks.md come first, since the time may not be enough for all."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the rows and write them to the JSON file, each as soon as it is done; return 0.

    A single row that is asked for runs in this process, and its error ends it.
    """
    parser = argparse.ArgumentParser(prog="python -m autopar bench --suite gpu", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help="; ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=0, help="of each contestant (default: the row's own)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for all samples and medians")
    chosen = parser.parse_args(argv)
    for name in chosen.only:
        if name not in ROWS:
            raise AutoparError(f"no row of the gpu suite is called {name!r}; there are {'; '.join(ROWS)}")
    gpu = first()
    results: dict[str, Any] = {"machine": machine(), "rows": {}}

    def keep(name: str, data: Mapping[str, Any]) -> None:
        results["rows"][name] = data
        if chosen.json:
            chosen.json.write_text(json.dumps(results, indent=1) + "\n")

    if len(chosen.only) == 1:
        (name,) = chosen.only
        keep(name, ROWS[name](gpu, chosen.rounds))
        return 0
    print(machine(), flush=True)
    run_rows(chosen.only or list(ROWS), chosen.rounds, keep)
    return 0


def first() -> str:
    """Return the first GPU. Raises DeviceError without a CUDA device."""
    for name in accelerators():
        if name.startswith("cuda:"):
            return name
    raise DeviceError(
        "the gpu suite needs a CUDA device and there is none here; python -m tests.benchmarks.timed measures calls and "
        "steps on CPUs"
    )


def run_rows(names: Sequence[str], rounds: int, keep: Callable[[str, Mapping[str, Any]], None]) -> None:
    """Run each row in a process of its own and `keep` its data, or why it has none. A row that fails, crashes or hangs
    does not stop the others, and one for which no time is left does not begin."""
    until = time.monotonic() + BUDGET_S
    for name in names:
        limit = min(ROW_S, until - time.monotonic())
        print(f"\n{name}", flush=True)
        data, reason = _run(name, rounds, limit) if limit > LEAST_S else ({}, "the time is up")
        if reason:
            print(f"{name} failed: {reason}", flush=True)
        keep(name, {**data, "failed": reason} if reason else data)


def _run(name: str, rounds: int, limit_s: float) -> tuple[dict[str, Any], str]:
    """Return the data of a row that runs in another process, and why there are none or it ended badly."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        path = Path(folder) / "row.json"
        command = [*COMMAND, "--only", name, "--rounds", str(rounds), "--json", str(path)]
        # A session of its own, to end what the row has started as well.
        row = subprocess.Popen(command, cwd=ROOT, stderr=errors, start_new_session=True)
        try:
            status = row.wait(limit_s)
        except subprocess.TimeoutExpired:
            return {}, f"it was stopped after {seconds(limit_s)}"
        finally:
            if row.poll() is None:
                os.killpg(row.pid, signal.SIGKILL)
                row.wait()
        errors.seek(0)
        said = errors.read().strip().splitlines() or [f"it ended with status {status}"]
        data = json.loads(path.read_text())["rows"][name] if path.exists() else {}
    print(f"{seconds(time.monotonic() - began)} in all", flush=True)
    return data, said[-1] if status else ""


if __name__ == "__main__":
    sys.exit(main())
