"""Weights whose memory stays while it is read in another way: other strides, dtype or bits. Copies on devices, and
kernels that hold weights, are of no use then: each call computes with the weights as they are now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import autopar

COPIES: dict[str, Any] = {"devices": ["cpu", "emulated:0"], "policy": "single emulated:0", "split": None}
LAYOUTS: dict[str, dict[str, Any]] = {
    "copies": COPIES,
    "parts of the batch": {"devices": ["cpu", "emulated:0"], "split": 2},
    "slices": {"devices": ["cpu", "emulated:0"], "split": "features"},
}


class Model(nn.Module):
    """Reads a real and a complex weight and a buffer beside its `layers`, each a square."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.pairs = torch.randn(6, 6, dtype=torch.complex64)
        self.imaginary = nn.Parameter(self.pairs.imag)
        self.complex = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))
        self.layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(layers)))
        self.buffer: torch.Tensor
        self.register_buffer("buffer", torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.layers(x).relu() @ self.imaginary
        return (made * 1j @ self.complex).real + x @ self.buffer.float()


def _transposed(model: Model) -> None:
    weight = next(model.layers.parameters())
    weight.data = weight.data.t()


def _expanded(model: Model) -> None:
    weight = next(model.layers.parameters())
    weight.data = weight.data[:1].expand(6, 6)


def _overlapping(model: Model) -> None:
    weight = next(model.layers.parameters())
    weight.data = weight.data.as_strided((6, 6), (1, 1))


def _negated(model: Model) -> None:
    model.imaginary.data = model.pairs.conj().imag


def _conjugated(model: Model) -> None:
    model.complex.data = model.complex.data.conj()


def _as_integers(model: Model) -> None:
    model.buffer.data = model.buffer.data.view(torch.int32)


CHANGES = {
    change.__name__.strip("_"): change
    for change in (_transposed, _expanded, _overlapping, _negated, _conjugated, _as_integers)
}


def changed(
    model: Model, fast: Callable[..., torch.Tensor], x: torch.Tensor, change: Callable[[Model], None]
) -> None:
    """Compare calls with eager after a change that gives other outputs, and leaves the memory where it is."""
    before, places = model(x), [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
    change(model)
    assert places == [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
    assert not torch.allclose(before, model(x), rtol=1e-2)
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("change", CHANGES)
def test_copies_on_devices(change: str) -> None:
    model, x = Model(), torch.randn(6, 6)
    with torch.no_grad():
        fast = autopar.compile(model, check="never", **COPIES)
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x))
        changed(model, fast, x, CHANGES[change])
    fast.close()


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layouts_and_gradients(layout: str) -> None:
    model, x = Model(), torch.randn(6, 6)
    fast = autopar.compile(model, **LAYOUTS[layout])

    def gradients(called: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        return [*torch.autograd.grad(called(x).square().sum(), [*model.parameters()])]

    with torch.no_grad():
        fast(x)
    gradients(fast)
    for change in (_transposed, _negated, _conjugated):
        with torch.no_grad():
            changed(model, fast, x, change)
        torch.testing.assert_close(gradients(fast), gradients(model))
    fast.close()


@pytest.mark.slow
def test_a_training_step_on_several_devices() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)) for _ in range(2)]
    model, plain = models
    plain.load_state_dict(model.state_dict())
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
    step = autopar.train_step(model, nn.MSELoss(), optimizers[0], ["cpu", "emulated:0"], split=2)
    for number in range(6):
        if number == 3:
            for each in models:
                each[0].weight.data = each[0].weight.data.t()
        optimizers[1].zero_grad()
        loss = nn.functional.mse_loss(plain(x), y)
        loss.backward()
        optimizers[1].step()
        torch.testing.assert_close(step(x, y).detach(), loss.detach())


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "change"), [(1, "transposed"), (8, "negated")])
def test_kernels_with_weights(layers: int, change: str) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, x = Model(layers), torch.randn(6, 6)
    with torch.no_grad():
        fast = autopar.compile(model, ["cpu"], kernels="onnxruntime")
        for _ in range(4):
            fast(x)
        for _ in range(4):
            fast(x)
        assert fast.serving == "onnxruntime"
        changed(model, fast, x, CHANGES[change])
    fast.close()
