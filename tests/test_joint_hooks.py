"""What a trace would lose in silence is in the graph, or refused with the line and what to type."""

import threading
import warnings

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


sevenfold = Sevenfold.apply


def model(body, **children):
    torch.manual_seed(0)
    return Does(body, linear=nn.Linear(4, 4), **children)


def functions(m, x):
    h = sevenfold(m.linear(x), 7) + Reversed.apply(m.linear(x))
    total, product, number = Several.apply(h, m.linear.weight.sum())
    return total, product.sum() * number


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
    "body", [functions, inside_no_grad, hooked, penalty, constant_gradient, physics, mapped],
    ids=lambda body: body.__name__,
)  # fmt: skip
def test_what_forward_asks_of_autograd_is_kept(body):
    agrees(model(body), (x(),))


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


KEPT = []
CALLS = []


def keeps(m, x):
    def hook(g):
        KEPT.append(g)
        return g

    h = m.linear(x)
    h.register_hook(hook)
    return h


def counts(m, x):
    def hook(g):
        CALLS.append(1)
        return g

    h = m.linear(x)
    h.register_hook(hook)
    return h


def prints(m, x):
    h = m.linear(x)
    h.register_hook(lambda g: None)
    return h


def reads(m, x):
    h = m.linear(x)
    mask = h > 0
    h.register_hook(lambda g: g * mask)
    return h


def removes(m, x):
    h = m.linear(x)
    h.register_hook(lambda g: g * 2).remove()
    return h


def on_a_parameter(m, x):
    m.linear.weight.register_hook(lambda g: g * 2)
    return m.linear(x)


def on_a_node(m, x):
    h = m.linear(x)
    h.grad_fn.register_hook(lambda i, o: i)
    return h


def retains(m, x):
    h = m.linear(x)
    h.retain_grad()
    return h


def packs(m, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()):
        return m.linear(x).sin()


def accumulates(m, x):
    m.linear(x).sum().backward()
    return m.linear(x)


def reentrant(m, x):
    return torch.utils.checkpoint.checkpoint(m.linear, x * m.linear.bias, use_reentrant=True)


def writes_a_parameter(m, x):
    with torch.no_grad():
        m.linear.weight.clamp_(-1, 1)
    return m.linear(x)


def writes_what_backward_needs(m, x):
    h = m.linear(x).tanh()
    h.mul_(2)
    return h


def gives_a_buffer_a_gradient(m, x):
    m.total.copy_(m.linear(x).mean(0))
    return m.linear(x)


def stores(m, x):
    m.last = m.linear(x)
    return m.last


def branches(m, x):
    return m.linear(x) if x.sum() > 0 else m.linear(-x)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (keeps, "keeps gradients in KEPT.*return the tensor"),
        (counts, "changes CALLS.*return the tensor"),
        (prints, "returns no gradient.*return the tensor"),
        (reads, "reads mask.*autograd.Function"),
        (removes, "removes the hook.*leave it out"),
        (on_a_parameter, "once more at each call; register it once"),
        (on_a_node, "grad_fn.*tensor.register_hook"),
        (retains, "retain_grad.*outside"),
        (packs, "saved_tensors_hooks.*around the call"),
        (accumulates, "calls backward.*use torch.autograd.grad"),
        (reentrant, "use_reentrant=False"),
        (writes_a_parameter, "changes linear.weight in place.*clone"),
        (writes_what_backward_needs, "backward needs is changed in place.*clone"),
        (gives_a_buffer_a_gradient, "changes total in place.*detached"),
        (stores, "stores a tensor of the call in self.last"),
        (branches, "depends on the values.*torch.where"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_refused_by_name(body, says):
    network = model(body, total=torch.zeros(4))
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    with warnings.catch_warnings(), pytest.raises(CaptureError, match=rf"(?s){says}") as caught:
        warnings.simplefilter("ignore")
        joint(network, (x(),))
    if body not in (writes_a_parameter, writes_what_backward_needs, gives_a_buffer_a_gradient, stores):
        assert "test_joint_hooks.py:" in str(caught.value)
    assert all(torch.equal(tensor, before[key]) for key, tensor in network.state_dict().items())
    assert not KEPT and not CALLS
    assert torch.Tensor.register_hook.__name__ == "register_hook" and "apply" not in vars(type(network))


def test_an_input_that_requires_grad_is_not_changed():
    network = model(lambda m, x: m.linear(x.add_(1)))
    with pytest.raises(CaptureError, match=r"in place.*clone"):
        joint(network, (x().requires_grad_().clone(),))


def test_memory_of_two_arguments_is_not_changed():
    network = model(lambda m, x, y: m.linear(x) + y.add_(1))
    whole = x()
    with pytest.raises(CaptureError, match=r"shares its memory.*clone"):
        joint(network, (whole, whole[:]))
    agrees(model(lambda m, x, y: m.linear(x) + y), (whole, whole[:]))


def test_levels_of_torch_func():
    network = model(lambda m, x: m.linear(x))

    def call(x):
        joint(network, (x,))
        return x.sum()

    with pytest.raises(CaptureError, match=r"torch\.func.*module"):
        torch.func.grad(call)(x())
    with torch.autograd.forward_ad.dual_level(), pytest.raises(CaptureError, match=r"dual_level.*module"):
        joint(network, (x(),))
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
