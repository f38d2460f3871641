"""Random numbers of numpy in forward."""

from __future__ import annotations

import numpy
import torch

import autopar


def test_drawn_from_numpys_own_stream():
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + torch.from_numpy(numpy.random.rand(4))

    x, found = torch.ones(4, dtype=torch.float64), []
    for called in (noisy, autopar.compile(noisy, ["cpu"], check="never")):
        numpy.random.seed(3)
        torch.manual_seed(3)
        found.append([called(x) for _ in range(3)])
    assert all(map(torch.equal, *found))
