"""A call in parts, as a cut says, and the check that this is the call."""

from __future__ import annotations

import math
from typing import Any

import torch

from autopar.capture.split_rules import cuts
from autopar.ir.graph import OWN, SUMMED, Cut
from autopar.ops import resolve as bind


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
            if axis is not None and axis >= 0:
                unit = tensor.shape[axis] // rows
                swap[id(tensor)] = tensor.narrow(axis, start * unit, size * unit)

        def put(value: Any, swap: dict[int, torch.Tensor] = swap) -> Any:
            return [put(item) for item in value] if isinstance(value, list) else swap.get(id(value), value)

        mine = tuple(put(value) for value in args)
        for path in cut.scale:
            mine = scaled(mine, path, size, rows)
        made.append(
            outputs_of(bind.target(str(op))(*mine, **{key: put(value) for key, value in kwargs.items()}))
        )
        start += size
    joined = []
    for index, axis in enumerate(cut.outputs):
        parts = [part[index] for part in made]
        if axis is None:
            joined.append(None)
        elif axis == SUMMED:
            joined.append(sum(parts[1:], parts[0]))
        elif axis == OWN:
            # What is no cut of a rule for statistics is the same for each part.
            torch.testing.assert_close(parts[1:], parts[:1] * (len(parts) - 1), rtol=0, atol=0)
            joined.append(parts[0])
        else:
            joined.append(torch.cat(parts, axis))
            assert [part.shape[axis] * rows for part in parts] == [
                outputs[index].shape[axis] * size for size in sizes
            ]
    return joined


def identify(case: Any) -> str:
    shapes = "-".join("x".join(map(str, tensor.shape)) for tensor in tensors((*case[1], *case[2].values())))
    return f"{case[0]}-{shapes}"


def check(case: Any) -> None:
    """Every cut of a call, in uneven and even parts, is the call, and the wanted ones are among them."""
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
        pairs = (*zip(given, cut.inputs), *zip(outputs, cut.outputs))
        axes = [tensor.shape[axis] for tensor, axis in pairs if axis is not None and axis >= 0]
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
