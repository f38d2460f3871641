"""Outputs of a model in training that the caller changes in place, or leaves unused."""

import copy

import pytest
import torch
from machines import machine
from torch import nn

import autopar
from autopar.runtime.autograd_bridge import unalias


class Shows(nn.Module):
    """Returns views of a weight and of a buffer that its backward does not read, and of its input."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 3))
        self.register_buffer("b", torch.randn(6, 3))

    def forward(self, x):
        return (self.w * 1).sum() * x, self.w.t(), self.b.t(), x.t()


@pytest.mark.parametrize("way", [["cpu"], None], ids=["one", "three"])
def test_writes_to_returned_views_do_not_reach_the_callers_tensors(way):
    model, x = Shows(), torch.randn(8, 6)
    before = {name: tensor.clone() for name, tensor in [*model.state_dict().items(), ("x", x)]}
    fast = autopar.compile(model, way or machine(), policy="round_robin")
    for _ in range(2):
        _, *views = fast(x)
        for view in views:
            view.mul_(0)
    for name, tensor in [*model.state_dict().items(), ("x", x)]:
        assert torch.equal(tensor, before[name]), name
    fast.close()


def test_without_gradients_a_view_of_a_weight_is_the_weights_as_in_eager():
    """Torch sees such a write, and so do the copies on other devices."""
    model, x = Shows(), torch.randn(8, 6)
    fast = autopar.compile(model, ["cpu", "emulated:0"], policy="round_robin")
    with torch.no_grad():
        for _ in range(2):
            _, turned, _, _ = fast(x)
            seen = model.w._version, model.w.clone()
            turned.mul_(2)
            assert torch.equal(model.w, seen[1]) == (model.w._version == seen[0])
            for ours, eager in zip(fast(x), model(x)):
                torch.testing.assert_close(ours, eager)
    fast.close()


def test_outputs_are_the_callers_own():
    weight, made, saved = torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 3)
    one, two = made[:2], made[2:]
    found = unalias([weight, weight.t(), saved, saved[:2], one, two, torch.ones(2)[:1]], [weight], [saved])
    memory = [tensor.untyped_storage().data_ptr() for tensor in found]
    assert weight.untyped_storage().data_ptr() not in memory
    for ours, theirs in zip(found, [weight, weight.t(), saved, saved[:2], one, two]):
        assert torch.equal(ours, theirs)
    # What is saved is seen by autograd, unless a view of it is changed; views of one another stay so.
    assert found[2] is saved and memory[3] != saved.untyped_storage().data_ptr()
    assert found[4] is one and found[5] is two and not found[6]._is_view()


class Auxiliary(torch.autograd.Function):
    """Lets a value pass, and gives a loss beside it the gradient 0.5, whatever becomes of the value."""

    @staticmethod
    def forward(ctx, value, loss):
        ctx.save_for_backward(loss)
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, torch.full_like(ctx.saved_tensors[0], 0.5)


class Balanced(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.gate = nn.Linear(6, 4), nn.Parameter(torch.randn(4))

    def forward(self, x):
        found = self.first(x)
        return Auxiliary.apply(found, self.gate.square().sum()), 2 * found


@pytest.mark.slow
@pytest.mark.parametrize("check", ["first", "never"])
def test_a_gradient_that_a_custom_backward_makes_up_is_eagers(check):
    model, x = Balanced(), torch.randn(8, 6)
    twin, fast = copy.deepcopy(model), autopar.compile(model, machine(), policy="round_robin", check=check)
    for call in (fast, twin):
        one, other = call(x)
        (one.sum() + other.sum()).backward()
    for ours, theirs in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)
    # Eager would call that backward for the one and not for the other, which no graph tells.
    with pytest.raises(autopar.RunError, match=r"gate.*every output"):
        fast(x)[1].sum().backward()
    fast.close()


class Heads(nn.Module):
    """Two outputs with layers of their own."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Sequential(*(nn.Linear(6, 6) for _ in range(6))) for _ in range(2))

    def forward(self, x):
        return tuple(head(x) for head in self.heads)


@pytest.mark.slow
def test_a_head_that_the_loss_does_not_read_has_no_gradient_in_a_split_batch():
    """Sums of gradients share buckets; zeros instead of None would let an optimizer decay its weights."""
    plain = Heads().double()
    model = copy.deepcopy(plain)
    fast = autopar.compile(model, ["cpu", "emulated:0"], split=2)
    theirs, ours = (torch.optim.AdamW(each.parameters(), 0.01) for each in (plain, model))
    for used in (0, 1, 1, 0):
        x = torch.randn(4, 6).double()
        for each, optimizer in ((plain, theirs), (fast, ours)):
            optimizer.zero_grad()
            each(x)[used].square().sum().backward()
            optimizer.step()
        for one, other in zip(model.parameters(), plain.parameters()):
            assert (one.grad is None) == (other.grad is None)
            torch.testing.assert_close(one, other)
    fast.close()


class Pieces(nn.Module):
    """Two outputs whose gradients are joined by one operator; the first is half as long as the argument."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)

    def forward(self, x):
        made, half = self.body(x).tanh(), x.shape[1] // 2
        return made.split([half, x.shape[1] - half], 1)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"split": 2}], ids=["whole", "parts"])
def test_the_gradient_of_an_unused_output_has_the_size_of_the_call(given):
    """One program serves all lengths, and so do the zeros that stand for the gradient."""
    plain = Pieces().double()
    model = copy.deepcopy(plain)
    fast = autopar.compile(model, ["cpu", "emulated:0"] if given else ["cpu"], check="never", **given)
    for length in (6, 9, 7, 12, 5):
        x = torch.randn(4, length, 6).double()
        for used in (0, 1):
            for each in (plain, fast):
                each.zero_grad()
                each(x)[used].square().sum().backward()
            for one, other in zip(model.parameters(), plain.parameters()):
                torch.testing.assert_close(one.grad, other.grad)
    fast.close()
