"""Each advertised cut is true: the call in two uneven parts, joined, is the call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cut_cases import CASES as OTHERS
from cut_cases import NONE, r
from cut_parts import check, identify, in_parts, outputs_of
from cut_products import LINEAR

from autopar.capture.split_rules import cuts

aten = torch.ops.aten
CASES = [*OTHERS, *LINEAR]


@pytest.mark.parametrize("case", CASES, ids=identify)
def test_every_cut_of_a_call_gives_the_call(case: Any) -> None:
    check(case)


@pytest.mark.parametrize("case", NONE, ids=identify)
def test_what_needs_its_whole_input_has_no_cut(case: Any) -> None:
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
