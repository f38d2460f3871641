"""What a trace would lose in silence is in the graph, or refused with the line and what to type."""

import threading

import pytest
import torch
from capture_models import Does, x
from joint_models import agrees
from torch import nn
from torch.autograd import grad

from autopar.capture.joint import joint
from autopar.errors import CaptureError


class Sevenfold(torch.autograd.Function):
    """A square whose gradient is wrong on purpose."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return ctx.factor * g * x, None


class Several(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x + y, x * y, 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[0])

    @staticmethod
    def backward(ctx, a, b, c):
        x, y = ctx.saved_tensors
        return 2 * b * y, 3 * b * x


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return -g


class Named(torch.autograd.Function):
    """A product whose gradient is wrong on purpose, and whose factor has a default."""

    @staticmethod
    def forward(x, factor=3):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return 7 * ctx.factor * g, None


class Around(torch.autograd.Function):
    """Calls another, by hand and by `apply`."""

    @staticmethod
    def forward(x):
        return Named.apply(x) + Named.forward(x, 4)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return 11 * g


sevenfold = Sevenfold.apply


def model(body, **children):
    torch.manual_seed(0)
    return Does(body, linear=nn.Linear(4, 4), **children)


def functions(m, x):
    h = sevenfold(m.linear(x), 7) + Reversed.apply(m.linear(x))
    total, product, number = Several.apply(h, m.linear.weight.sum())
    return total, product.sum() * number


def forwards(m, x):
    """Called by hand, as functions of torch: their own backward has no part in it."""
    context = torch.autograd.function.FunctionCtx()
    return Sevenfold.forward(context, m.linear(x), 7) + Named.forward(m.linear(x)) + Named.apply(m.linear(x))


def between(m, x):
    """One that is called while the other is, and by hand after it."""
    return (
        Around.apply(m.linear(x)) + Around.forward(m.linear(x)) + Named.apply(Named.apply(x * m.linear.bias))
    )


def keywords(m, x):
    return sevenfold(m.linear(x), factor=7) + Named.apply(m.linear(x), factor=5)


def inside_no_grad(m, x):
    with torch.no_grad():
        y = Sevenfold.apply(m.linear(x), 7)
    return y * m.linear(x)


def hooked(m, x):
    h = m.linear(x)
    early = h * 2
    h.register_hook(lambda g: g * 3)
    return early + h.relu()


def penalty(m, x):
    x = x.detach().requires_grad_()
    (slope,) = grad(m.linear(x).tanh().sum(), x, create_graph=True)
    return ((slope.norm(2, dim=1) - 1) ** 2).mean()


def constant_gradient(m, x):
    (slope,) = grad(m.linear(x).pow(2).sum(), m.linear.weight)
    return (slope * m.linear.weight).sum()


def physics(m, x):
    x = x.clone().requires_grad_()
    u = m.linear(x).tanh()
    (d,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
    (dd,) = torch.autograd.grad(d.sum(), x, create_graph=True)
    return (dd + u).pow(2).mean()


def mapped(m, x):
    return torch.func.vmap(m.linear)(x)


@pytest.mark.parametrize(
    "body", [functions, forwards, between, inside_no_grad, hooked, penalty, constant_gradient, physics, mapped],
    ids=lambda body: body.__name__,
)  # fmt: skip
def test_what_forward_asks_of_autograd_is_kept(body):
    agrees(model(body), (x(),))


def test_arguments_of_a_function_by_name():
    network = model(keywords)
    try:
        network(x())
    except TypeError:
        pytest.skip("apply of this torch takes no keywords")
    agrees(network, (x(),))


def test_the_wrong_gradient_is_the_one_captured():
    plain, seven = (
        model(lambda m, x: (m.linear(x) ** 2).sum()),
        model(lambda m, x: sevenfold(m.linear(x), 7).sum()),
    )
    counts = [len(joint(each, (x(),)).graph.tasks) for each in (plain, seven)]
    assert all(counts)
    captured = agrees(seven, (x(),))
    assert any(7 in task.args for task in captured.graph.tasks if task.phase == "backward")


def test_hooks_of_parameters_do_not_stop_capture():
    network = model(lambda m, x: m.linear(x))
    network.linear.weight.register_hook(lambda g: g * 1)
    agrees(network, (x(),))


def test_forward_hooks_that_change_the_output_are_traced():
    network = model(lambda m, x: m.linear(x))
    network.linear.register_forward_hook(lambda module, args, output: output * 2)
    agrees(network, (x(),))


class Recorder:
    """A hook that keeps what it sees, as an attribute."""

    def __init__(self):
        self.seen = None

    def __call__(self, module, args, output):
        self.seen = output

    def method(self, module, args, output):
        self.seen = output


class Extractor(nn.Module):
    """A module around the one that is called, whose hook keeps features by name."""

    def __init__(self):
        super().__init__()
        self.seen = None
        self.features = {}

    def hook(self, module, args, output):
        self.features["linear"] = self.seen = output


FEATURES = {}


def in_a_global(module, args, output):
    FEATURES["linear"] = output


def in_a_variable():
    kept = None

    def hook(module, args, output):
        nonlocal kept
        kept = output

    return hook


@pytest.mark.parametrize(
    "hook", [Recorder(), Recorder().method, Extractor().hook, in_a_global, in_a_variable()]
)
def test_forward_hooks_that_keep_a_tensor(hook):
    network = model(lambda m, x: m.linear(x))
    handle = network.linear.register_forward_hook(hook)
    with pytest.raises(CaptureError, match=r"forward hook .* of linear keeps a tensor in .*handle\.remove"):
        joint(network, (x(),))
    assert not FEATURES and getattr(getattr(hook, "__self__", hook), "seen", None) is None
    network(x())
    FEATURES.clear()
    handle.remove()
    agrees(network, (x(),))


def test_forward_hooks_that_count_are_noted():
    network = model(lambda m, x: m.linear(x))
    calls = []
    network.linear.register_forward_hook(lambda *args: calls.append(1))
    (note,) = joint(network, (x(),)).notes
    assert "of linear changes calls" in note and not calls


def test_backward_hooks_of_modules():
    network = model(lambda m, x: m.linear(x))
    for register in (
        network.linear.register_full_backward_hook,
        network.linear.register_full_backward_pre_hook,
    ):
        handle = register(lambda *args: None)
        with pytest.raises(CaptureError, match=r"backward hook .* of linear .*handle\.remove"):
            joint(network, (x(),))
        handle.remove()
    joint(network, (x(),))


def test_other_threads_keep_their_autograd():
    """While one thread captures, what another asks of autograd is its own."""
    network = model(lambda m, x: (m.linear(x), entered.set(), done.wait(20))[0])
    entered, done = threading.Event(), threading.Event()
    failures = []

    def capture():
        try:
            joint(network, (x(),))
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        assert entered.wait(20)
        weight = torch.ones(3, requires_grad=True)
        made = Sevenfold.apply(weight * 1, 7)
        seen = []
        made.register_hook(seen.append)
        made.retain_grad()
        made.sum().backward()
    finally:
        done.set()
        thread.join()
    assert not failures
    assert weight.grad.tolist() == [7.0] * 3 and len(seen) == 1 and made.grad is not None
