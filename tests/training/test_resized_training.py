"""Training with a split batch whose lengths vary: two programs serve all, and what they compute is eager's."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autopar

pytestmark = pytest.mark.slow

TWO = ["cpu", "emulated:0"]
WEIGHTS = torch.linspace(0.5, 2, 5).double()
LENGTHS = (6, 9, 12, 3, 12)
"""The last is called again: a signature of other sizes is first compared with eager."""


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
    optimizer.zero_grad()
    found = loss(plain(given[0]), given[1])
    found.backward()
    optimizer.step()
    return found.detach()


def equal(model, plain):
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one, other)


def trained(loss, lengths=LENGTHS, optimizer=None):
    """The training step after steps of these lengths, each equal to that of a plain loop."""
    plain, model, theirs, ours = twins()
    if optimizer is not None:
        theirs, ours = (optimizer(each.parameters(), 1e-3) for each in (plain, model))
    step = autopar.train_step(model, loss, ours, TWO, split=2)
    for seed, length in enumerate(lengths):
        given = batch(length)
        torch.manual_seed(seed)
        torch.testing.assert_close(step(*given), expected(plain, theirs, loss, given, seed))
    equal(model, plain)
    return step


@pytest.mark.parametrize("loss", [squares, pytest.param(classes, marks=pytest.mark.release)])
def test_steps(loss):
    step = trained(loss)
    # The first is of a graph for one length.
    assert len(step._signatures.kept[-1]) == 2
    assert step._signatures.latest._whole is not None


@pytest.mark.release
def test_a_number_known_for_the_sizes_of_one_call_alone():
    """A variance divides by one less than the number of elements."""
    assert len(trained(spread, LENGTHS[:4])._signatures.kept[-1]) == 3


@pytest.mark.release
def test_an_optimizer_that_steps_by_itself():
    assert len(trained(classes, optimizer=torch.optim.RMSprop)._signatures.kept[-1]) == 2


@pytest.mark.release
def test_a_loop():
    plain, model, theirs, ours = twins()
    fast = autopar.compile(model, TWO, split=2)
    for seed, length in enumerate(LENGTHS):
        given = batch(length)
        torch.manual_seed(seed)
        ours.zero_grad()
        found = squares(fast(given[0]), given[1])
        found.backward()
        ours.step()
        torch.testing.assert_close(found.detach(), expected(plain, theirs, squares, given, seed))
    equal(model, plain)
    assert len(fast._placement.backend.served[-1].programs) == 2
