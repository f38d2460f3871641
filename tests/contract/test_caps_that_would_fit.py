"""The caps that a MemoryCapError says would fit, for the same model, arguments and options."""

import re

import pytest
import torch
from torch import nn

import autopar

pytestmark = pytest.mark.slow

TWO = ["cpu", "emulated:0"]


class Tied(nn.Module):
    """Words, a layer of attention, and their scores by the weight of the words."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 24)
        self.layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True)
        self.out = nn.Linear(24, 100, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        return self.out(self.layer(self.words(x)))


def called(devices, memory, **options):
    with torch.no_grad():
        return autopar.compile(Tied().eval(), devices, memory=memory, **options)(batch())


def trained(devices, memory, **options):
    return autopar.compile(Tied(), devices, memory=memory, **options)(batch()).sum().backward()


def stepped(devices, memory, **options):
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    step = autopar.train_step(
        model, lambda made, given: made.sum(), optimizer, devices, memory=memory, **options
    )
    for _ in range(2):
        step(batch(), batch())


def planned(devices, memory, **options):
    return autopar.plan(Tied(), devices, example_inputs=(batch(),), memory=memory, **options)


def batch():
    return torch.arange(96).reshape(4, 24)


@pytest.mark.parametrize(
    "call, devices, options",
    [
        (called, ["cpu*2"], {"split": "features"}),
        (called, ["cpu*2"], {"split": "features", "policy": "round_robin"}),
        (called, TWO, {"split": 2}),
        (planned, ["cpu*2"], {"split": "features"}),
        (trained, TWO, {"policy": "round_robin"}),
        (stepped, TWO, {"home": "cpu"}),
    ],
    ids=["features", "features in turn", "parts", "a plan", "a loop", "a step"],
)
def test_what_would_fit_fits(call, devices, options):
    torch.manual_seed(0)
    memory = {"cpu": 60_000, **({"emulated:0": 30_000} if devices is TWO else {})}
    with pytest.raises(autopar.MemoryCapError) as refused:
        call(devices, memory, **options)
    said = re.search(r"memory=(\{.*?\}) would fit", str(refused.value))
    assert said, str(refused.value)
    wanted = dict(re.findall(r"'([\w:]+)': (\d+)", said[1]))
    torch.manual_seed(0)
    call(devices, {**memory, **{name: int(nbytes) for name, nbytes in wanted.items()}}, **options)
