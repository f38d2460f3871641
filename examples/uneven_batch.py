"""A batch of 32 over eight devices of which the first has less room: shares are found, nothing that fits is refused.

    python examples/uneven_batch.py [--batch 32] [--devices 8] [--first 1.5MB] [--others 2.45MB]

The complaint about Lua's DataParallelTable: the first device holds the parameters, the outputs and its part of the
batch, is full before the others, and the rest stay half empty. Here every device has a cap, the first (where the
weights live and the outputs go) the lowest. Even parts do not fit there in training; shares by speed and room do.
Everything is on stand-ins (worker threads with a memory account each), in inference and in training.
"""

import argparse
import copy

import torch
from torch import nn

import autopar


def network() -> nn.Module:
    """Little to remember in weights, much in activations, so that each row counts."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def loss_of(model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss, with its gradients in the model's parameters."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


def gradients(model, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Those of a plain model, of their own."""
    loss_of(model, x, y)
    return [parameter.grad.clone() for parameter in model.parameters()]


def apart(found: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """max|Δ| ÷ max|reference| of the worst tensor."""
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found, reference))


def refused(model, names: list[str], caps: dict[str, str], x: torch.Tensor, y: torch.Tensor) -> str:
    """What even parts under these caps are refused with; empty when they fit."""
    even = autopar.compile(model, names, split=dict.fromkeys(names, 1.0), memory=caps)
    try:
        loss_of(even, x, y)
    except autopar.MemoryCapError as error:
        return str(error)
    finally:
        even.close()
    return ""


def measure(batch: int = 32, devices: int = 8, first: str = "1.5MB", others: str = "2.45MB") -> dict:
    """The rows of each part, peaks in bytes predicted and measured, caps, and how far gradients are from eager's."""
    torch.manual_seed(0)
    names = [f"emulated:{index}" for index in range(devices)]
    caps = {name: others if index else first for index, name in enumerate(names)}
    model, x = network(), torch.randn(batch, 3, 32, 32)
    y = torch.randint(0, 10, (batch,))
    eager = gradients(model, x, y)
    exact = gradients(copy.deepcopy(model).double(), x.double(), y)

    even = refused(model, names, caps, x, y)
    fast = autopar.compile(model, names, memory=caps)
    found: dict = {"even": even}
    with torch.no_grad():
        fast(x)
        with fast.record() as timeline:
            fast(x)
    found["inference"] = peaks(fast, timeline.last)
    loss_of(fast, x, y)
    with fast.record() as timeline:
        loss_of(fast, x, y)
    found["training"] = peaks(fast, timeline.last)
    found["error"] = apart([parameter.grad for parameter in model.parameters()], exact)
    found["eager error"] = apart(eager, exact)
    fast.close()
    return found


def peaks(fast, timeline: autopar.Timeline) -> dict:
    """The split, and (device, cap, predicted, measured) peaks in bytes."""
    predicted = {memory.device: memory.peak for memory in fast.plan.memory}
    return {
        "split": fast.plan.costed.graph.split or "not split",
        "peaks": [(m.device, m.cap, predicted.get(m.device, 0), m.peak) for m in timeline.memory],
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--batch", default=32, type=int)
    options.add_argument("--devices", default=8, type=int)
    options.add_argument("--first", default="1.5MB", help="cap of the first device (default 1.5MB)")
    options.add_argument("--others", default="2.45MB", help="cap of each other device (default 2.45MB)")
    chosen = options.parse_args()
    found = measure(chosen.batch, chosen.devices, chosen.first, chosen.others)
    print("EMULATED, real clock")
    print(f"even parts in training: {'refused: ' + found['even'] if found['even'] else 'fit'}")
    for what in ("inference", "training"):
        print(f"\n{what}: {found[what]['split']}")
        print(f"{'device':>12} {'cap':>10} {'predicted peak':>15} {'measured peak':>14}   bytes")
        for device, cap, predicted, measured in found[what]["peaks"]:
            print(f"{device:>12} {cap:>10,} {predicted:>15,} {measured:>14,}")
    print(f"\ngradients against the same model in float64, max|Δ| ÷ max|reference|: {found['error']:.1e}, "
          f"eager's own {found['eager error']:.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
