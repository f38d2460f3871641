"""FLOPs of operators that capture keeps whole: as torch counts those that they come to."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from autopar.capture.operators import flops

aten = torch.ops.aten


def r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


CALLS = {
    "linear": (aten.linear.default, (r(3, 5, 7), r(11, 7), r(11))),
    "matmul": (aten.matmul.default, (r(2, 3, 5, 7), r(7, 11))),
    "bmm": (aten.bmm.default, (r(2, 5, 7), r(2, 7, 3))),
    "addmm": (aten.addmm.default, (r(3), r(5, 7), r(7, 3))),
    "conv1d": (aten.conv1d.default, (r(2, 4, 9), r(6, 4, 3), None, [2])),
    "conv2d": (aten.conv2d.default, (r(2, 4, 9, 8), r(6, 4, 3, 2), None, [2, 1], [1, 0])),
    "conv2d of groups": (
        aten.conv2d.default,
        (r(2, 4, 9, 8), r(6, 2, 3, 2), None, [1, 1], [0, 0], [1, 1], 2),
    ),
    "conv_transpose1d": (aten.conv_transpose1d.default, (r(2, 4, 9), r(4, 6, 3), None, [2])),
    "conv_transpose2d": (aten.conv_transpose2d.input, (r(2, 4, 9, 8), r(4, 6, 3, 2), None, [3, 2])),
    "attention": (aten.scaled_dot_product_attention.default, (r(2, 3, 5, 8), r(2, 3, 7, 8), r(2, 3, 7, 8))),
    "attention of one head": (
        aten.scaled_dot_product_attention.default,
        (r(2, 5, 8), r(2, 7, 8), r(2, 7, 4)),
    ),
}


@pytest.mark.parametrize(("op", "args"), CALLS.values(), ids=CALLS)
def test_as_torch_counts_what_it_comes_to(op, args):
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        output = op(*args)
    assert flops(op, args, {}, output) == counter.get_total_flops() > 0


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_layers_multiply_with_each_weight_at_each_step(kind, bidirectional):
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn_tanh": torch.nn.RNN}[kind]
    layer, x = module(5, 6, num_layers=2, bidirectional=bidirectional), r(4, 3, 5)
    state = torch.zeros(4 if bidirectional else 2, 3, 6)
    op = getattr(aten, kind).input
    first = [state, state] if kind == "lstm" else state
    args = (x, first, list(layer.parameters()), True, 2, 0.0, False, bidirectional, False)
    matrices = sum(weight.numel() for weight in layer.parameters() if weight.dim() == 2)
    assert flops(op, args, {}, op(*args)) == 2 * 4 * 3 * matrices


def test_operators_that_only_move_bytes_have_no_flops():
    x = r(3, 4)
    for op, args in ((aten.relu.default, (x,)), (aten.t.default, (x,)), (aten.sum.default, (x,))):
        assert flops(op, args, {}, op(*args)) == 0
