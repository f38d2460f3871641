"""A two-layer MLP on one CPU and two accelerators: placed, run, drawn, explained.

    python examples/two_layer_mlp.py [--split N] [--batch 8192 --width 4096] [--out DIR]

With two GPUs it uses them. Without, two declared T4s are stood in for by worker threads on a slowed-down clock
(the values are real, the times are the model's), and everything printed and drawn says so.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import autopar


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
        used = sorted({placed.device for placed in plan.placed if plan.costed.run[placed.run].seconds})
        split = plan.costed.graph.split
        why = (
            f"{split} on {', '.join(used)}"
            if split
            else f"stays on {', '.join(used)}: nothing tried is clearly faster"
        )
        print(f"{inputs:>6}-{hidden}-{outputs:<6} {batch:>6}  {single * 1e3:>8.3f} ms {device:>8}  "
              f"{plan.makespan * 1e3:>6.3f} ms  {why}")  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--split", default="auto", type=lambda text: text if text == "auto" else int(text))
    options.add_argument("--batch", default=4096, type=int, help="rows (default 4096)")
    options.add_argument("--width", default=2048, type=int, help="features of every layer (default 2048)")
    options.add_argument(
        "--out", default=Path("out"), type=Path, help="folder for the pictures (default out)"
    )
    chosen = options.parse_args()

    torch.manual_seed(0)
    devices = machine()
    sizes(devices)

    model, x = MLP(chosen.width, chosen.width, chosen.width).eval(), torch.randn(chosen.batch, chosen.width)
    fast = autopar.compile(model, devices, split=chosen.split)
    with torch.no_grad():
        y = fast(x)
        reference = model(x)
        with fast.record() as timeline:
            for _ in range(3):
                fast(x)
    error = ((y - reference).abs().max() / reference.abs().max()).item()

    print()
    print(fast.explain())
    print(f"\nequal to eager: max|Δ| ÷ max|reference| = {error:.1e}")
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name in ("placed.html", "placed.svg"):
        fast.draw(chosen.out / name)
    for name in ("run.json.gz", "run.html", "run.svg"):
        timeline.save(chosen.out / name)
    print(
        f"wrote {chosen.out}/placed.html, placed.svg, run.json.gz (open it in ui.perfetto.dev), run.html, run.svg"
    )


if __name__ == "__main__":
    main()
