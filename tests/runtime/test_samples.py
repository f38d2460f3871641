"""Writes to state that leave no trace in torch: seen by a few elements of each tensor."""

from __future__ import annotations

import pytest
import torch
from test_replicas import executor, reading

from autopar.runtime.replicas import Replicas


@pytest.mark.parametrize("write", ["data", "numpy", "transposed"])
@torch.no_grad()
def test_writes_without_a_trace_are_seen_by_samples(write) -> None:
    state, pool = {"w": torch.randn(4, 4)}, Replicas()
    if write == "transposed":
        state["w"] = state["w"].t()
    made, where, calls = reading()
    look, other = (executor(made, state, where, pool, calls) for _ in range(2))
    x = torch.zeros(4, 4)
    look([x]), other([x])
    for factor in (2.0, 0.5):
        if write == "numpy":
            state["w"].numpy()[:] *= factor
        else:
            state["w"].data.mul_(factor)
        # Whichever sees it first, the other must see it too.
        assert torch.equal(other([x])[0], state["w"]) and torch.equal(look([x])[0], state["w"])
    before = pool.transfers
    look([x]), other([x])
    assert pool.transfers == before, "nothing was written since"
    look.close(), other.close()
