"""Fingerprints of state: a change of any tensor is seen, without a trace by a few of its elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from autopar.runtime.weights import ELEMENTS, Weights


def watched(*tensors: torch.Tensor) -> tuple[dict[str, torch.Tensor], Weights]:
    state = {str(at): tensor for at, tensor in enumerate(tensors)}
    weights = Weights([(state, name) for name in state])
    weights.record()
    return state, weights


@pytest.mark.parametrize("size", [1, 3, ELEMENTS, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_a_write_to_all_of_a_tensor_is_seen_at_once(size: int, dtype: torch.dtype) -> None:
    tensor = torch.ones(size).to(dtype)
    _, weights = watched(tensor)
    assert weights.unchanged()
    tensor.data.copy_(tensor.data == 0)
    assert tensor._version == 0 and not weights.unchanged()


def test_a_write_to_any_of_several_tensors_is_seen() -> None:
    packed = torch.frombuffer(bytearray(64), dtype=torch.float32, count=3, offset=1)
    tensors: list[torch.Tensor] = [
        torch.ones(3, dtype=torch.complex128), torch.ones(3, dtype=torch.complex64).conj(), torch.ones(5, 7)[:, 1:3],
        torch.ones(9, dtype=torch.uint8), torch.ones(2, dtype=torch.float64).expand(4, 2), torch.ones(()), packed,
        torch.ones(3, dtype=torch.complex64).conj().imag, torch.ones(0),
    ]  # fmt: skip
    _, weights = watched(*tensors)
    for tensor in tensors:
        weights.record()
        assert weights.unchanged()
        tensor.data[(slice(1),) * tensor.dim()].fill_(2)
        assert weights.unchanged() is not bool(tensor.numel())


def test_scaling_is_seen_at_once_where_some_rows_are_zero() -> None:
    tensor = torch.ones(100, 64)
    tensor[0] = tensor[50:60] = 0
    _, weights = watched(tensor)
    tensor.data.mul_(2)
    assert not weights.unchanged()


OTHER = torch.ones(9)
"""A tensor that lives on with what it was swapped for."""
CHANGES: dict[str, Callable[[list[torch.Tensor], dict[str, torch.Tensor]], object]] = {
    "in place": lambda state, _: state[7].mul_(1),
    "through a view": lambda state, _: state[7][2:].add_(0),
    "other memory": lambda state, _: setattr(state[7], "data", state[7].data.clone()),
    "other strides": lambda state, _: setattr(state[7], "data", state[7].data.t()),
    "another dtype": lambda state, _: setattr(state[7], "data", state[7].data.view(torch.int32)),
    "another part of the same memory": lambda state, _: state[7].set_(
        state[7].untyped_storage(), 1, (2, 3), (3, 1)
    ),
    "memory of another size": lambda state, _: state[7].untyped_storage().resize_(1 << 20),
    "no memory": lambda state, _: state[7].untyped_storage().resize_(0),
    "swapped": lambda state, _: torch.utils.swap_tensors(state[7], OTHER),
    "an element": lambda state, _: state[7].data[-1, -1].fill_(2),
    "another object": lambda _, owner: owner.update({"7": torch.ones(3, 3)}),
    "gone": lambda _, owner: owner.pop("7"),
    "sparse": lambda state, _: state[-1].mul_(2),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda name: name.replace(" ", "-"))
def test_a_change_of_one_of_many_is_seen(change: str) -> None:
    tensors = [*(torch.ones(3, 3) for _ in range(12)), torch.eye(3).to_sparse()]
    owner, weights = watched(*tensors)
    assert weights.unchanged() and weights.unchanged()
    CHANGES[change](tensors, owner)
    assert not weights.unchanged()
    if change != "gone":
        weights.record()
        assert weights.unchanged()


def test_watched_tensors_may_be_resized() -> None:
    tensor = torch.ones(8)
    _, weights = watched(tensor)
    assert weights.unchanged()
    tensor.resize_(64)
    assert not weights.unchanged()
