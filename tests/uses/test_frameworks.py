"""Training loops of other libraries, mixed precision, and checkpoints, beside the same loop with the plain model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from pairs import alike, twins
from torch import nn

import autopar

pytestmark = pytest.mark.slow


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def batches(count: int = 11) -> torch.utils.data.DataLoader:
    made = torch.Generator().manual_seed(1)
    x, y = torch.randn(count, 6, generator=made), torch.randint(0, 3, (count,), generator=made)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)


def trained(model: nn.Module, epochs: int = 2, autocast: bool = False, optimizer: Any = None) -> list[float]:
    """The losses of a plain loop."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for x, y in batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def close(fast: nn.Module, plain: nn.Module, atol: float = 1e-5) -> bool:
    ours, theirs = fast.state_dict(), plain.state_dict()
    return list(ours) == list(theirs) and all(torch.allclose(ours[k], theirs[k], atol=atol) for k in ours)


@pytest.mark.parametrize("autocast", [True, False])
def test_a_loop_with_a_short_last_batch(autocast):
    plain, fast = twins(network)
    assert trained(fast, autocast=autocast) == pytest.approx(
        trained(plain, autocast=autocast), rel=2e-2 if autocast else 1e-4
    )
    assert close(fast, plain, 2e-2 if autocast else 1e-5)
    assert fast.plan.transfers


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_a_gradient_scaler_and_clipping(dtype):
    plain, fast = twins(network)
    for model in (plain, fast):
        scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.AdamW(model.parameters(), 1e-2)
        for x, y in batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
    # Adam turns rounding into steps where a gradient is close to zero.
    assert close(fast, plain, 6e-2 if dtype else 1e-4)


def test_saving_and_going_on(tmp_path):
    plain, fast = twins(network)
    trained(plain, 1), trained(fast, 1)
    torch.save(fast.state_dict(), tmp_path / "weights.pt")
    again = network()
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert close(again, plain)
    resumed = autopar.compile(again, ["cpu", "emulated:0"], pins={"3": "emulated:0"})
    assert trained(resumed, 1) == pytest.approx(trained(plain, 1), rel=1e-4)
    # The first one is loaded back, over what it has learned since.
    trained(fast, 1)
    fast.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    later = copy.deepcopy(again)
    later.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    with torch.no_grad():
        x = torch.randn(4, 6)
        assert alike(fast.eval()(x), later.eval()(x))


def test_accelerate_prepares_a_compiled_model():
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    plain, fast = twins(network)
    for model in (plain, fast):
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        prepared, optimizer, loader = accelerator.prepare(model, optimizer, batches())
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(prepared(x), y))
            optimizer.step()
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    assert close(fast, plain, 2e-2)
    assert fast.plan.transfers


@pytest.mark.parametrize("layers", [1, 2])
def test_a_forward_that_is_wrapped_in_place(layers):
    plain, fast = twins(network)
    for model in (plain, fast):
        for _ in range(layers):
            within = model.forward
            model.forward = lambda x, within=within: within(x + 1) * 2
    x = torch.randn(4, 6)
    backend = fast._placement.session
    with torch.no_grad():
        wanted = plain.eval()(x)
        assert alike(fast.eval()(x), wanted)
        assert fast.plan.transfers
        before = backend.calls
        assert alike(fast.forward(x), wanted)
        assert backend.calls == before + 1 and not backend.unplaced
        assert alike(fast.module(x), wanted), "the plain model is wrapped as often"
        assert backend.calls == before + 1
        whole = torch.compile(Around(fast), backend="eager", fullgraph=True)
        assert alike(whole(x), wanted + 1)
        del fast.forward, plain.forward
        assert alike(fast.forward(x), plain(x)) and backend.calls == before + 2
        assert alike(whole(x), plain(x) + 1)
    with pytest.raises(AttributeError):
        del fast.forward


class Around(nn.Module):
    """Calls the `forward` of another module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.forward(x) + 1


def test_what_accelerate_wraps_is_placed_and_unwrapped():
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    plain, fast = twins(network)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    backend = fast._placement.session
    x = torch.randn(4, 6)
    with torch.no_grad():
        wrapped, expected = accelerator.prepare(fast.eval()), accelerator.prepare(plain.eval())
        assert alike(wrapped.forward(x).dtype, expected(x).dtype)
        assert torch.allclose(wrapped.forward(x), expected(x), atol=2e-2)
        assert backend.calls == 2 and not backend.unplaced
        bare = accelerator.unwrap_model(wrapped, keep_fp32_wrapper=False)
        assert alike(bare.forward(x), accelerator.unwrap_model(expected, keep_fp32_wrapper=False)(x))
    assert not backend.unplaced and fast.plan.transfers
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
