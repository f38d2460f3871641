"""A backward goes on from its forward's tape, or computes the forward again where there is none."""

import gc
import weakref
from typing import ClassVar

import adversary
import pytest
import torch
from capturing import joint
from cut_cases import b, i, r
from machines import machine
from torch import nn

from autopar.lowering.check import check
from autopar.lowering.lower import lower
from autopar.ops import resolve as bind
from autopar.ops.composites import define
from autopar.session.options import Options
from autopar.session.stages import plan_captured

pytestmark = pytest.mark.slow

aten = torch.ops.aten
HEADS = [r(2, 4, 6, 8).float() for _ in range(3)]
LAYER = [r(24, 4), r(24, 6), r(24), r(24)]
GRU = [r(18, 4), r(18, 6), r(18), r(18)]
CALLS = {
    "scaled_dot_product_attention": (*HEADS, None, 0.0, True, None, False, False),
    "lstm": (r(5, 2, 4), [r(1, 2, 6), r(1, 2, 6)], LAYER, True, 1, 0.0, True, False, False),
    "gru": (r(5, 2, 4), r(1, 2, 6), GRU, True, 1, 0.0, True, False, False),
}


def floats(args):
    return [t for a in args for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor)]


def eager(name, args, needs):
    """Outputs and gradients of torch's own operator for gradients of one."""
    leaves = [t.detach().requires_grad_(need) for t, need in zip(floats(args), needs)]
    turn = iter(leaves)
    given = [
        [next(turn) for _ in a] if isinstance(a, list) else next(turn) if isinstance(a, torch.Tensor) else a
        for a in args
    ]
    if name == "scaled_dot_product_attention":
        outputs = [aten.scaled_dot_product_attention(*given[:6], scale=given[6], enable_gqa=given[7])]
    else:
        outputs = list(getattr(aten, name).input(*given))
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return outputs, torch.autograd.grad(outputs, wanted, [torch.ones_like(out) for out in outputs])


def target(name):
    return bind.target(f"autopar.{name}.default"), bind.target(f"autopar.{name}_backward.default")


@pytest.fixture
def played(monkeypatch):
    """Whether each backward had a tape."""
    found, play = [], define.play

    def watched(*given):
        made = play(*given)
        found.append(made is not None)
        return made

    monkeypatch.setattr(define, "play", watched)
    return found


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("some", [False, True])
def test_tape_and_recomputation_agree(name, some, played):
    args = CALLS[name]
    needs = [not some or place % 2 == 0 for place, _ in enumerate(floats(args))]
    forward, backward = target(name)
    expected, gradients = eager(name, args, needs)
    with torch.no_grad():
        *outputs, tape = forward(*args)
        ones = [torch.ones_like(output) for output in outputs]
        twice = [backward(ones, [*outputs, tape], *args, needs) for _ in range(2)]
        again = backward(ones, [*outputs, tape.clone()], *args, needs)
    assert played == [True, True, False]
    assert not any(output.requires_grad for output in (*outputs, *again, *twice[0]))
    for one, other in zip((*outputs, *twice[0], *twice[1]), (*expected, *gradients, *gradients), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(again, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "gru"])
def test_the_graph_dies_with_the_tape(name):
    forward, _ = target(name)
    with torch.no_grad():
        *outputs, tape = forward(*CALLS[name])
    leaf = weakref.ref(vars(tape)["graph"][0][0])
    assert tape.untyped_storage().nbytes() == 1
    del tape
    gc.collect()
    assert leaf() is None and all(output.isfinite().all() for output in outputs)


def test_scores_are_not_kept(played):
    """What has no fused kernel would keep the whole matrix of scores, which nobody has counted."""
    forward, backward = target("scaled_dot_product_attention")
    mask = b(2, 1, 6, 6) | True
    args = (*(r(6, 8) for _ in range(3)), mask[0, 0], 0.0, False, None, False, False)
    with torch.no_grad():
        *outputs, tape = forward(*args)
        found = backward([torch.ones_like(outputs[0])], [*outputs, tape], *args, [True, True, True, False])
    assert not vars(tape) and len(found) == 3


def test_a_constant_mask_leaves_the_fused_kernel(played):
    """Recording does not let the mask require grad, which a CPU's fused kernel refuses."""
    forward, backward = target("scaled_dot_product_attention")
    args = (*HEADS, r(6, 6).float(), 0.0, False, None, False, False)
    plain = aten.scaled_dot_product_attention(*args[:4])
    with torch.no_grad():
        *outputs, tape = forward(*args)
        ones = [torch.ones_like(outputs[0])]
        backward(ones, [*outputs, tape], *args, [True, True, True, False])
        found = backward(ones, [*outputs, tape], *args, [True] * 4)
    assert torch.equal(outputs[0], plain)
    assert played == [True, False] and found[3].shape == (6, 6)


class Seen(torch.autograd.Function):
    """Passes on, and notes whether autograd may leave the thread that asks."""

    free: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        Seen.free.append(torch._C._is_multithreading_enabled())
        return grad


def test_a_backward_stays_in_the_thread_of_its_lane():
    """Autograd's thread of a device may be the one that waits for the lane: there it would wait for ever."""
    Seen.free.clear()
    x, ones = r(3), [torch.ones(3).double()]
    outputs = define.recording(Seen.apply, lambda x: x.shape, lambda x: True, lambda x: ())(x)
    for found in (define.play(outputs, ones, [True]), define.vjp(Seen.apply, [x], ones, [True])):
        assert torch.equal(found[0], ones[0])
    assert Seen.free == [False, False]


def test_gradients_have_memory_of_their_own():
    """Both biases of a layer have the same gradient; scaling one in place leaves the other."""
    forward, backward = target("lstm")
    args = tuple(
        [t.float() for t in a] if isinstance(a, list) else a.float() if isinstance(a, torch.Tensor) else a
        for a in CALLS["lstm"]
    )
    with torch.no_grad():
        outputs = list(forward(*args))
        found = backward([torch.ones_like(t) for t in outputs[:-1]], outputs, *args, [True] * 7)
    memories = [tensor.untyped_storage().data_ptr() for tensor in found]
    assert len(set(memories)) == len(memories)


class Model(nn.Module):
    """Bags, attention and two kinds of layers."""

    def __init__(self):
        super().__init__()
        self.bag, self.heads = nn.EmbeddingBag(9, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.lstm, self.gru = nn.LSTM(8, 8, batch_first=True), nn.GRU(8, 8, batch_first=True)

    def forward(self, x, indices):
        seen, _ = self.heads(x, x, x, need_weights=False)
        return self.gru(self.lstm(seen)[0])[0].mean(1) + self.bag(indices)


@pytest.mark.parametrize(("policy", "parts"), [("round_robin", 2), ("heft", None)])
def test_on_three_devices_in_any_order(policy, parts):
    model, x, indices = Model(), r(6, 5, 8).float(), i(9, 6, 3)
    captured = joint(model, (x, indices))
    y = model(x, indices)
    tangent = torch.randn_like(y)
    y.backward(tangent)
    options = Options(policy=policy, split=parts, check="never")
    plan = plan_captured(captured, machine(2), options, [x, indices, tangent])
    graph, program = plan.costed.graph, lower(plan)
    check(program, graph)
    state = {name: owner[key] for name, (owner, key) in captured.state.items()}
    given = {name: tensor.detach() for name, tensor in state.items()}
    given.update(zip(captured.graph.inputs, (x, indices, tangent)))
    for seed in range(3):
        made = dict(
            zip(captured.graph.outputs, adversary.run(program, graph, captured.calls, given, seed)[0])
        )
        for name, gradient in captured.gradients:
            expected = state[name].grad
            assert (made[gradient] - expected).abs().max() <= 1e-5 * expected.abs().max().clamp_min(1e-6)
