"""Each advertised cut is true: the call in two uneven parts, joined, is the call."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cut_cases import CASES as OTHERS
from cut_cases import NONE, r
from cut_products import LINEAR

from autopar.capture.cuts import cuts
from autopar.graph import Cut

aten = torch.ops.aten
CASES = [*OTHERS, *LINEAR]


def tensors(arguments: Any) -> list[torch.Tensor]:
    """The distinct tensors in order, as a task reads them."""
    found: dict[int, torch.Tensor] = {}
    for value in arguments:
        for tensor in (
            [value] if isinstance(value, torch.Tensor) else value if isinstance(value, list) else []
        ):
            if isinstance(tensor, torch.Tensor):
                found.setdefault(id(tensor), tensor)
    return list(found.values())


def outputs_of(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result]


def scaled(args: tuple[Any, ...], path: tuple[int, ...], part: int, whole: int) -> tuple[Any, ...]:
    items = list(args)
    step, *rest = path
    items[step] = (
        list(scaled(tuple(items[step]), tuple(rest), part, whole)) if rest else items[step] * part // whole
    )
    return tuple(items)


def reached(args: tuple[Any, ...], path: tuple[int, ...]) -> int:
    item: Any = args
    for step in path:
        item = item[step]
    return item


def in_parts(
    op: Any, args: Any, kwargs: Any, cut: Cut, sizes: tuple[int, ...], outputs: list[Any]
) -> list[Any]:
    """Outputs of the call made part by part and joined; None where the cut gives no axis."""
    rows = sum(sizes)
    given = tensors((*args, *kwargs.values()))
    made: list[list[Any]] = []
    start = 0
    for size in sizes:
        swap = {}
        for tensor, axis in zip(given, cut.inputs, strict=True):
            if axis is not None:
                unit = tensor.shape[axis] // rows
                swap[id(tensor)] = tensor.narrow(axis, start * unit, size * unit)

        def put(value: Any, swap: dict[int, torch.Tensor] = swap) -> Any:
            return [put(item) for item in value] if isinstance(value, list) else swap.get(id(value), value)

        mine = tuple(put(value) for value in args)
        for path in cut.scale:
            mine = scaled(mine, path, size, rows)
        made.append(outputs_of(op(*mine, **{key: put(value) for key, value in kwargs.items()})))
        start += size
    joined = []
    for index, axis in enumerate(cut.outputs):
        parts = [part[index] for part in made]
        joined.append(None if axis is None else torch.cat(parts, axis))
        if axis is not None:
            assert [part.shape[axis] * rows for part in parts] == [
                outputs[index].shape[axis] * size for size in sizes
            ]
    return joined


def identify(case: Any) -> str:
    shapes = "-".join("x".join(map(str, tensor.shape)) for tensor in tensors((*case[1], *case[2].values())))
    return f"{case[0]}-{shapes}"


@pytest.mark.parametrize("case", CASES, ids=identify)
def test_every_cut_of_a_call_gives_the_call(case: Any) -> None:
    op, args, kwargs, wanted = case
    outputs = outputs_of(op(*args, **kwargs))
    found = cuts(op, args, kwargs, outputs if len(outputs) > 1 else outputs[0])
    assert wanted <= {cut.outputs[0] for cut in found}, f"{found} lacks an axis of {wanted}"
    assert len(set(found)) == len(found)
    given = tensors((*args, *kwargs.values()))
    tried = set()
    for cut in found:
        assert len(cut.inputs) == len(given)
        assert len(cut.outputs) == len(outputs)
        axes = [tensor.shape[axis] for tensor, axis in zip(given, cut.inputs) if axis is not None]
        axes += [tensor.shape[axis] for tensor, axis in zip(outputs, cut.outputs) if axis is not None]
        rows = math.gcd(*axes, *(reached(args, path) for path in cut.scale))
        if rows < 2:
            continue
        tried.add(cut.outputs[0] if cut.outputs else None)
        for sizes in {(1, rows - 1), (rows - 1, 1), (rows // 2, rows - rows // 2)}:
            for joined, output in zip(in_parts(op, args, kwargs, cut, sizes, outputs), outputs, strict=True):
                if joined is not None:
                    assert joined.dtype == output.dtype
                    torch.testing.assert_close(joined, output, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert tried or not wanted, "no cut could be tried with these sizes"


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
