"""Lightning with a compiled network inside its module: one line changed.

    python examples/lightning_loop.py [--devices cpu emulated:0]

`self.net = autopar.compile(net, devices)` in `__init__`; steps, logging, validation, checkpoints are Lightning's own.
A plain twin is trained beside it: same losses, same weights. The last batch is a short one. Needs lightning:
pip install -e '.[frameworks]'.
"""

from __future__ import annotations

import argparse
import copy
import logging
import tempfile
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autopar


def data(count: int = 200) -> TensorDataset:
    """Points in the plane, of three classes by their angle."""
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(1))
    angle = torch.atan2(x[:, 1], x[:, 0])
    return TensorDataset(x, ((angle + torch.pi) / (2 * torch.pi) * 3).long().clamp(0, 2))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 3))


def lit(net: nn.Module) -> Any:
    """A LightningModule around a network."""
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.log("loss", loss)
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            x, y = batch
            self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    return Classifier()


def fit(module: Any, epochs: int) -> float:
    """The accuracy after training, from the checkpoint that Lightning wrote."""
    import lightning

    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="gpu" if torch.cuda.is_available() else "cpu",
            devices=1,
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        rows = data()
        trainer.fit(module, DataLoader(rows, batch_size=32), DataLoader(rows, batch_size=64))
        saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
    module.load_state_dict(saved["state_dict"])
    return float(trainer.callback_metrics["accuracy"])


def compare(devices: list[str], epochs: int = 4) -> dict[str, Any]:
    """Losses and accuracy, and how far losses and weights are from the plain run's."""
    torch.manual_seed(0)
    net = network()
    plain, fast = lit(copy.deepcopy(net)), lit(autopar.compile(net, devices))  # the line that changes
    accuracy, expected = fit(fast, epochs), fit(plain, epochs)
    ours, theirs = fast.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs), "checkpoints have the plain module's keys"
    found = {
        "losses": fast.losses,
        "accuracy": accuracy,
        "apart": max(abs(a - b) for a, b in zip(fast.losses, plain.losses, strict=True)),
        "weights": max((ours[key] - theirs[key]).abs().max().item() for key in ours),
        "accuracies": abs(accuracy - expected),
        "report": fast.net.explain(),
    }
    fast.net.close()
    return found


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--devices", nargs="+", default=["auto"])
    found = compare(options.parse_args().devices)
    print(found["report"].split("\n\n")[0])
    print(
        f"loss {found['losses'][0]:.3f} → {found['losses'][-1]:.3f}, accuracy {100 * found['accuracy']:.1f} %"
    )
    print(
        f"largest difference from the plain run: losses {found['apart']:.1e}, weights {found['weights']:.1e}"
    )
    assert max(found["apart"], found["weights"]) <= 1e-4 and found["accuracies"] <= 1e-2, "not the plain run"


if __name__ == "__main__":
    main()
