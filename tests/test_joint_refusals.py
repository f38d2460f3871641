"""What a trace would lose in silence, and no node of the graph can stand for, is refused with the line."""

import warnings

import pytest
import torch
from capture_models import x
from joint_models import agrees
from test_joint_hooks import model

from autopar.capture.joint import joint
from autopar.errors import CaptureError

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
        assert "test_joint_refusals.py:" in str(caught.value)
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
