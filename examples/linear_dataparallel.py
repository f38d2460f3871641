"""`nn.DataParallel` replaced by its import line: `from autopar import DataParallel`.

    python examples/linear_dataparallel.py [--steps 100]

The module of the tutorials, `nn.Linear(10, 1)`, trained over two devices and beside it as a plain module with the
same data: same losses, same weights, same keys. With two GPUs it uses them, else two stand-ins (worker threads).
"""

import argparse
import copy

import torch
from torch import nn

from autopar import DataParallel


def train(net: nn.Module, steps: int, device: str) -> list[float]:
    """The losses of the usual loop on the same random data at each call."""
    draw = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    criterion = nn.MSELoss()
    truth = torch.randn(10, 1, generator=draw)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 10, generator=draw)
        y = x @ truth + 0.5
        optimizer.zero_grad()
        loss = criterion(net(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(steps: int) -> dict:
    """The keys, how the batch was cut, and how far losses, weights and an output are from the plain module's."""
    two = torch.cuda.device_count() >= 2
    device_ids: list = [0, 1] if two else ["emulated:0", "emulated:1"]
    device = "cuda:0" if two else "cpu"
    torch.manual_seed(0)
    plain = nn.Linear(10, 1).to(device)
    net = DataParallel(copy.deepcopy(plain), device_ids=device_ids)
    losses, expected = train(net, steps, device), train(plain, steps, device)
    cut = net.plan.costed.graph.split
    x = torch.randn(64, 10, device=device)
    with torch.no_grad():
        y, reference = net(x), plain(x)
    found = {
        "machine": ", ".join(net.machine.device) + (f" [{net.machine.label}]" if net.machine.label else ""),
        "keys": list(net.state_dict()),
        "split": cut,
        "first": losses[0],
        "last": losses[-1],
        "losses": max(abs(a - b) / abs(b) for a, b in zip(losses, expected)),
        "weights": max(apart(a, b) for a, b in zip(net.state_dict().values(), plain.state_dict().values())),
        "output": apart(y, reference),
    }
    net.close()
    return found


def apart(found: torch.Tensor, reference: torch.Tensor) -> float:
    """max|Δ| ÷ max|reference|."""
    return ((found - reference).abs().max() / reference.abs().max()).item()


def said(error: float) -> str:
    """An error in words: 0 is no rounding of something small."""
    return f"{error:.1e}" if error else "0 (bit for bit)"


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--steps", default=100, type=int)
    chosen = options.parse_args()
    found = compare(chosen.steps)
    print(f"nn.Linear(10, 1) on {found['machine']}; batch of 64 in {found['split'] or 'one part'}")
    print(f"state_dict keys: {found['keys']}")
    print(f"{chosen.steps} steps of SGD: loss {found['first']:.4f} to {found['last']:.2e}")
    print("against the plain module, max|Δ| ÷ max|reference|: "
          f"losses (each of its own) {said(found['losses'])}, "
          f"weights {said(found['weights'])}, output {said(found['output'])}")  # fmt: skip


if __name__ == "__main__":
    main()
