"""Constants of a program on an accelerator: read only on the stream that made them."""

from __future__ import annotations

import pytest
import rig
import torch
from rig import FIRST
from torch import Tensor, nn

import autopar
from autopar.runtime.inline_call import _Precomputed

pytestmark = pytest.mark.gpu

SLEEP = 0.05
"""Seconds: far more than a call takes."""


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[0], device=x.device)
        return (at[None] <= at[:, None]).float() @ self.linear(x)


def test_a_call_on_another_stream_does_not_read_what_is_not_there_yet(monkeypatch) -> None:
    compute, made = _Precomputed._compute, []

    def late(self: _Precomputed) -> bool:
        rig.sleep(SLEEP)
        made.append(compute(self))
        return made[-1]

    monkeypatch.setattr(_Precomputed, "_compute", late)
    model, x = Masked().to(FIRST), torch.randn(5, 8, device=FIRST)
    streams = [torch.Stream(device=FIRST) for _ in range(2)]
    before = torch.accelerator.current_stream(FIRST)
    with torch.no_grad():
        right, fast = model(x), autopar.compile(model, [FIRST])
        torch.accelerator.synchronize(FIRST)
        found = []
        for turn in range(12):
            torch.accelerator.set_stream(streams[turn % 2])
            found.append(fast(x))
        torch.accelerator.set_stream(before)
        torch.accelerator.synchronize(FIRST)
        assert made == [True]
        for result in found:
            torch.testing.assert_close(result, right)
