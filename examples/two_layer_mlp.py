"""A two-layer MLP on one CPU and two accelerators: placed, run, drawn, explained.

    python examples/two_layer_mlp.py [--split N] [--batch 8192 --width 4096] [--out DIR]
    python examples/two_layer_mlp.py --train [--steps 200] [--out DIR]

With two GPUs it uses them. Without, two declared T4s are stood in for by worker threads on a slowed-down clock
(the values are real, the times are the model's), and everything printed and drawn says so.

With --train it is the training step of d2l.ai, figure 13.3.1: a batch of 100 in two halves, forward and backward on
each device, gradients summed and weights updated on the CPU and copied back while the backward goes on.
"""

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import autopar
from autopar import view
from autopar.runtime.record import Recording


class MLP(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


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
    chips = [device.chip for device in machine.devices if device.kind == "emulated"]
    return (
        f"Emulated: this machine lacks two GPUs, so {len(chips)} worker threads compute the real values in place of "
        f"{len(chips)} {chips[0]}s, on a clock {machine.slow_down:g} times slower than theirs: measured ÷ "
        f"{machine.slow_down:g} is what they would take."
    )


def sizes(devices: autopar.Machine | list[str]) -> None:
    """Where splitting pays and where it does not, by prediction alone."""
    print(f"{'net':>18} {'batch':>6}  {'one device':>20}  {'placed':>9}  decision")
    for inputs, hidden, outputs, batch in [
        (784, 256, 10, 256),
        (1024, 1024, 1024, 1024),
        (2048, 2048, 2048, 8192),
    ]:
        model, x = MLP(inputs, hidden, outputs), torch.empty(batch, inputs)
        with torch.no_grad():
            plan = autopar.plan(model, devices, example_inputs=(x,))
        device, single = plan.best_single or ("none", float("nan"))
        used = sorted(
            {placed.device for placed in plan.placed if plan.costed.cluster[placed.cluster].seconds}
        )
        split = plan.costed.graph.split
        why = (
            f"{split} on {', '.join(used)}"
            if split
            else f"stays on {', '.join(used)}: nothing tried is clearly faster"
        )
        print(f"{inputs:>6}-{hidden}-{outputs:<6} {batch:>6}  {single * 1e3:>8.3f} ms {device:>8}  "
              f"{plan.makespan * 1e3:>6.3f} ms  {why}")  # fmt: skip


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
        loss.backward()
        theirs.step()
    step.close()
    return abs(mine.item() - loss.item()) / abs(loss.item())


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


def train(steps: int, out: Path) -> None:
    """The figure, the loss curves, and how much of the reduction hides behind the backward."""
    devices = machine()
    real = devices if isinstance(devices, list) else ["cpu", "emulated:0", "emulated:1"]
    for dtype, allowed in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        found = curve(steps, dtype, real)
        print(
            f"{dtype!s:>14}: after {steps} steps the loss is the plain loop's to {found:.1e} (at most {allowed:.0e})"
        )

    print(f"\n{'784-256-10, batch 100':>26}  {'predicted':>9}  {'measured':>8}  {'moved':>7}")
    for label, pins in (("weights at home on the CPU", HOME), ("the planner's own choice", {})):
        torch.manual_seed(0)
        step, timeline = recorded(MLP(784, 256, 10), 100, devices, pins)
        slow = step.plan.costed.machine.slow_down or 1
        print(f"{label:>26}  {step.plan.makespan * 1e6:6.0f} µs  {timeline.median.makespan / slow * 1e6:5.0f} µs  "
              f"{step.plan.moved / 1e6:.2f} MB")  # fmt: skip
        name = "train" if pins else "train_free"
        for suffix in ("html", "svg"):
            step.draw(out / f"{name}.{suffix}")
        step.close()

    step, timeline = recorded(MLP(32, 1024, 1024), 4096, devices, HOME, calls=1)
    print()
    print(step.explain())
    print(f"\n{emulated(step.plan)}")
    late = " (no figure: the machine was too slow for its clock)" if timeline.last.needs_slow_down else ""
    shares = [view.hidden(step.plan, each) for each in (step.plan.timeline(), timeline.last)]
    print(
        f"\n32-1024-1024, batch 4096: of the reduction {shares[0]:.0%} is hidden behind the backward as predicted, "
        f"{shares[1]:.0%} as measured{late}"
    )
    for name in ("train_run.json.gz", "train_run.html", "train_run.svg"):
        timeline.save(out / name)
    print(
        f"wrote {out}/train.html, train.svg, train_free.html, train_free.svg, train_run.json.gz, .html, .svg"
    )


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
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
    options.add_argument("--train", action="store_true", help="the training step of d2l.ai, figure 13.3.1")
    options.add_argument("--steps", default=200, type=positive, help="steps of the loss curves (default 200)")
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.train:
        train(chosen.steps, chosen.out)
        return

    torch.manual_seed(0)
    devices = machine()
    sizes(devices)

    model, x = MLP(chosen.width, chosen.width, chosen.width).eval(), torch.randn(chosen.batch, chosen.width)
    fast = autopar.compile(model, devices, split=chosen.split)
    with torch.no_grad():
        y = fast(x)
        reference = model(x)
        with fast.record() as timeline:
            until_it_counts(timeline, lambda: fast(x))
    error = ((y - reference).abs().max() / reference.abs().max()).item()

    print()
    print(fast.explain())
    print(f"\n{emulated(fast.plan)}")
    print(f"equal to eager: max|Δ| ÷ max|reference| = {error:.1e}")
    for name in ("placed.html", "placed.svg"):
        fast.draw(chosen.out / name)
    for name in ("run.json.gz", "run.html", "run.svg"):
        timeline.save(chosen.out / name)
    print(
        f"wrote {chosen.out}/placed.html, placed.svg, run.json.gz (open it in ui.perfetto.dev), run.html, run.svg"
    )


if __name__ == "__main__":
    main()
