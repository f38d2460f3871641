"""Each advertised cut is true: the call in two uneven parts, joined, is the call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cut_cases import CASES as OTHERS
from cut_cases import NONE, SHARED, b, case, r, spd
from cut_parts import check, identify, in_parts, outputs_of

from autopar.capture.split_rules import cuts

aten = torch.ops.aten
ATTENTION = aten.scaled_dot_product_attention.default

LINEAR = [
    case(aten.linear.default, r(6, 4), r(5, 4), r(5), axes=(0, 1)),
    case(aten.linear.default, r(6, 3, 4), r(5, 4), axes=(0, 1, 2)),
    case(aten.linear.default, r(4), r(5, 4), r(5), axes=(0,)),
    case(aten.mm.default, r(6, 4), r(4, 5), axes=(0, 1)),
    case(aten.mm.default, *(r(4, 4),) * 2),
    case(aten.bmm.default, r(6, 3, 4), r(6, 4, 5), axes=(0, 1, 2)),
    case(aten.mv.default, r(6, 4), r(4), axes=(0,)),
    case(aten.addmm.default, r(5), r(6, 4), r(4, 5), axes=(0, 1)),
    case(aten.addmm.default, r(6, 5), r(6, 4), r(4, 5), axes=(0, 1)),
    case(aten.addmm.default, r(6, 1), r(6, 4), r(4, 5), axes=(0, 1)),
    case(aten.addmv.default, r(6), r(6, 4), r(4), axes=(0,)),
    case(aten.baddbmm.default, r(6, 1, 5), r(6, 3, 4), r(6, 4, 5), axes=(0, 1, 2)),
    case(aten.matmul.default, r(6, 4), r(4, 5), axes=(0, 1)),
    case(aten.matmul.default, r(6, 3, 4), r(4, 5), axes=(0, 1, 2)),
    case(aten.matmul.default, r(6, 3, 4), r(6, 4, 5), axes=(0, 1, 2)),
    case(aten.matmul.default, r(6, 1, 3, 4), r(2, 4, 5), axes=(0, 1, 2, 3)),
    case(aten.matmul.default, r(3, 4), r(6, 4, 5), axes=(0, 1, 2)),
    case(aten.matmul.default, r(4), r(6, 4, 5), axes=(0, 1)),
    case(aten.matmul.default, r(6, 3, 4), r(4), axes=(0, 1)),
    case(aten.matmul.default, r(4), r(4)),
    case(aten.einsum.default, "bik,bkj->bij", [r(6, 3, 4), r(6, 4, 5)], axes=(0, 1, 2)),
    case(aten.einsum.default, "b h i k, k j -> j h i b", [r(6, 2, 3, 4), r(4, 5)], axes=(0, 1, 2, 3)),
    case(aten.einsum.default, "ii->i", [r(4, 4)]),
    case(aten.einsum.default, "bi,bi->b", [SHARED, SHARED], axes=(0,)),
    case(aten.bilinear.default, r(6, 3), r(6, 4), r(5, 3, 4), r(5), axes=(0,)),
    case(aten.outer.default, r(6), r(4), axes=(0, 1)),
    case(aten.cdist.default, r(6, 3, 4), r(6, 5, 4), axes=(0, 1, 2)),
    case(aten.cdist.default, r(6, 4), r(5, 4), axes=(0, 1)),
    case(aten.conv1d.default, r(6, 3, 8), r(4, 3, 3), r(4), axes=(0,)),
    case(aten.conv2d.default, r(6, 3, 8, 8), r(4, 3, 3, 3), axes=(0,)),
    case(aten.conv2d.padding, r(6, 3, 8, 8), r(4, 3, 3, 3), None, [1, 1], "same", axes=(0,)),
    case(aten.conv2d.default, r(3, 8, 8), r(4, 3, 3, 3)),
    case(aten.conv3d.default, r(6, 3, 4, 4, 4), r(4, 3, 3, 3, 3), axes=(0,)),
    case(aten.conv_transpose2d.input, r(6, 3, 4, 4), r(3, 4, 3, 3), axes=(0,)),
    case(
        aten.convolution.default,
        *(r(6, 4, 8), r(4, 2, 3), r(4), [1], [0], [1], False, [0], 2),
        axes=(0,),
    ),
    *(
        case(ATTENTION, r(6, 4, 3, 8), r(6, 4, 5, 8), r(6, 4, 5, 8), mask, axes=(0, 1, 2))
        for mask in (None, b(6, 1, 3, 5) | True, r(3, 5), r(6, 1, 1, 5))
    ),
    case(ATTENTION, *(r(6, 4, 3, 8) for _ in range(3)), None, 0.0, True, axes=(0, 1)),
    case(ATTENTION, r(6, 8, 3, 4), r(6, 4, 5, 4), r(6, 4, 5, 4), enable_gqa=True, axes=(0, 1, 2)),
    case(ATTENTION, r(6, 3, 8), r(6, 5, 8), r(6, 5, 7), axes=(0, 1)),
    case(
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        *(r(6, 4, 3, 8), r(6, 4, 5, 8), r(6, 4, 5, 8)),
        axes=(0,),
    ),
    case(
        aten._transformer_encoder_layer_fwd.default,
        *(r(6, 3, 8), 8, 2, r(24, 8), r(24), r(8, 8), r(8), True, False, 1e-5, r(8), r(8), r(8), r(8)),
        *(r(16, 8), r(16), r(8, 16), r(8)),
        axes=(0,),
    ),
    case(
        aten.lstm.input,
        *(r(6, 3, 4), [r(1, 6, 5), r(1, 6, 5)], [r(20, 4), r(20, 5), r(20), r(20)]),
        *(True, 1, 0.0, False, False, True),
        axes=(0,),
    ),
    case(
        aten.gru.input,
        *(r(3, 6, 4), r(1, 6, 5), [r(15, 4), r(15, 5), r(15), r(15)]),
        *(True, 1, 0.0, False, False, False),
        axes=(1,),
    ),
    case(aten.lstm_cell.default, r(6, 4), [r(6, 5), r(6, 5)], r(20, 4), r(20, 5), r(20), r(20), axes=(0,)),
    case(aten.gru_cell.default, r(6, 4), r(6, 5), r(15, 4), r(15, 5), r(15), r(15), axes=(0,)),
    case(aten.max_pool2d.default, r(6, 4, 8, 8), [2, 2], axes=(0, 1)),
    case(aten.max_pool2d_with_indices.default, r(6, 4, 8, 8), [2, 2], axes=(0, 1)),
    case(aten.max_pool1d.default, r(6, 4, 8), [2], axes=(0, 1)),
    case(aten.avg_pool2d.default, r(6, 4, 8, 8), [2, 2], axes=(0, 1)),
    case(aten.avg_pool1d.default, r(6, 4, 8), [2], axes=(0, 1)),
    case(aten.adaptive_avg_pool2d.default, r(6, 4, 8, 8), [2, 2], axes=(0, 1)),
    case(aten._adaptive_avg_pool2d.default, r(6, 4, 8, 8), [2, 2], axes=(0, 1)),
    case(aten.adaptive_avg_pool1d.default, r(6, 4, 8), [2], axes=(0, 1)),
    case(aten.adaptive_max_pool2d.default, r(6, 4, 8, 8), [2, 2], axes=(0, 1)),
    case(aten.avg_pool3d.default, r(6, 4, 4, 4, 4), [2, 2, 2], axes=(0, 1)),
    case(aten.upsample_nearest2d.vec, r(6, 4, 3, 3), None, [2.0, 2.0], axes=(0, 1)),
    case(aten.upsample_bilinear2d.vec, r(6, 4, 3, 3), [6, 6], False, None, axes=(0, 1)),
    case(aten.upsample_bicubic2d.default, r(6, 4, 3, 3), [6, 6], False, axes=(0, 1)),
    case(aten._upsample_bicubic2d_aa.default, r(6, 4, 3, 3), [6, 6], False, axes=(0, 1)),
    case(aten.upsample_linear1d.default, r(6, 4, 3), [6], False, axes=(0, 1)),
    case(aten.grid_sampler.default, r(6, 4, 3, 3), r(6, 5, 5, 2), 0, 0, False, axes=(0,)),
    case(aten.affine_grid_generator.default, r(6, 2, 3), [6, 3, 4, 4], False, axes=(0,)),
    case(aten.linalg_inv.default, spd(6), axes=(0,)),
    case(aten.linalg_inv_ex.default, spd(6), axes=(0,)),
    case(aten.linalg_cholesky.default, spd(6, 2), axes=(0, 1)),
    case(aten.linalg_det.default, spd(6), axes=(0,)),
    case(aten.linalg_slogdet.default, spd(6), axes=(0,)),
    case(aten.linalg_matrix_exp.default, r(6, 3, 3), axes=(0,)),
    case(aten.linalg_svdvals.default, r(6, 3, 4), axes=(0,)),
    case(aten.linalg_eigvalsh.default, spd(6), axes=(0,)),
    case(aten.linalg_pinv.default, r(6, 3, 4), 1e-15, axes=(0,)),
    case(aten.linalg_solve.default, spd(6), r(6, 4, 2), axes=(0,)),
]


aten = torch.ops.aten
CASES = [*OTHERS, *LINEAR]


@pytest.mark.parametrize("case", CASES, ids=identify)
def test_every_cut_of_a_call_gives_the_call(case: Any) -> None:
    check(case)


@pytest.mark.parametrize("case", NONE, ids=identify)
def test_operators_that_need_their_whole_input_have_no_cut(case: Any) -> None:
    op, args, kwargs, _ = case
    assert cuts(op, args, kwargs, op(*args, **kwargs)) == ()


def test_a_call_that_is_no_operator_has_no_cut() -> None:
    assert cuts(torch.relu, (r(4, 4),), {}, r(4, 4)) == ()


def test_one_tensor_twice_is_one_input() -> None:
    x = r(4, 5)
    assert {cut.inputs for cut in cuts(aten.add.Tensor, (x, x), {}, x + x)} == {(0,), (1,)}


def test_one_tensor_that_would_be_cut_in_two_ways_is_not_cut() -> None:
    x = r(4, 4)
    assert cuts(aten.mm.default, (x, x), {}, x @ x) == ()


def test_the_order_of_inputs_is_that_of_the_arguments() -> None:
    x, mask = r(2, 3, 4, 5), r(4, 4)
    q, k = r(2, 3, 4, 5), r(2, 3, 4, 5)
    found = cuts(
        aten.scaled_dot_product_attention.default, (q, k, x), {"attn_mask": mask}, aten.add.Tensor(q, x)
    )
    assert (0, 0, 0, None) in {cut.inputs for cut in found}


def every_pointwise() -> list[Any]:
    """Functional pointwise operators that take one or two tensors and nothing else without a default."""
    found = []
    for name in dir(aten):
        packet = getattr(aten, name)
        if not isinstance(packet, torch._ops.OpOverloadPacket) or name.startswith(("special_", "__")):
            continue
        for overload in packet.overloads():
            op = getattr(packet, overload)
            needed = [argument for argument in op._schema.arguments if argument.default_value is None]
            plain = all(str(argument.type) == "Tensor" for argument in needed)
            if torch.Tag.pointwise in op.tags and not op._schema.is_mutable and plain and len(needed) <= 2:
                found.append((op, len(needed)))
    return found


@pytest.mark.parametrize(("op", "count"), every_pointwise(), ids=str)
def test_the_tag_pointwise_holds(op: Any, count: int) -> None:
    for kind in (torch.float64, torch.int64, torch.bool):
        given = [(r(6, 4) * 3).abs().add(1).to(kind), (r(4) * 3).abs().add(1).to(kind)][:count]
        try:
            whole = op(*given)
        except RuntimeError:
            continue
        outputs = outputs_of(whole)
        for cut in cuts(op, given, {}, whole):
            sizes = (1, (6, 4)[cut.outputs[0]] - 1)
            for joined, output in zip(in_parts(op, given, {}, cut, sizes, outputs), outputs, strict=True):
                torch.testing.assert_close(joined, output, equal_nan=True)
