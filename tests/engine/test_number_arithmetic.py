"""Numbers that vary, computed as Python does, and captured for each value where torch needs that."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from varying import VALUES, Scaled, alike, captures

import autopar
from autopar.system import versions

pytestmark = pytest.mark.slow


ALONE = {
    "a text": lambda y, t: y * len(f"{t:.3g}"),
    "a complex number": lambda y, t: torch.exp(1j * t * y).real,
    "divmod": lambda y, t: y * divmod(t, 0.25)[1],
}
"""What torch can do with a number and not with a symbol."""


@pytest.mark.parametrize("way", ALONE)
def test_what_torch_cannot_do_with_a_symbol_is_captured_for_each_value(way):
    class Alone(Scaled):
        def forward(self, x, t):
            return ALONE[way](self.linear(x), t)

    model = Alone()
    fast = autopar.compile(model, ["cpu"])
    for value in VALUES[:3]:
        x = torch.randn(3, 4)
        assert torch.equal(fast(x, value), model(x, value))
    if versions.release(torch.__version__) >= (2, 13):
        # Earlier releases capture a part before what they cannot do, or give up the frame once more.
        assert captures(fast) == 3
        assert not fast._placement.backend.notes()[1:]
    fast.close()


def test_a_training_step_takes_a_float_that_torch_cannot_open():
    model = nn.Linear(4, 4)
    twin = copy.deepcopy(model)
    made, plain = (torch.optim.SGD(each.parameters(), 0.01) for each in (model, twin))

    def loss(model, x, t):
        return (model(x) * (divmod(t, 0.25)[1] if math.isfinite(t) else 0.0)).square().mean()

    step = autopar.train_step(model, None, made, ["cpu"], step_fn=loss)
    for value in VALUES[:3]:
        x = torch.randn(3, 4)
        plain.zero_grad()
        right = loss(twin, x, value)
        right.backward()
        plain.step()
        assert torch.allclose(step(x, value), right)
    assert torch.allclose(model.weight, twin.weight)
    step.close()


@pytest.mark.parametrize("rows", [3, None])
def test_floats_are_divided_to_whole_numbers_as_in_python(rows):
    class Whole(nn.Module):
        def forward(self, x, t):
            y = x * (t // 0.2) + 1.0 // t + x.shape[0] // 0.1 + (t // 0.5) % 3 + -t % 0.3
            return y if t // 0.1 > 9 else -y

    model = Whole()
    fast = autopar.compile(model, ["cpu"], check="never")
    # For 1.0, 2.0 and 3.0 Python's quotients are less than torch's.
    for value in (0.3, 0.7, 1.0, 0.1, 2.0, 3.0):
        x = torch.ones(rows or int(value * 10), 4)
        assert torch.equal(fast(x, value), model(x, value))
    assert captures(fast) == 6
    fast.close()


@pytest.mark.release
def test_what_torch_cannot_compute_from_a_symbol_is_captured_for_each_value():
    class Power(nn.Module):
        """Its derivative takes the logarithm of the float."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, t):
            return torch.pow(abs(t) + 1, self.linear(x)) * math.sin(t)

    model = Power()
    fast = autopar.compile(model, ["cpu"])
    for value in VALUES[:3]:
        x = torch.randn(3, 4)
        ours, right = fast(x, value), model(x, value)
        assert torch.equal(ours, right)
        gradients = (torch.autograd.grad(each.sum(), model.linear.weight)[0] for each in (ours, right))
        torch.testing.assert_close(*gradients)
    assert captures(fast) == 3
    fast.close()


def test_a_count_that_torch_cannot_trace_as_a_symbol_is_captured_for_each_value():
    class Power(nn.Module):
        """torch compares the exponent with zero in a way that symbols lack."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, n):
            return self.linear(x) ** n

    model = Power()
    fast = autopar.compile(model, ["cpu"])
    for n, rows in ((2, 3), (3, 5), (4, 6), (3, 7)):
        x = torch.randn(rows, 4)
        ours, right = fast(x, n), model(x, n)
        assert torch.equal(ours, right)
        gradients = (torch.autograd.grad(each.sum(), model.linear.weight)[0] for each in (ours, right))
        torch.testing.assert_close(*gradients)
    # The rows stay open.
    assert captures(fast) <= 3
    fast.close()


def test_what_no_graph_can_hold_is_not_captured_for_each_value():
    class Sparse(nn.Module):
        """A layer with a sparse gradient."""

        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(9, 4, sparse=True)

        def forward(self, ids, t):
            return self.words(ids) * t

    model, ids = Sparse(), torch.arange(6)
    fast = autopar.compile(model, ["cpu"])
    for value in (0.1, 0.2, 0.3, 0.4):
        assert torch.equal(fast(ids, value), model(ids, value))
    assert len(fast._placement.backend.served) == 2
    fast.close()


@pytest.mark.release
def test_so_is_a_training_step():
    model = nn.Linear(4, 4)
    twin = copy.deepcopy(model)
    made, plain = (torch.optim.SGD(each.parameters(), 0.01) for each in (model, twin))

    def loss(model, x, t):
        return torch.pow(abs(t) + 1, model(x)).mean()

    step = autopar.train_step(model, None, made, ["cpu"], step_fn=loss)
    for value in VALUES[:3]:
        x = torch.randn(3, 4)
        plain.zero_grad()
        right = loss(twin, x, value)
        right.backward()
        plain.step()
        assert torch.allclose(step(x, value), right)
    assert torch.allclose(model.weight, twin.weight)
    step.close()


@pytest.mark.parametrize("training", [False, True])
def test_a_number_that_is_not_defined_is_an_error_of_its_call_alone(training):
    class Quotient(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, t, n):
            return self.linear(x) * (t / n) * math.sqrt(t)

    model = Quotient()
    fast = autopar.compile(model, ["cpu"])
    x = torch.randn(3, 4)
    with torch.set_grad_enabled(training):
        for t, n in ((0.1, 1), (0.2, 2), (0.3, 3)):
            assert torch.equal(fast(x, t, n), model(x, t, n))
        with pytest.raises(ZeroDivisionError):
            fast(x, 0.4, 0)
        with pytest.raises(ValueError, match=r"domain|nonnegative"):
            fast(x, -1.0, 5)
        assert torch.equal(fast(x, 0.6, 6), model(x, 0.6, 6))
    assert captures(fast) == 2
    fast.close()


def test_a_float_of_any_magnitude_is_no_size():
    """It lets no tensor grow."""

    class Times(Scaled):
        def forward(self, x, t):
            return (self.linear(x) * t,)

    model = Times()
    fast = autopar.compile(model, ["cpu"], memory={"cpu": "1MiB"})
    x = torch.randn(3, 4)
    with torch.no_grad():
        for value in (1e-3, 1e-5, 1e5, 1e300, 5e-324):
            alike(fast(x, value), model(x, value))
    assert captures(fast) == 2
    assert [len(served.programs) for served in fast._placement.backend.served] == [0, 1]
    fast.close()


def test_arithmetic_with_a_float_is_that_of_python():
    """sympy, by which torch knows such numbers, reorders sums and products."""

    class Sums(nn.Module):
        """Numbers that a call makes from a float and from the number of rows."""

        def forward(self, x, t):
            n = x.shape[0]
            made = (
                t * 0.1 * 10,
                t + 0.1 + 0.2,
                (t * n + n // 2) / 7.7,
                math.sin(t),
                -t % 0.3,
                int(t * 10 * 10),
            )
            return *made, *(x * number for number in made)

    model = Sums()
    fast = autopar.compile(model, ["cpu"])
    for value in (0.1, 0.2, 1.0, 2.5, 0.29, 0.57, 3.0, -0.0, 1e10):
        for rows in (4, 5):
            x = torch.randn(rows, 3, dtype=torch.float64)
            alike(fast(x, value), model(x, value))
    assert captures(fast) <= 3
    fast.close()


def test_floats_of_counts_are_pythons():
    class Rates(Scaled):
        def forward(self, x, count):
            return (
                self.linear(x) * (0.1 * count - count / 3),
                0.1 * count * count - count,
                count / 7 + count * 0.2,
            )

    model = Rates()
    fast, x = autopar.compile(model, ["cpu"]), torch.randn(3, 4)
    for count in range(2, 9):
        (found, *ours), (right, *theirs) = fast(x, count), model(x, count)
        assert torch.equal(found, right) and ours == theirs
    assert captures(fast) <= 2
    fast.close()
