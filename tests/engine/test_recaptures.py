"""A function whose fixed values change is captured again; after many captures it runs as written, and says why."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import autopar
from autopar.capture import dynamo_private
from autopar.errors import CaptureError

SAID = r"it was captured .* times, for other values .* TORCH_LOGS=recompiles"


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.linear(x) * len(name) if name != "none" else x


@pytest.fixture(autouse=True)
def _two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo_private, "CAPTURES", 2)
    monkeypatch.setitem(dynamo_private.SETTINGS, "recompile_limit", 2)


@pytest.mark.slow
def test_a_model_runs_as_written_then_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Named(), torch.randn(3, 4)
    fast = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        for name in ("a", "bb", "ccc", "dddd", "a"):
            assert torch.equal(fast(x, name), model(x, name))
    warned = [record.getMessage() for record in caplog.records if "as written" in record.getMessage()]
    assert len(warned) == 1
    assert re.search(SAID, warned[0])
    fast.close()


@pytest.mark.slow
def test_a_training_step_refuses_another_capture_and_still_takes_the_old_ones() -> None:
    model, x = Named(), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = autopar.train_step(
        model, None, optimizer, ["cpu"], step_fn=lambda model, x, name: model(x, name).sum()
    )
    for name in ("a", "bb"):
        step(x, name)
    with pytest.raises(CaptureError, match=f"^Named: {SAID}"):
        step(x, "ccc")
    before = model.linear.weight.detach().clone()
    step(x, "a")
    assert not torch.equal(model.linear.weight, before)
    step.close()
