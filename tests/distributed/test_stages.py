"""Stages of a model, one after the other, are the model: answers, gradients and state, whatever the cuts."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from helpers.job_models import ROWS, loss, made
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from autopar import CaptureError
from autopar.distributed.pipeline.profile import profile
from autopar.distributed.pipeline.stages import StageModule
from autopar.distributed.pipeline.units import Units, units

CPU = torch.device("cpu")
CAPTURED: dict[str, tuple[nn.Module, torch.Tensor, torch.Tensor, Units]] = {}


def captured(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor, Units]:
    if name not in CAPTURED:
        model, x, y = made(name)
        CAPTURED[name] = model, x, y, units(model, (x,), {})
    return CAPTURED[name]


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.sampled_from(["mlp", "cnn", "gpt"]), st.data())
def test_stages_are_the_model_wherever_it_is_cut(name, data):
    model, x, y, chain = captured(name)
    count = len(chain.nodes)
    cuts = sorted(data.draw(st.sets(st.integers(1, count - 1), min_size=1, max_size=4)))
    ends = [0, *cuts, count]
    stages = [StageModule(chain, first, stop, CPU) for first, stop in pairwise(ends)]
    inputs = {node.name: x for node in chain.inputs}
    plain = copy.deepcopy(model)
    expected = loss(plain(x), y)
    expected.backward()
    model.zero_grad()
    sent = ()
    for stage in stages:
        sent = stage(*sent, **inputs)
    found = loss(stages[-1].answer(sent), y)
    found.backward()
    assert torch.equal(found, expected)
    assert all(
        torch.allclose(a.grad, b.grad, rtol=1e-12) for a, b in zip(model.parameters(), plain.parameters())
    )
    held = {path for stage in stages for paths in stage.paths.values() for path in paths}
    assert held == set(model.state_dict())
    assert all(p is q for s in stages for n, p in s.named_parameters() for q in [model.get_parameter(n)])


def test_a_stage_may_write_what_it_receives():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = torch.randn(8, 4)
    chain = units(model, (x,), {})
    first, second = (StageModule(chain, *part, CPU) for part in ((0, 1), (1, len(chain.nodes))))
    inputs = {node.name: x for node in chain.inputs}
    (sent,) = first(**inputs)
    before = sent.detach().clone()
    # What is received is a view, which autograd lets nobody write.
    found = second(sent.view_as(sent), **inputs)
    assert torch.equal(second.answer(found), model(x)) and torch.equal(sent, before)


class Written(nn.Module):
    """Writes into views of what is read later, into what only depends on sizes, into an input, and rotates by complex
    numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.table = nn.Linear(8, 8), nn.Linear(8, 4), nn.Embedding(3, 8)
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)).to(torch.complex128))

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(x.shape[0], 8, dtype=x.dtype)
        mask[:, 0] = 5.0
        h = torch.tanh(self.a(x))
        turned = torch.view_as_real(torch.view_as_complex(h.view(-1, 4, 2)) * self.turn).flatten(1)
        out = torch.empty_like(turned)
        out[:, 0::2] = turned[:, 1::2]
        out[:, 1::2] = -turned[:, 0::2]
        tokens[tokens < 0] = 2
        return self.b(torch.relu_(out + mask) + self.table(tokens)) + mask[:, :4]


def test_no_cut_separates_a_write_from_what_shares_its_memory():
    torch.manual_seed(0)
    model = Written().double()
    x, tokens = torch.randn(8, 8).double(), torch.tensor([-1, 0, 1, 2, -1, 0, 1, 2])
    expected = model(x, tokens.clone())
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    chain = units(model, (x, tokens.clone()), {})
    assert len(chain.nodes) > 8
    for cut in range(1, len(chain.nodes)):
        model.zero_grad()
        found: tuple = ()
        for first, stop in ((0, cut), (cut, len(chain.nodes))):
            stage = StageModule(chain, first, stop, CPU)
            # Each process has its own inputs, and what it receives is a copy.
            found = stage(*(tensor.clone() for tensor in found), x=x, tokens=tokens.clone())
        found[0].sum().backward()
        assert torch.equal(found[0], expected), cut
        assert all(torch.allclose(p.grad, g, rtol=1e-12) for p, g in zip(model.parameters(), gradients)), cut


class Modes(nn.Module):
    """Operators without gradients, and some without autocast inside of them, in the middle of others."""

    def __init__(self, autocast: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.autocast = nn.Linear(8, 8), nn.Linear(8, 4), autocast
        self.register_buffer("scale", torch.arange(8.0).double())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        with torch.no_grad():
            share = nn.functional.normalize(h.softmax(1), out=torch.empty_like(h))
            with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                share = share @ torch.diag(self.scale)
        return self.b(h * share)


def test_blocks_without_gradients_or_autocast_are_units_too():
    torch.manual_seed(0)
    model, x = Modes().double(), torch.randn(8, 8).double()
    expected = model(x)
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    chain = units(model, (x,), {})
    assert len(chain.nodes) > 5
    for cut in range(1, len(chain.nodes)):
        model.zero_grad()
        found: tuple = ()
        for first, stop in ((0, cut), (cut, len(chain.nodes))):
            found = StageModule(chain, first, stop, CPU)(*found, x=x)
        found[0].sum().backward()
        assert torch.equal(found[0], expected)
        assert all(torch.allclose(p.grad, g, rtol=1e-12) for p, g in zip(model.parameters(), gradients))
    with pytest.raises(CaptureError, match=r"enters torch\.autocast.*around distribute and the steps"):
        units(Modes(True), (x.float(),), {})


def test_units_that_write_are_timed_on_copies():
    torch.manual_seed(0)
    model, tokens = Written().double(), torch.tensor([-1, 0, 1, 2])
    x = torch.randn(4, 8).double()
    chain = units(model, (x, tokens.clone()), {})
    times = profile(chain, [x, tokens.clone()], CPU, True)
    assert len(times) == len(chain.nodes) and all(forward_s > 0 for forward_s, _, _ in times)
    rectified = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)).double()
    chain = units(rectified, (x,), {})
    assert all(backward_s > 0 for _, backward_s, _ in profile(chain, [x], CPU, True)[:1])


def test_a_profile_leaves_buffers_and_random_numbers_as_they_were():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(8, 4)
    chain = units(model, (x,), {})
    state = torch.get_rng_state()
    times = profile(chain, [x], CPU, True)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert len(times) == len(chain.nodes) and all(forward_s > 0 for forward_s, _, _ in times)
    assert sum(saved for _, _, saved in times) >= x.nbytes


def test_models_without_a_graph_or_a_batch_are_refused():
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(
        CaptureError, match=r"Asks: torch\.export cannot .*DistributedDataParallel\(autopar\.compile"
    ):
        units(Asks(), (torch.ones(4, 2),), {})
    with pytest.raises(CaptureError, match="rows of the batch along its first axis"):
        units(nn.ReLU(), (torch.tensor(1.0),), {})
    units(nn.Linear(4, 2), (torch.ones(ROWS, 4),), {})
    two = nn.Bilinear(4, 4, 2)
    with pytest.raises(CaptureError, match=r"got \[4, 4\], \[2, 4\]"):
        units(_Apart(two), (torch.ones(4, 4), torch.ones(2, 4)), {})


class _Apart(nn.Module):
    """Two inputs of different rows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.inner(a[:2], b)
