"""Training loops of other libraries, mixed precision, and checkpoints, beside the same loop with the plain model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from pairs import alike, twins
from torch import nn
from zoo.entry import library

import autopar

SHORT = [4, 4, 3]
"""Rows of the batches of an epoch, the last one short."""


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


@pytest.mark.parametrize("autocast", [False, True])
def test_a_loop_with_a_short_last_batch(autocast):
    plain, fast = twins(network)
    assert trained(fast, autocast=autocast) == pytest.approx(
        trained(plain, autocast=autocast), rel=2e-2 if autocast else 1e-4
    )
    assert close(fast, plain, 2e-2 if autocast else 1e-5)
    assert fast.plan.transfers


def test_a_gradient_scaler_and_clipping():
    plain, fast = twins(network)
    for model in (plain, fast):
        scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.AdamW(model.parameters(), 1e-2)
        for x, y in batches():
            optimizer.zero_grad()
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
    assert close(fast, plain, 1e-4)


def test_gradients_added_over_batches_of_two_sizes():
    plain, fast = twins(network)
    for model in (plain, fast):
        for x, y in batches():
            (nn.functional.cross_entropy(model(x), y) / 3).backward()
    for ours, theirs in zip(fast.parameters(), plain.parameters()):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)


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


def test_a_moving_average_of_the_weights():
    plain, fast = twins(network)
    averages = []
    for model in (plain, fast):
        average = torch.optim.swa_utils.AveragedModel(model.module if model is fast else model)
        for x, y in batches():
            nn.functional.cross_entropy(model(x), y).backward()
            average.update_parameters(model.module if model is fast else model)
        averages.append(average)
    assert close(averages[1], averages[0])


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_prepares_a_compiled_model(precision):
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    plain, fast = twins(network)
    for model in (plain, fast):
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        prepared, optimizer, loader = accelerator.prepare(model, optimizer, batches())
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(prepared(x), y))
            optimizer.step()
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    assert close(fast, plain, 2e-2 if precision == "bf16" else 1e-5)
    assert fast.plan.transfers


def _lightning(lightning: Any, net: nn.Module, compile: bool) -> Any:
    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = (
                autopar.compile(net, ["cpu", "emulated:0"], pins={"3": "emulated:0"}) if compile else net
            )

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Lit()


@pytest.fixture
def lightning() -> Any:
    library("torchvision")
    return pytest.importorskip("lightning")


def _fit(lightning: Any, module: Any, where: Any) -> None:
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=str(where),
    )  # fmt: skip
    trainer.fit(module, batches())


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_a_compiled_part_of_its_module(lightning, tmp_path):
    torch.manual_seed(0)
    net = network()
    plain, fast = _lightning(lightning, copy.deepcopy(net), False), _lightning(lightning, net, True)
    _fit(lightning, plain, tmp_path / "plain")
    _fit(lightning, fast, tmp_path / "fast")
    assert close(fast, plain)
    assert fast.net.plan.transfers
    saved = next((tmp_path / "fast").rglob("*.ckpt"))
    again = _lightning(lightning, network(), True)
    again.load_state_dict(torch.load(saved, weights_only=False)["state_dict"])
    assert close(again, plain)


@pytest.mark.filterwarnings("ignore")
def test_lightning_takes_a_whole_compiled_module_or_says_why_not(lightning, tmp_path):
    torch.manual_seed(0)
    net = network()
    plain, whole = _lightning(lightning, copy.deepcopy(net), False), _lightning(lightning, net, False)
    fast = autopar.compile(whole, ["cpu", "emulated:0"])
    _fit(lightning, plain, tmp_path / "plain")
    _fit(lightning, fast, tmp_path / "fast")
    assert close(fast, plain)


def test_a_forward_that_is_wrapped_in_place():
    plain, fast = twins(network)
    for model in (plain, fast):
        within = model.forward
        model.forward = lambda x, within=within: within(x + 1) * 2
    x = torch.randn(4, 6)
    with torch.no_grad():
        assert alike(fast.eval()(x), plain.eval()(x))
    assert fast.plan.transfers
