"""Products with weights that MKL has packed, in kernels of inductor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from autopar.runtime.kernels import inductor
from autopar.runtime.kernels.stack import Compilation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="PyTorch was built without MKL"),
]


class Products(nn.Module):
    """Products with one weight for several numbers of rows, and with weights that MKL cannot pack."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, tensor in {
            "twice": torch.randn(8, 8),
            "bias": torch.randn(8),
            "wide": torch.randn(3, 8, dtype=torch.float64),
            "turned": torch.randn(8, 5).t(),
            "other": torch.randn(8, 4),
        }.items():
            self.register_buffer(name, tensor)

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        linear, addmm = torch.ops.aten.linear.default, torch.ops.aten.addmm.default
        many = linear(linear(x, self.twice, self.bias), self.twice)
        return (
            torch.relu(many),
            linear(x[0, 0], self.twice, self.bias),
            linear(x.double(), self.wide),
            linear(x, self.turned),
            linear(x, given),
            addmm(self.bias[:4], x[0], self.other),
            addmm(x[1, :, :4], x[0], self.other),
            addmm(self.bias[:4], x[0], self.other, beta=2),
        )


def test_products_equal_eager_whatever_can_be_packed(tmp_path: Path) -> None:
    model, examples = Products(), [torch.randn(2, 3, 8), torch.randn(4, 8)]
    graph = fx.symbolic_trace(model)
    work = Compilation(graph, examples, torch.device("cpu"), 1, 1, tmp_path)
    assert inductor.FROZEN.compile is not None
    inductor.FROZEN.compile(work)
    assert json.loads((tmp_path / "packed.json").read_text()) == [
        [["twice"], 6, False], [["twice"], 1, False], [["other"], 3, True]
    ]  # fmt: skip
    kernel = inductor.FROZEN.load(work)
    for _ in range(2):
        inputs = [torch.randn_like(each) for each in examples]
        found, right = kernel(*inputs), model(*inputs)
        assert [each.shape for each in found] == [each.shape for each in right]
        for one, other in zip(found, right):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
