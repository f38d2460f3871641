"""Lightning with a compiled part of its module, and with the module compiled whole, beside the plain run."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from test_frameworks import batches, close, network
from torch import nn
from zoo.entry import library

import autopar

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def lightning() -> Any:
    library("torchvision")
    return pytest.importorskip("lightning")


def made(lightning: Any, net: nn.Module, step: str, compile: bool = False) -> Any:
    """A LightningModule around a network, whose steps call the module or the network."""

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            devices = ["cpu", "emulated:0"]
            self.net = autopar.compile(net, devices, pins={"3": "emulated:0"}) if compile else net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy((self if step == "module" else self.net)(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val", nn.functional.cross_entropy(self(batch[0]), batch[1]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Lit()


def fit(lightning: Any, module: Any, where: Path, count: int = 12, epochs: int = 2, **options: Any) -> Any:
    """A trainer that has trained the module, from the checkpoint `start` where there is one. Of 12 rows all batches
    are whole."""
    start = options.pop("start", None)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=str(where), **options,
    )  # fmt: skip
    trainer.fit(module, batches(count), batches(count), ckpt_path=start, weights_only=False)
    return trainer


def test_a_compiled_part_trains_as_the_plain_one(lightning, tmp_path):
    torch.manual_seed(0)
    net = network()
    plain, fast = made(lightning, copy.deepcopy(net), "part"), made(lightning, net, "part", compile=True)
    expected = fit(lightning, plain, tmp_path / "plain", 11)
    found = fit(lightning, fast, tmp_path / "fast", 11)
    assert close(fast, plain)
    ours, theirs = (float(run.callback_metrics["val"]) for run in (found, expected))
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert fast.net.plan.transfers and not fast.net._placement.session.unplaced


def test_a_run_goes_on_from_its_checkpoint(lightning, tmp_path):
    torch.manual_seed(0)
    net = network()
    plain, fast = made(lightning, copy.deepcopy(net), "part"), made(lightning, net, "part", compile=True)
    fit(lightning, plain, tmp_path / "plain")
    fit(lightning, fast, tmp_path / "fast", epochs=1)
    saved = next((tmp_path / "fast").rglob("*.ckpt"))
    again = made(lightning, network(), "part", compile=True)
    fit(lightning, again, tmp_path / "again", start=saved)
    assert close(again, plain)


@pytest.mark.parametrize("step", ["module", "part"])
def test_a_whole_module_is_placed_or_says_what_to_type(lightning, tmp_path, step, caplog):
    torch.manual_seed(0)
    net = network()
    plain, whole = made(lightning, copy.deepcopy(net), step), made(lightning, net, step)
    fast = autopar.compile(whole, ["cpu", "emulated:0"], pins={"net.3": "emulated:0"})
    fit(lightning, plain, tmp_path / "plain")
    fit(lightning, fast, tmp_path / "fast")
    assert close(fast, plain)
    said = "training_step calls parts of Lit, not the module itself: let it call self"
    assert (said in caplog.text) == (step == "part")
    assert "validation_step" not in caplog.text
    report = fast.explain()
    if step == "part":
        assert caplog.text.count(said) == 1 and "6 calls ran as written: training_step" in report
    else:
        assert fast.plan.transfers and "ran as written" not in report


def test_a_whole_module_with_a_compiled_part_is_not_told_to_compile_it(lightning, tmp_path, caplog):
    torch.manual_seed(0)
    fast = autopar.compile(made(lightning, network(), "part", compile=True), ["cpu"])
    fit(lightning, fast, tmp_path)
    assert "calls parts of" not in caplog.text
