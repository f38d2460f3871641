"""Small models that train, and machines to train them on."""

import torch
from torch import nn

from autopar.ir.device import Device, Link
from autopar.ir.machine import Machine
from autopar.session.compare import error


def machine(devices=2, **caps):
    """A CPU and some stand-ins for accelerators on the real clock."""
    names = ["cpu", *(f"emulated:{index}" for index in range(devices))]
    made = [
        Device(name, "cpu" if name == "cpu" else "emulated", memory_bytes=caps.get(name.replace(":", "")))
        for name in names
    ]
    links = [Link(a, b, 1e-6, 1e10, f"{a}>{b}") for a in names for b in names if a != b]
    return Machine(tuple(made), tuple(links))


def alike(model, twin, most=1e-5):
    """Return True if the gradients of two models are equal within rounding, or None for the same parameters."""
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    return all(error(mine.grad, plain.grad) <= most for mine, plain in pairs)


def mlp(dtype=torch.float32):
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


class Convolved(nn.Module):
    """Convolutions with BatchNorm in training."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 4, 3), nn.Linear(4 * 4 * 4, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(self.second(x)).flatten(1))


class Tied(nn.Module):
    """One matrix for the embedding and the output."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(torch.tanh(self.mix(self.embed(tokens))))


class Heads(nn.Module):
    """Two outputs on one trunk, one of them not differentiable, and a dictionary."""

    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x):
        h = torch.tanh(self.trunk(x))
        left = self.left(h)
        return {"left": left, "right": self.right(h), "best": left.argmax(1)}


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 3)

    def forward(self, x):
        return self.second(self.drop(torch.relu(self.first(x))))
