"""`python -m autopar demo`: a two-layer MLP on one CPU and two accelerators: placed, run, drawn, explained.

With two GPUs it uses them. Without, worker threads emulate two T4s on a slowed clock: the values are real, and the
times are those of the T4s. Everything printed and drawn says so.

With --train it is a training step: a batch in two halves, forward and backward on each device, gradients summed and
weights updated on the CPU and copied back while the backward goes on, as in d2l.ai, figure 13.3.1.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import autopar

from .. import view
from ..ir.timeline import Timeline
from ..runtime.record import Recording, scaled
from ..system.text import seconds
from . import Parser


class MLP(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a batch."""
        outputs: torch.Tensor = self.fc2(torch.relu(self.fc1(x)))
        return outputs


def machine() -> autopar.Machine | list[str]:
    """The CPU and two GPUs, or two stand-ins for T4s."""
    if torch.cuda.device_count() >= 2:
        return ["cpu", "cuda:0", "cuda:1"]
    return autopar.Machine.emulate("cpu-16", "t4", "t4")


def until_it_counts(timeline: Recording, call: Callable[[], object], calls: int = 3) -> None:
    """Call until the figures of some calls count, or after ten seconds of one, for half a minute at most. A call that
    this machine is too busy for slows the emulated clock down for the next."""
    began = time.monotonic()
    while len(timeline.counted) < calls:
        if time.monotonic() - began > (10 if timeline.counted else 30):
            return
        call()


def emulated(plan: autopar.Plan) -> str:
    """One sentence on what is real of a run and what is not."""
    machine = plan.costed.machine
    if not machine.emulated:
        return ""
    chips = [device.chip for device in machine.devices if device.traits.stand_in]
    return (
        f"Emulated: {len(chips)} worker threads compute the real values of {len(chips)} {chips[0]}s,\n"
        f"on a clock {machine.slow_down:g} times slower; all times are those of the chips."
    )


def on_the_chips_clock(plan: autopar.Plan, timeline: Timeline) -> Timeline:
    """A measured timeline in the time of the declared chips, beside the prediction."""
    # The recorded prediction is on the clock of its call; the plan's machine may have a slower one since.
    clock = timeline.predicted.makespan / plan.makespan if timeline.predicted else 1.0
    return replace(scaled(timeline, 1 / clock), predicted=plan.timeline())


def gain(plan: autopar.Plan, timeline: Recording) -> str:
    """The table of the best single device, the prediction and the measurement."""
    device, single = plan.best_single or ("none", float("nan"))
    measured = on_the_chips_clock(plan, timeline.median).makespan
    late = "  (no figure: this machine is too busy for its clock)" if timeline.last.needs_slow_down else ""
    rows = [
        ("best single device", single, f"everything on {device}"),
        ("placed, predicted", plan.makespan, f"{single / plan.makespan:.2f} × as fast"),
        ("placed, measured", measured, f"{single / measured:.2f} × as fast{late}"),
    ]
    return "\n".join(f"  {name:18}  {seconds(time):>8}  {note}" for name, time, note in rows)


HOME = {"*.weight": "cpu", "*.bias": "cpu"}
"""Pins that keep the weights at home on the CPU: there gradients are summed and weights updated."""


def halves(devices: autopar.Machine | list[str]) -> dict[str, float]:
    """One half of the batch for each accelerator."""
    names = devices if isinstance(devices, list) else [device.name for device in devices.devices]
    return {name: 0.5 for name in names if name != "cpu"}


def curve(steps: int, dtype: torch.dtype, devices: autopar.Machine | list[str]) -> float:
    """Train for some steps beside a plain loop; the relative difference of the last two losses."""
    torch.manual_seed(0)
    model = MLP(784, 256, 10).to(dtype)
    plain = copy.deepcopy(model)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, plain))
    step = autopar.train_step(
        model, nn.functional.cross_entropy, ours, devices, split=halves(devices), pins=HOME
    )
    x, y = torch.randn(20, 100, 784, dtype=dtype), torch.randint(0, 10, (20, 100))
    for turn in range(steps):
        data, target = x[turn % 20], y[turn % 20]
        mine = step(data, target)
        theirs.zero_grad()
        loss = nn.functional.cross_entropy(plain(data), target)
        torch.autograd.backward(loss)
        theirs.step()
    step.close()
    return float(abs(mine.item() - loss.item()) / abs(loss.item()))


def recorded(
    model: MLP, batch: int, devices: autopar.Machine | list[str], pins: dict[str, str], calls: int = 3
) -> tuple[autopar.TrainStep, Recording]:
    """A training step on random data, recorded once it is one program."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = autopar.train_step(model, nn.MSELoss(), optimizer, devices, split=halves(devices), pins=pins)
    x, y = torch.randn(batch, model.fc1.in_features), torch.randn(batch, model.fc2.out_features)
    step(x, y)
    step(x, y)
    with step.record() as timeline:
        until_it_counts(timeline, lambda: step(x, y), calls)
    return step, timeline


def train(steps: int, out: Path, report: bool) -> None:
    """A step that gains, how much of the reduction hides behind the backward, and the loss curves."""
    devices = machine()
    step, timeline = recorded(MLP(32, 1024, 1024), 4096, devices, HOME, calls=1)
    plan = step.plan
    print(
        f"A training step of a two-layer MLP, 32-1024-1024, batch of 4096 rows in two halves\n{emulated(plan)}\n"
    )
    print(gain(plan, timeline))
    shares = [view.hidden(plan, each) for each in (plan.timeline(), timeline.last)]
    print(
        f"\nGradients are copied and summed while the backward runs: {shares[0]:.0%} of it as predicted, "
        f"{shares[1]:.0%} as measured."
    )
    if report:
        print(f"\n{step.explain()}\n")
    pictures(step, timeline, out, "train")
    step.close()

    real = devices if isinstance(devices, list) else ["cpu", "emulated:0", "emulated:1"]
    print(f"\nThe losses of {steps} steps of 784-256-10, batch 100, beside those of the plain loop")
    for dtype, allowed in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        print(
            f"  {str(dtype).removeprefix('torch.')}: {curve(steps, dtype, real):.1e} apart (limit {allowed:.0e})"
        )


def pictures(fast: autopar.Compiled | autopar.TrainStep, timeline: Recording, out: Path, name: str) -> None:
    """Draw the placed graph and the recorded call, and say where the pictures are."""
    run = on_the_chips_clock(fast.plan, timeline.median)
    print("\nPictures")
    for file, what in ((f"{name}.html", "the placed graph"), (f"{name}.svg", "the same as a picture")):
        fast.draw(out / file)
        print(f"  {out / file}  {what}")
    prefix = "run" if name == "placed" else f"{name}_run"
    for suffix, what in (
        ("html", "the recorded call"),
        ("svg", "the same"),
        ("json.gz", "for ui.perfetto.dev"),
    ):
        run.save(out / f"{prefix}.{suffix}")
        print(f"  {out / prefix}.{suffix}  {what}")


def positive(text: str) -> int:
    """Return a number of the command line. Raises ArgumentTypeError if it is not a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and write its pictures; return 0 on success."""
    # torch warns once when it traces without numpy, which nothing here needs.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    options = Parser(
        prog="python -m autopar demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "--split", default="auto", type=lambda text: text if text == "auto" else positive(text),
        help="number of parts of the batch (default auto)",
    )  # fmt: skip
    options.add_argument("--batch", default=4096, type=positive, help="rows (default 4096)")
    options.add_argument(
        "--width", default=2048, type=positive, help="features of every layer (default 2048)"
    )
    options.add_argument(
        "--out", default=Path("out"), type=Path, help="folder for the pictures (default out)"
    )
    options.add_argument("--train", action="store_true", help="a training step instead of a call")
    options.add_argument("--report", action="store_true", help="also print explain(), the whole report")
    options.add_argument("--steps", default=200, type=positive, help="steps of the loss curves (default 200)")
    chosen = options.parse_args(argv)
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.train:
        train(chosen.steps, chosen.out, chosen.report)
        return 0

    torch.manual_seed(0)
    devices = machine()
    model, x = MLP(chosen.width, chosen.width, chosen.width).eval(), torch.randn(chosen.batch, chosen.width)
    fast = autopar.compile(model, devices, split=chosen.split)
    with torch.no_grad():
        y = fast(x)
        reference = model(x)
        with fast.record() as timeline:
            until_it_counts(timeline, lambda: fast(x))
    error = ((y - reference).abs().max() / reference.abs().max()).item()

    width = chosen.width
    print(f"A two-layer MLP, {width}-{width}-{width}, batch of {chosen.batch} rows\n{emulated(fast.plan)}\n")
    print(gain(fast.plan, timeline))
    print(f"\nEqual to eager: max|Δ| ÷ max|reference| = {error:.1e}")
    if chosen.report:
        print(f"\n{fast.explain()}")
    pictures(fast, timeline, chosen.out, "placed")
    return 0
