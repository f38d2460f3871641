"""The quickstart of the PyTorch tutorials, on every device, for one changed line.

    python examples/fashion_mnist.py [--data DIR] [--epochs 5] [--batch N] [--lr RATE] [--devices cpu …]

A 784-512-512-10 MLP, SGD, cross entropy. `--data` is the folder with the files of FashionMNIST as they are published
(train-images-idx3-ubyte and so on, `.gz` or not), in batches of 1024 at 2e-3; without it scikit-learn's digits (1,797
of them, 8 × 8, padded to 28 × 28) stand in, in batches of 32 at 0.05: of 1024 an epoch would have two, which teach
nothing. A plain twin is trained on the same batches, in the same order, and both accuracies are printed.
"""

import argparse
import copy
import gzip
import struct
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import autopar

FASHION = {"batch": 1024, "lr": 2e-3}
DIGITS = {"batch": 32, "lr": 0.05}
"""An epoch is then 45 batches, and five of them teach it."""


class NeuralNetwork(nn.Module):
    """The tutorial's."""

    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear_relu_stack = nn.Sequential(
            nn.Linear(28 * 28, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, 10),
        )

    def forward(self, x):
        x = self.flatten(x)
        logits = self.linear_relu_stack(x)
        return logits


def train(dataloader, model, loss_fn, optimizer, device, progress):
    """The tutorial's, with a bar where it prints."""
    model.train()
    for batch, (X, y) in enumerate(dataloader):
        X, y = X.to(device), y.to(device)

        # Compute prediction error
        pred = model(X)
        loss = loss_fn(pred, y)

        # Backpropagation
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

        progress(batch + 1, len(dataloader), loss)


def test(dataloader, model, loss_fn, device):
    """The tutorial's: accuracy as a share, and the mean loss of a batch."""
    size = len(dataloader.dataset)
    num_batches = len(dataloader)
    model.eval()
    test_loss, correct = 0, 0
    with torch.no_grad():
        for X, y in dataloader:
            X, y = X.to(device), y.to(device)
            pred = model(X)
            test_loss += loss_fn(pred, y).item()
            correct += (pred.argmax(1) == y).type(torch.float).sum().item()
    test_loss /= num_batches
    correct /= size
    return correct, test_loss


class Bar:
    """A progress bar on a terminal; silent elsewhere."""

    def __init__(self, title: str) -> None:
        self.title, self.began = title, time.perf_counter()

    def __call__(self, done: int, of: int, loss: torch.Tensor) -> None:
        if not sys.stderr.isatty():
            return
        filled = 30 * done // of
        rate = done / (time.perf_counter() - self.began)
        bar = "█" * filled + "·" * (30 - filled)
        end = "\n" if done == of else ""
        print(f"\r{self.title} {bar} {done}/{of}  {rate:.1f} batches/s  loss {loss.item():.4f}", end=end,
              file=sys.stderr, flush=True)  # fmt: skip


def read_idx(folder: Path, name: str) -> torch.Tensor:
    """The bytes of an IDX file, gzipped or not, in their shape."""
    there = [folder / f"{name}{suffix}" for suffix in ("", ".gz") if (folder / f"{name}{suffix}").exists()]
    if not there:
        raise SystemExit(
            f"{folder} has no {name} and no {name}.gz; give --data the folder of FashionMNIST's files"
        )
    data = there[0].read_bytes()
    if there[0].suffix == ".gz":
        data = gzip.decompress(data)
    zero, kind, axes = struct.unpack(">HBB", data[:4])
    if zero or kind != 8:
        raise SystemExit(f"{there[0]} is no IDX file of bytes")
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    return torch.frombuffer(bytearray(data[4 + 4 * axes :]), dtype=torch.uint8).reshape(shape)


def fashion(folder: Path) -> tuple[Dataset, Dataset, str]:
    """Training and test data from FashionMNIST's own files: (images, 1, 28, 28) from 0 to 1, and classes."""
    sets = []
    for part in ("train", "t10k"):
        images, labels = (
            read_idx(folder, f"{part}-images-idx3-ubyte"),
            read_idx(folder, f"{part}-labels-idx1-ubyte"),
        )
        sets.append(TensorDataset(images.unsqueeze(1).float() / 255, labels.long()))
    return sets[0], sets[1], f"FashionMNIST from {folder}: {len(sets[0])} images, {len(sets[1])} to test"


def digits() -> tuple[Dataset, Dataset, str]:
    """scikit-learn's 1,797 digits, 8 × 8 doubled and padded to 28 × 28; every fifth one is for the test."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise SystemExit(
            "scikit-learn, whose digits stand in for FashionMNIST, is not installed: pip install -e '.[examples]', or "
            "give --data the folder of FashionMNIST's files"
        ) from None

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    images = nn.functional.pad(nn.functional.interpolate(images, scale_factor=2), (6, 6, 6, 6))
    labels = torch.tensor(found.target).long()
    aside = torch.arange(len(labels)) % 5 == 0
    sets = TensorDataset(images[~aside], labels[~aside]), TensorDataset(images[aside], labels[aside])
    return *sets, f"scikit-learn's digits: {len(sets[0])} images, {len(sets[1])} to test"


def devices() -> list[str]:
    """All GPUs, or two stand-ins."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *(gpus or ["emulated:0", "emulated:1"])]


def run(model, learner, data, epochs: int, batch: int, lr: float, device: str, title: str) -> dict:
    """Train and test for so many epochs: accuracy after each, the last test loss, seconds, and the classes found."""
    training, held_out, _ = data
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    order = torch.Generator().manual_seed(0)
    accuracies, loss = [], 0.0
    start = time.perf_counter()
    for epoch in range(epochs):
        loader = DataLoader(training, batch_size=batch, shuffle=True, generator=order)
        train(loader, learner, loss_fn, optimizer, device, Bar(f"{title} epoch {epoch + 1}"))
        accuracy, loss = test(DataLoader(held_out, batch_size=batch), learner, loss_fn, device)
        accuracies.append(accuracy)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        classes = [learner(X.to(device)).argmax(1) for X, _ in DataLoader(held_out, batch_size=batch)]
    return {"accuracy": accuracies, "seconds": seconds, "loss": loss, "classes": torch.cat(classes)}


def compare(
    data, epochs: int = 5, batch: int = 1024, lr: float = 2e-3, on: list[str] | None = None, split="auto"
) -> dict:
    """Both runs, how many images they class differently, and how far apart the weights are."""
    torch.manual_seed(0)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    model = NeuralNetwork().to(device)
    plain = copy.deepcopy(model)

    fast = autopar.compile(model, on or devices(), split=split)  # the one line

    found = {
        name: run(trained, learner, data, epochs, batch, lr, device, name)
        for name, trained, learner in (("compiled", model, fast), ("plain", plain, plain))
    }
    found["differ"] = int((found["compiled"]["classes"] != found["plain"]["classes"]).sum())
    pairs = zip(model.state_dict().values(), plain.state_dict().values())
    found["weights"] = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
    graph = fast.plan.costed.graph
    found["plan"] = (
        f"{graph.split or 'batch not split'} on {', '.join(sorted({p.device for p in fast.plan.placed}))}"
    )
    found["machine"] = ", ".join(fast.machine.device) + (
        f" [{fast.machine.label}]" if fast.machine.label else ""
    )
    fast.close()
    return found


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--data", type=Path, help="folder of FashionMNIST's IDX files (default: scikit-learn's digits)"
    )
    options.add_argument("--epochs", default=5, type=int)
    options.add_argument("--batch", type=int, help="default: 1024, of the digits 32")
    options.add_argument("--lr", type=float, help="default: 2e-3, for the digits 0.05")
    options.add_argument("--devices", nargs="+", help="default: the CPU and all GPUs, or two stand-ins")
    options.add_argument(
        "--split",
        default="auto",
        type=lambda text: text if text == "auto" else int(text),
        help="parts, or auto",
    )
    chosen = options.parse_args()
    data = fashion(chosen.data) if chosen.data else digits()
    usual = FASHION if chosen.data else DIGITS
    batch, lr = chosen.batch or usual["batch"], chosen.lr or usual["lr"]
    print(f"{data[2]}; {chosen.epochs} epochs of batches of {batch}, SGD at {lr:g}")
    found = compare(data, chosen.epochs, batch, lr, chosen.devices, chosen.split)
    print(f"{found['machine']}; the last plan: {found['plan']}")
    if not chosen.devices and chosen.split == "auto" and "not split on cpu" in found["plan"]:
        print("where the CPU alone is faster it stays there; --split 3 has every device work")
    for name in ("compiled", "plain"):
        accuracies = ", ".join(f"{100 * accuracy:.2f}%" for accuracy in found[name]["accuracy"])
        print(f"{name:>9}: accuracy after each epoch {accuracies}; test loss {found[name]['loss']:.6f}; "
              f"{found[name]['seconds']:.1f} s")  # fmt: skip
    if max(found["plain"]["accuracy"]) < 0.2:
        print("nothing was learnt, so that equal accuracies say little: try more --epochs, a smaller --batch, a "
              "larger --lr")  # fmt: skip
    same = "equal" if found["compiled"]["accuracy"] == found["plain"]["accuracy"] else "NOT equal"
    print(f"accuracies {same}; {found['differ']} of {len(data[1])} images classed differently at the end; "
          f"weights max|Δ| ÷ max|plain| {found['weights']:.1e} (the worst tensor)")  # fmt: skip


if __name__ == "__main__":
    main()
