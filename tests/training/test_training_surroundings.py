"""Compiled models in training: checkpoints, hooks, plans of another kind, failures, the end."""

import copy
import gc
import weakref

import pytest
import torch
from machines import machine
from models import Convolutions, alike, mlp
from torch import library, nn
from torch.utils.checkpoint import checkpoint
from turns import by_turns

import autopar
from autopar.session.compare import error

pytestmark = pytest.mark.slow

HALVES = {"split": 2, "policy": "round_robin"}


def compiled(model, **more):
    return autopar.compile(model, machine(), **{**HALVES, **more})


def data():
    return torch.randn(8, 6)


def gradients(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


class Shaped(nn.Module):
    """Two heads; the first returns `shape` of its result."""

    def __init__(self, shape):
        super().__init__()
        self.layer, self.other, self.shape = nn.Linear(6, 4), nn.Linear(6, 2), shape

    def forward(self, x):
        return self.shape(self.layer(x)), self.other(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_the_first_call(reentrant):
    model = mlp()
    twin, fast, x = copy.deepcopy(model), compiled(model), data().requires_grad_()
    for call in (fast, fast, twin, twin):
        checkpoint(call, x, use_reentrant=reentrant).sum().backward()
    assert alike(model, twin)


def test_a_parameter_that_no_module_holds_is_trained():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = [nn.Parameter(torch.ones(6))]

        def forward(self, x):
            return x * self.scales[0]

    loose, x = nn.Parameter(torch.randn(6, 3)), data()
    model = Hidden()
    compiled(model)(x).sum().backward()
    torch.testing.assert_close(model.scales[0].grad, x.sum(0))
    compiled(lambda x: x @ loose)(x).sum().backward()
    torch.testing.assert_close(loose.grad, x.sum(0)[:, None].expand(6, 3))
    with torch.no_grad():
        assert torch.equal(autopar.compile(Hidden(), ["cpu"])(x), x)


def test_an_alias_of_a_parameter_that_a_module_holds_is_no_hidden_parameter():
    class Aliased(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.alias = [self.layer.weight.detach()]

        def forward(self, x):
            return self.layer(x) + x @ self.alias[0].t()

    model, x = Aliased(), data()
    twin = copy.deepcopy(model)
    compiled(model)(x).sum().backward()
    twin(x).sum().backward()
    assert alike(model, twin)


@by_turns("shape, way", [lambda h: h[:, :3], lambda h: h.view(-1), lambda h: h.t()], [["cpu"], None])
def test_an_output_that_is_a_view_may_be_changed_in_place(shape, way):
    model, x = Shaped(shape), data()
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, way) if way else compiled(model)
    for call in (fast, fast, twin, twin):
        first, second = call(x)
        first.mul_(2)
        (first.pow(2).sum() + second.sum()).backward()
    assert alike(model, twin)


def test_an_output_whose_memory_the_backward_reads_may_be_changed_in_place():
    model, x = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Flatten(0)), data()
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, ["cpu"])
    for _ in range(2):
        fast(x).mul_(2).sum().backward()
        (twin(x) * 2).sum().backward()
    assert alike(model, twin)


def test_outputs_that_are_no_numbers_are_checked():
    model = Shaped(lambda h: (h, h > 0, h.to(torch.int64), h.to(torch.complex64)))
    (_, above, whole, wide), _ = compiled(model)(data())
    assert above.dtype == torch.bool and whole.dtype == torch.int64 and wide.dtype == torch.complex64


def test_sparse_gradients_are_trained_as_written(caplog):
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    twin, tokens = copy.deepcopy(model), torch.randint(0, 10, (7,))
    compiled(model)(tokens).sum().backward()
    twin(tokens).sum().backward()
    assert model[0].weight.grad.is_sparse and alike(model, twin)
    assert "0.weight is sparse" in caplog.text
    bag = nn.EmbeddingBag(10, 6, sparse=True)
    compiled(Shaped(lambda h: bag(h.argsort())))(data())
    assert "sparse=False at tests/training/" in caplog.text and "While executing" not in caplog.text


def test_statistics_of_the_parts_are_not_held_against_those_of_the_whole():
    model, x = Convolutions(), torch.randn(6, 3, 6, 6)
    twin = copy.deepcopy(model)
    found = compiled(model, batch_norm="per_part")(x)
    parts = torch.cat([twin(x[:3]), twin(x[3:])])
    assert error(found, parts) <= 1e-5
    found.pow(2).sum().backward()
    parts.pow(2).sum().backward()
    assert error(model.head.weight.grad, twin.head.weight.grad) <= 1e-5


def test_a_plan_of_training_is_loaded_and_used(tmp_path, caplog):
    model, x = mlp(), data()
    twin, fast = copy.deepcopy(model), compiled(model)
    fast(x)
    fast.plan.save(tmp_path / "plan.json")
    again = autopar.compile(model, machine(), plan=tmp_path / "plan.json")
    again(x).sum().backward()
    twin(x).sum().backward()
    assert alike(model, twin)
    where = {run: placed.device for run, placed in fast.plan.place.items()}
    assert {run: placed.device for run, placed in again.plan.place.items()} == where
    assert "a new plan is made" not in caplog.text
    with torch.no_grad():
        assert error(again(x), model(x)) <= 1e-5
    assert "a new plan is made" in caplog.text
    with pytest.raises(autopar.PlanError, match=r"\[5, 6\].*in the plan.*\[8, 6\].*autopar\.plan"):
        again(torch.randn(5, 6))


def test_a_plan_of_the_forward_does_not_stop_training(caplog):
    model, x = mlp(), data()
    twin, fast = copy.deepcopy(model), compiled(model)
    with torch.no_grad():
        fast(x)
    again = autopar.compile(model, machine(), plan=fast.plan)
    again(x).sum().backward()
    twin(x).sum().backward()
    assert alike(model, twin) and "a new plan is made" in caplog.text


def test_training_is_planned_for_a_machine_one_does_not_have():
    model, absent = mlp(), autopar.Machine.declare("cpu-16", "h100-sxm", "h100-sxm")
    both = autopar.plan(model, absent, example_inputs=(data(),))
    assert {task.phase for task in both.costed.graph.tasks} == {"forward", "backward"}
    with torch.no_grad():
        ahead = autopar.plan(model, absent, example_inputs=(data(),))
    assert {task.phase for task in ahead.costed.graph.tasks} == {"forward"}
    frozen = autopar.plan(model.requires_grad_(False), absent, example_inputs=(data(),))
    assert {task.phase for task in frozen.costed.graph.tasks} == {"forward"}


def test_an_unreferenced_compiled_model_is_freed():
    fast = compiled(mlp())
    fast(data()).sum().backward()
    session = weakref.ref(fast._placement.session)
    gc.disable()
    try:
        del fast
        assert session() is None
    finally:
        gc.enable()


def test_a_backward_outlives_the_compiled_model():
    model, x = mlp(), data()
    twin, fast = copy.deepcopy(model), compiled(model)
    loss = fast(x).sum()
    fast.close()
    del fast
    gc.collect()
    loss.backward()
    twin(x).sum().backward()
    assert alike(model, twin)


failing = {"now": None}


@library.custom_op("autopar_tests::steady", mutates_args=())
def steady(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@steady.register_fake
def _(x):
    return torch.empty_like(x)


@library.custom_op("autopar_tests::falters", mutates_args=())
def falters(gradient: torch.Tensor) -> torch.Tensor:
    if failing["now"] is not None:
        raise failing["now"]
    return gradient.clone()


@falters.register_fake
def _(gradient):
    return torch.empty_like(gradient)


steady.register_autograd(lambda ctx, gradient: falters(gradient))


class Steady(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(steady(torch.tanh(self.norm(self.first(x)))))


@pytest.mark.parametrize("stops", [ValueError("no"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_backward_that_fails_changes_nothing_and_the_next_is_right(stops, monkeypatch):
    model, x = Steady(), data()
    twin, fast = copy.deepcopy(model), compiled(model)
    for call in (fast, twin):
        call(x).pow(2).sum().backward()
    loss = fast(x).pow(2).sum()
    twin(x)
    had, state = gradients(model), {name: value.clone() for name, value in model.state_dict().items()}
    monkeypatch.setitem(failing, "now", stops)
    with pytest.raises((autopar.RunError, KeyboardInterrupt)):
        loss.backward()
    monkeypatch.setitem(failing, "now", None)
    assert all(torch.equal(a, b) for a, b in zip(had, gradients(model), strict=True))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    for call in (fast, twin):
        call(x).pow(2).sum().backward()
    assert error(model.last.weight.grad, twin.last.weight.grad) <= 1e-5
    assert error(model.norm.weight.grad, twin.norm.weight.grad) <= 1e-5


def test_a_compiled_model_within_a_compiled_model_is_placed_with_it():
    inner = mlp()
    outer = nn.Sequential(nn.Linear(6, 6), compiled(inner))
    twin = nn.Sequential(copy.deepcopy(outer[0]), copy.deepcopy(inner))
    x = data()
    fast = compiled(outer)
    fast(x).sum().backward()
    twin(x).sum().backward()
    assert alike(outer, twin) and {"0", "1.0", "1.2"} <= {t.module for t in fast.plan.costed.graph.tasks}


@pytest.mark.parametrize("trained", [True, False])
def test_weights_that_are_untied_are_two(trained):
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)), data()
    model[2].weight = model[0].weight
    fast = compiled(model)
    for _ in range(2):
        with torch.set_grad_enabled(trained):
            twin = copy.deepcopy(model)
            found, expected = fast(x), twin(x)
            assert error(found, expected) <= 1e-5
        if trained:
            found.sum().backward()
            expected.sum().backward()
            assert alike(model, twin)
            model.zero_grad()
        model[2].weight = nn.Parameter(torch.randn(6, 6))


def test_a_weight_may_be_an_argument_too():
    model = nn.Linear(6, 6)
    twin = copy.deepcopy(model)
    autopar.compile(model, ["cpu"])(model.weight).sum().backward()
    twin(twin.weight).sum().backward()
    assert alike(model, twin)


@pytest.mark.parametrize(("share", "split"), [(0.0, 2), (0.3, None)])
def test_recomputation_gives_the_same_gradients(share, split):
    layers = [layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU())]
    model, x = nn.Sequential(*layers), data()
    twin = copy.deepcopy(model)
    fast = compiled(model, recompute=share, split=split)
    for call in (fast, fast, twin, twin):
        call(x).pow(2).sum().backward()
    assert alike(model, twin)
    assert any(task.name.partition("#again")[1] for task in fast.plan.costed.graph.tasks)
