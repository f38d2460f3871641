"""State that changed without a trace is seen by a few of its elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from autopar.runtime.replicas import MANY, Replicas, Watch
from autopar.runtime.traces import ELEMENTS, traced


def watched(tensor: torch.Tensor) -> Watch:
    return Watch([Replicas().master("weight", {"weight": tensor}, "weight")])


@pytest.mark.parametrize("size", [1, 3, ELEMENTS, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_a_write_to_all_of_a_tensor_is_seen_at_once(size: int, dtype: torch.dtype) -> None:
    tensor = torch.ones(size).to(dtype)
    watch = watched(tensor)
    assert watch.unchanged()
    tensor.data.copy_(tensor.data == 0)
    assert tensor._version == 0 and not watch.unchanged()


def test_a_write_to_any_of_several_tensors_is_seen() -> None:
    packed = torch.frombuffer(bytearray(64), dtype=torch.float32, count=3, offset=1)
    made: list[torch.Tensor] = [
        torch.ones(3, dtype=torch.complex128), torch.ones(5, 7)[:, 1:3], torch.ones(9, dtype=torch.uint8),
        torch.ones(2, dtype=torch.float64).expand(4, 2), torch.ones(()), packed, torch.ones(0),
    ]  # fmt: skip
    state = dict(zip("abcdefg", made))
    pool = Replicas()
    for tensor in made:
        watch = Watch([pool.master(name, state, name) for name in state])
        assert watch.unchanged()
        tensor.data[(slice(1),) * tensor.dim()].fill_(2)
        assert watch.unchanged() is not bool(tensor.numel())


def test_scaling_is_seen_at_once_where_some_rows_are_zero() -> None:
    tensor = torch.ones(100, 64)
    tensor[0] = tensor[50:60] = 0
    watch = watched(tensor)
    tensor.data.mul_(2)
    assert not watch.unchanged()


@pytest.mark.parametrize(
    "change", [lambda t: t.mul_(2), lambda t: setattr(t, "data", torch.ones(4))], ids=["in place", "data"]
)
def test_other_traces_are_seen(change) -> None:
    tensor = torch.ones(4)
    watch = watched(tensor)
    assert watch.unchanged()
    change(tensor)
    assert not watch.unchanged()


def test_a_sparse_tensor_is_watched_by_its_version() -> None:
    tensor = torch.eye(3).to_sparse()
    watch = watched(tensor)
    assert watch.unchanged()
    tensor.mul_(2)
    assert not watch.unchanged()


def moved(tensor: torch.Tensor) -> None:
    """Give a tensor other memory with the same elements."""
    tensor.data = tensor.data.clone()


OTHER = torch.ones(9)
"""A tensor that lives on with what it was swapped for."""
MANY_CHANGES: dict[str, Callable[[list[torch.Tensor]], object]] = {
    "in place": lambda state: state[7].mul_(1),
    "through a view": lambda state: state[7][2:].add_(0),
    "other memory": lambda state: moved(state[7]),
    "another part of the same memory": lambda state: state[7].set_(state[7].untyped_storage(), 1, (6,), (1,)),
    "memory of another size": lambda state: state[7].untyped_storage().resize_(1 << 20),
    "swapped": lambda state: torch.utils.swap_tensors(state[7], OTHER),
    "an element": lambda state: state[7].data[-1].fill_(2),
    "another object": lambda state: state.__setitem__(7, torch.ones(9)),
}


@pytest.mark.parametrize("change", MANY_CHANGES, ids=lambda name: name.replace(" ", "-"))
def test_a_change_of_one_of_many_is_seen(change: str) -> None:
    tensors = [torch.ones(9) for _ in range(MANY + 4)]
    assert traced(tensors) is not None, "this torch keeps tensors in another way"
    state, pool = {str(at): tensor for at, tensor in enumerate(tensors)}, Replicas()
    watch = Watch([pool.master(name, state, name) for name in state])
    assert watch.unchanged() and watch.unchanged()
    MANY_CHANGES[change](tensors)
    state.update({str(at): tensor for at, tensor in enumerate(tensors)})
    assert not watch.unchanged()
    watch.take()
    assert watch.unchanged()


def test_many_of_which_one_is_of_another_kind_are_asked_one_by_one() -> None:
    tensors = [torch.ones(9) for _ in range(MANY)]
    sparse = torch.eye(3).to_sparse()
    assert traced([*tensors, sparse]) is None
    state, pool = {str(at): tensor for at, tensor in enumerate([*tensors, sparse])}, Replicas()
    watch = Watch([pool.master(name, state, name) for name in state])
    assert watch.unchanged()
    sparse.mul_(2)
    assert not watch.unchanged()
