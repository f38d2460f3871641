"""Steps that no graph can hold: the error names the option or function that is the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import autopar
from autopar.errors import CaptureError

TOKENS, CLASSES = torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(6, 5, max_norm=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x)


class Drawing(nn.Linear):
    draws = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.randn(5, generator=self.draws)


def ctc(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.ctc_loss(outputs.log_softmax(-1), targets, (8,), (3,))


CASES: dict[str, tuple[Any, Any, Any, Any, str]] = {
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(6, 5, max_norm=1.0), nn.Flatten(), nn.Linear(15, 5)),
        nn.CrossEntropyLoss(), TOKENS, CLASSES, r"max_norm changes 0\.weight.*renorm_",
    ),
    "bag": (Bag, nn.CrossEntropyLoss(), TOKENS, CLASSES, r"max_norm changes table\.weight.*renorm_"),
    "ctc": (
        lambda: nn.Linear(12, 5), ctc, torch.zeros(8, 1, 12), torch.ones(1, 3, dtype=torch.int64),
        r"functional\.ctc_loss.*cannot take ctc_loss.*autopar\.compile\(model, devices\) and your own loop",
    ),
    "cumulative norm": (
        lambda: nn.Sequential(nn.Linear(12, 5), nn.BatchNorm1d(5, momentum=None)), nn.CrossEntropyLoss(),
        torch.zeros(4, 12), CLASSES, r"momentum=None.*momentum=0\.1",
    ),
    "generator": (
        lambda: Drawing(12, 5), nn.CrossEntropyLoss(), torch.zeros(4, 12), CLASSES,
        r"generator=self\.draws.*leave generator= out, and seed .* by torch\.manual_seed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_reason_is_named(name: str) -> None:
    make, criterion, x, y, said = CASES[name]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = autopar.train_step(model, criterion, optimizer, ["cpu"])
    with pytest.raises(CaptureError, match=said):
        step(x, y)


def test_another_weight_that_is_changed_in_place_is_not_the_embedding_s() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.last = nn.Embedding(6, 5, max_norm=1.0), nn.Linear(15, 5)
            self.table.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.last.bias.mul_(0.5)
            return self.last(self.table(x).flatten(1))

    model = Both()
    optimizer = torch.optim.SGD(model.last.parameters(), lr=0.1)
    step = autopar.train_step(model, nn.CrossEntropyLoss(), optimizer, ["cpu"])
    with pytest.raises(CaptureError, match=r"forward changes last\.bias in place"):
        step(TOKENS, CLASSES)


def test_keywords_of_the_model_are_given_as_a_dict() -> None:
    model = nn.Linear(12, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = autopar.train_step(model, nn.CrossEntropyLoss(), optimizer, ["cpu"])
    with pytest.raises(TypeError, match=r"got generator=; .*step\(\{\.\.\., 'generator': \.\.\.\}, y\)"):
        step(torch.zeros(4, 12), CLASSES, generator=torch.Generator())


def test_a_process_group_needs_a_job() -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(autopar.DeviceError, match="torchrun"):
        autopar.train_step(model, nn.MSELoss(), optimizer, ["cpu"], process_group=True)
