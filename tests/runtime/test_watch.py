"""State that changed without a trace is seen by a few of its elements."""

from __future__ import annotations

import pytest
import torch

from autopar.runtime.replicas import ELEMENTS, Master
from autopar.runtime.watch import PLACES, Watch


def watched(tensor: torch.Tensor) -> Watch:
    owner = {"weight": tensor}
    return Watch([Master("weight", owner, "weight")])


@pytest.mark.parametrize("size", [1, 3, ELEMENTS, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_a_write_to_all_of_a_tensor_is_seen_at_once(size: int, dtype: torch.dtype) -> None:
    tensor = torch.ones(size).to(dtype)
    for _ in range(PLACES + 1):
        watch = watched(tensor)
        assert all(watch.unchanged() for _ in range(PLACES + 1))
        tensor.data.copy_(tensor.data == 0)
        assert not watch.unchanged()


@pytest.mark.parametrize("at", [0, 500, 999], ids=["first", "middle", "last"])
def test_a_write_to_elements_that_are_looked_at_is_seen_in_the_end(at: int) -> None:
    tensor = torch.zeros(1000)
    watch = watched(tensor)
    tensor.data[max(0, at - 100) : at + 100] = 1
    assert tensor._version == 0
    assert not all(watch.unchanged() for _ in range(PLACES))


def test_other_traces_are_seen() -> None:
    for change in (lambda t: t.mul_(2), lambda t: setattr(t, "data", torch.ones(4))):
        tensor = torch.ones(4)
        watch = watched(tensor)
        assert watch.unchanged()
        change(tensor)
        assert not watch.unchanged()
