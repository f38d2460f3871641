"""The drop-in door: the user's own loop, on several devices, with eager's answers."""

import copy
import threading

import pytest
import torch
from capturing import joint
from machines import machine
from models import Convolutions, Heads, Tied, alike, dropout, mlp
from torch import nn

import autopar
from autopar.session.compare import error
from autopar.session.eager_check import Eager

pytestmark = pytest.mark.slow

WAYS = {
    "cpu": lambda: (["cpu"], {}),
    "halves": lambda: (machine(), {"split": 2, "policy": "round_robin"}),
    "uneven": lambda: (machine(), {"split": {"emulated:0": 0.25, "emulated:1": 0.75}}),
    "whole": lambda: (machine(), {"split": None, "policy": "round_robin"}),
}
MODELS = {
    "mlp": (mlp, lambda: torch.randn(8, 6)),
    "conv": (Convolutions, lambda: torch.randn(6, 3, 6, 6)),
    "tied": (Tied, lambda: torch.randint(0, 11, (8,))),
    "dropped": (dropout, lambda: torch.randn(8, 6)),
}
OFTEN = {("mlp", "cpu"), ("conv", "halves"), ("tied", "uneven"), ("dropped", "whole"), ("dropped", "halves")}


def compiled(model, way="halves", **more):
    devices, options = WAYS[way]()
    return autopar.compile(model, devices, **{**options, **more})


def loop(call, model, batches, optimizer):
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = ((call(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def close(a, b, most=1e-5):
    return error(a, b) <= most


@pytest.fixture(scope="module")
def captured():
    torch.manual_seed(0)
    model = mlp()
    return model, compiled(model)


@pytest.fixture
def shared(captured):
    """A model and its compiled form, for tests that leave no more than other weights."""
    captured[0].zero_grad()
    return captured


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=() if (name, way) in OFTEN else pytest.mark.release)
        for name in MODELS
        for way in WAYS
    ],
)
def test_a_loop_gives_the_plain_loops_losses_weights_and_buffers(name, way):
    torch.manual_seed(0)
    make, data = MODELS[name]
    model = make()
    twin = copy.deepcopy(model)
    outs = twin(data()).shape[1:]
    model.load_state_dict(twin.state_dict())
    batches = [((x := data()), torch.randn(len(x), *outs)) for _ in range(4)]
    fast = compiled(model, way)
    torch.manual_seed(1)
    mine = loop(fast, model, batches, torch.optim.SGD(fast.parameters(), 0.1, momentum=0.9))
    torch.manual_seed(1)
    plain = loop(twin, twin, batches, torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9))
    assert mine == pytest.approx(plain, rel=1e-5)
    for key, value in twin.state_dict().items():
        assert close(fast.state_dict()[key], value, 1e-4), key


def test_a_gradient_through_an_unused_output_is_none_where_eagers_is():
    model = Heads()
    fast = compiled(model)
    fast(torch.randn(8, 6))["both"][0].sum().backward()
    assert model.left.weight.grad is not None
    assert model.right.weight.grad is None and model.right.bias.grad is None


def test_an_output_without_gradient_has_none():
    found = compiled(Heads())(torch.randn(8, 6))
    assert not found["best"].requires_grad and found["both"][0].requires_grad


def test_two_forwards_before_one_backward(shared):
    model, fast = shared
    twin = copy.deepcopy(model)
    a, b = torch.randn(8, 6), torch.randn(8, 6)
    (fast(a).sum() * fast(b).pow(2).sum()).backward()
    (twin(a).sum() * twin(b).pow(2).sum()).backward()
    assert alike(model, twin)


def test_retain_graph_gives_the_same_again(shared):
    model, fast = shared
    loss = fast(torch.randn(8, 6)).sum()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_an_input_that_requires_grad_gets_one(shared):
    model, fast = shared
    x = torch.randn(8, 6, requires_grad=True)
    (mine,) = torch.autograd.grad(fast(x).sum(), x)
    (plain,) = torch.autograd.grad(model(x).sum(), x)
    assert close(mine, plain)


def test_frozen_parameters_stay_without_a_gradient():
    model = mlp()
    model[0].requires_grad_(False)
    fast = compiled(model)
    fast(torch.randn(8, 6)).sum().backward()
    assert model[0].weight.grad is None and model[2].weight.grad is not None
    model[0].requires_grad_(True)
    fast(torch.randn(8, 6)).sum().backward()
    assert model[0].weight.grad is not None


def test_a_weight_changed_between_forward_and_backward_is_an_error_as_in_eager(shared):
    model, fast = shared
    loss = fast(torch.randn(8, 6)).sum()
    with torch.no_grad():
        model[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_saved_tensor_hooks_see_what_is_saved(shared):
    packed = []
    _, fast = shared
    fast(torch.randn(8, 6)).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        loss = fast(torch.randn(8, 6)).sum()
    assert packed
    loss.backward()


def test_torch_func_and_forward_mode_are_the_plain_models():
    model, x = mlp(), torch.randn(8, 6)
    fast, forward_ad = compiled(model), torch.autograd.forward_ad
    fast(x)
    assert {"emulated:0", "emulated:1"} <= {placed.device for placed in fast.plan.placed}
    torch.testing.assert_close(torch.func.vmap(fast)(x[None])[0], model(x))
    with forward_ad.dual_level():
        found, wanted = (forward_ad.unpack_dual(each(forward_ad.make_dual(x, x))) for each in (fast, model))
    torch.testing.assert_close(found.tangent, wanted.tangent)
    assert "as written" in fast.explain()
    with fast.record() as calls:
        fast(x)
    assert len(calls.calls) == 1, "placed again"


def test_backward_from_another_thread(shared):
    (model, fast), failed = shared, []
    loss = fast(torch.randn(8, 6)).sum()

    def work():
        try:
            loss.backward()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed and model[0].weight.grad is not None


def test_a_recorded_step_is_one_timeline(shared):
    _, fast = shared
    fast(torch.randn(8, 6)).sum().backward()
    with fast.record() as calls:
        fast(torch.randn(8, 6)).sum().backward()
    assert len(calls.calls) == 1
    names = " ".join(span.name for span in calls.last.spans)
    assert "mm" in names and "addmm" in names


def test_a_model_that_does_something_else_when_captured_is_an_error():
    class Lies(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            scale = 1.0 if torch.compiler.is_compiling() else 2.0
            return x * self.weight * scale

    with pytest.raises(autopar.DifferenceError, match="is_compiling"):
        autopar.compile(Lies(), ["cpu"])(torch.randn(4, 3))


@pytest.mark.parametrize("missing", ["ours", "eagers"])
def test_a_gradient_that_only_one_of_both_has_is_an_error(missing):
    model, x = mlp(), torch.randn(8, 6)
    captured = joint(model, (x,))
    eager = Eager(captured, model, (x,), dict(model.named_parameters()))
    paths = [captured.graph.value[target].path for target, _ in captured.gradients]
    found = dict(eager.gradients)
    eager.judge(eager.outputs, [found[path] for path in paths])
    (found if missing == "ours" else eager.gradients)["0.weight"] = None
    with pytest.raises(autopar.DifferenceError, match=r"0\.weight (gets|has) no gradient"):
        eager.judge(eager.outputs, [found[path] for path in paths])


def test_checkpoints_go_both_ways(shared, tmp_path):
    model, fast = shared
    other = mlp()
    fast(torch.randn(8, 6)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    torch.save(fast.state_dict(), tmp_path / "fast.pt")
    other.load_state_dict(torch.load(tmp_path / "fast.pt"))
    x = torch.randn(8, 6)
    with torch.no_grad():
        assert close(fast(x), other(x))
        fresh = mlp()
        fast.load_state_dict(fresh.state_dict())
        assert close(fast(x), fresh(x))
