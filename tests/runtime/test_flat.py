"""Many tensors in few transfers."""

from __future__ import annotations

import pytest
import torch

from autopar.ir.graph import Graph, Value
from autopar.runtime.flat_transfer import LARGEST, bring

CPU = torch.device("cpu")


def transfers(copies: list[torch.Tensor]) -> int:
    """The number of storages: each is filled by one transfer."""
    strided = [copy for copy in copies if copy.layout is torch.strided]
    return len({copy.untyped_storage()._cdata for copy in strided}) + len(copies) - len(strided)


def test_many_tensors_go_in_one_transfer_of_each_kind() -> None:
    base = torch.randn(6, 5)
    dense = [torch.randn(n) for n in (1, 3, 1000)] + [base.t(), torch.randn(2, 3, 4, 5).permute(0, 3, 1, 2)]
    trained = [torch.nn.Parameter(torch.randn(2, 2)) for _ in range(3)]
    other = [torch.arange(5), torch.arange(6).view(2, 3)]
    odd = [torch.randn(1).expand(4), torch.randn(3, 4)[:, :2], torch.randn(0, 2), torch.eye(2).to_sparse()]
    tensors = [*dense, *trained, *other, *odd]
    copies = bring(tensors, CPU)
    assert transfers(copies) == 3 + len(odd)
    for tensor, copy in zip(tensors, copies, strict=True):
        assert not copy.requires_grad and copy._base is None
        if tensor.layout is torch.strided:
            assert torch.equal(copy, tensor)
            assert copy.data_ptr() != tensor.data_ptr() or not tensor.numel()
        else:
            assert torch.equal(copy.to_dense(), tensor.to_dense())
    for tensor, copy in zip(dense, copies):
        assert copy.stride() == tensor.stride() and copy.data_ptr() % 64 == 0
    version = copies[1]._version
    copies[0].add_(1)
    assert copies[1]._version == version, "copies know nothing of each other"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_bytes_of_copies_match_the_graph(dtype: torch.dtype) -> None:
    tensors = [torch.zeros(shape, dtype=dtype) for shape in [(), (3,), (64,), (5, 7), (1000,)]]
    states = [
        Value(f"w{n}", tuple(t.shape), str(dtype).removeprefix("torch."), t.nbytes, f"w{n}", "state")
        for n, t in enumerate(tensors)
    ]
    names = tuple(state.name for state in states)
    copied = Graph("state", tuple(states), (), (), names, ()).copies
    copies = bring(tensors, CPU)
    assert transfers(copies) == 1
    assert sum(copied[name][1] for name in names) == copies[0].untyped_storage().nbytes()
    assert [copied[name][0] for name in names] == [*names]


def test_large_tensors_are_not_gathered() -> None:
    count = LARGEST // 4
    assert transfers(bring([torch.empty(count // 2) for _ in range(5)], CPU)) == 3
    assert transfers(bring([torch.empty(count), torch.empty(4), torch.empty(4)], CPU)) == 2
