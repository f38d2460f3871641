"""Training with a split batch whose lengths vary: what is computed is eager's."""

import copy

import pytest
import torch
from models import eager_step
from torch import nn
from torch.nn import functional as F

import autopar

pytestmark = pytest.mark.slow

TWO = ["cpu", "emulated:0"]
WEIGHTS = torch.linspace(0.5, 2, 5).double()
LENGTHS = (6, 9, 12, 3, 12)


class Encoder(nn.Module):
    """Positions with a gradient of their own for each length, attention between them, and dropout."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(500, 8), nn.Embedding(40, 8)
        self.body, self.drop = nn.MultiheadAttention(8, 2, 0.2, batch_first=True), nn.Dropout(0.4)
        self.head = nn.Linear(8, 5)

    def forward(self, words):
        x = self.drop(self.words(words) + self.places(torch.arange(words.shape[1])))
        return self.head(x + self.body(x, x, x, need_weights=False)[0])


def classes(made, labels):
    return F.cross_entropy(made.flatten(0, 1), labels.flatten(), WEIGHTS)


def squares(made, labels):
    """A mean over all elements, and means over the positions and over the batch."""
    return (
        F.mse_loss(made, F.one_hot(labels, 5).double())
        + made.mean(1).square().sum()
        + made.mean(0).square().sum()
    )


def spread(made, labels):
    return made.var((0, 1)).sum()


def twins():
    torch.manual_seed(0)
    plain = Encoder().double()
    model = copy.deepcopy(plain)
    return plain, model, *(torch.optim.SGD(each.parameters(), 0.02, 0.9) for each in (plain, model))


def batch(length, rows=4):
    return torch.randint(20, (rows, length)), torch.randint(5, (rows, length))


def expected(plain, optimizer, loss, given, seed):
    torch.manual_seed(seed)
    found = eager_step(plain, loss, optimizer, given[0], given[1])
    return found.detach()


def equal(model, plain):
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("loss", "optimizer"),
    [
        (squares, None),
        *(pytest.param(*case, marks=pytest.mark.release) for case in ((classes, None), (spread, None))),
        pytest.param(classes, torch.optim.RMSprop, marks=pytest.mark.release),
    ],
)
def test_steps(loss, optimizer):
    plain, model, theirs, ours = twins()
    if optimizer is not None:
        theirs, ours = (optimizer(each.parameters(), 1e-3) for each in (plain, model))
    step = autopar.train_step(model, loss, ours, TWO, split=2, measure=False)
    for seed, length in enumerate(LENGTHS):
        given = batch(length)
        torch.manual_seed(seed)
        torch.testing.assert_close(step(*given), expected(plain, theirs, loss, given, seed))
    equal(model, plain)
