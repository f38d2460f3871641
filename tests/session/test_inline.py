"""Calls of a plan of one lane in the caller's thread, which read the model's own tensors."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import autopar
from autopar.errors import RunError


class Scaled(nn.Module):
    """Layers, a buffer, and a tensor that forward makes of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x) + self.shift)) * torch.tensor([1.0, 2.0, 3.0])


def replaced(model: Scaled) -> None:
    model.last.weight = nn.Parameter(torch.randn(3, 4))


def swapped(model: Scaled) -> None:
    model.first.weight.data = torch.randn(4, 4)


def in_place(model: Scaled) -> None:
    model.first.bias.data.add_(1.0)
    model.shift.mul_(1.5)


def by_numpy(model: Scaled) -> None:
    model.last.bias.detach().numpy()[1] += 1.0


def loaded(model: Scaled) -> None:
    model.load_state_dict(Scaled().state_dict(), assign=True)


def buffered(model: Scaled) -> None:
    model.shift = torch.randn(4)


def stepped(model: Scaled) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.sampled_from([replaced, swapped, in_place, by_numpy, loaded, buffered, stepped]), max_size=8)
)
@torch.no_grad()
def test_answers_never_use_stale_weights(changes):
    model, x = Scaled().eval(), torch.randn(2, 4)
    fast = autopar.compile(model, ["cpu"])
    for _ in range(3):
        assert torch.equal(fast(x), model(x))
    for change in changes:
        change(model)
        for _ in range(2):
            assert torch.equal(fast(x), model(x)), change.__name__


@torch.no_grad()
def test_a_call_that_fails_names_the_task_and_the_next_one_is_right():
    model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 2)).eval()
    fast, right = autopar.compile(model, ["cpu"]), torch.tensor([0, 3])
    for _ in range(3):
        fast(right)
    with pytest.raises(RunError, match=r"embedding.* in 0 .*failed on cpu"):
        fast(torch.tensor([0, 9]))
    assert torch.equal(fast(right), model(right))


def test_nothing_is_recorded_by_autograd_or_cast_again():
    model, x = Scaled().eval(), torch.randn(2, 4)

    def plain(given: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(given)

    fast = autopar.compile(plain, ["cpu"])
    for _ in range(3):
        assert not fast(x).requires_grad
    lowered = autopar.compile(model, ["cpu"])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            assert torch.equal(lowered(x), model(x))


@torch.no_grad()
def test_a_recording_and_a_close_between_calls():
    model, x = Scaled().eval(), torch.randn(2, 4)
    fast = autopar.compile(model, ["cpu"])
    for _ in range(3):
        fast(x)
    with fast.record() as recording:
        for _ in range(2):
            assert torch.equal(fast(x), model(x))
    assert len(recording.calls) == 2
    fast.close()
    assert torch.equal(fast(x), model(x))


@pytest.mark.slow
@torch.no_grad()
def test_threads_get_their_own_answers():
    model = Scaled().eval()
    fast = autopar.compile(model, ["cpu"])
    for _ in range(3):
        fast(torch.randn(2, 4))
    wrong: list[int] = []

    @torch.no_grad()
    def call(seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        for _ in range(50):
            x = torch.randn(2, 4, generator=draw)
            if not torch.equal(fast(x), model(x)):
                wrong.append(seed)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
