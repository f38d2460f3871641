"""What each way of running a program answers, beside eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

import autopar

from .cases import CASES, Case, Compile

RIGHT, WRONG = "right", "**wrong**"


class _Does(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as it is."""
    return function


def _autopar(**options: Any) -> Compile:
    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        model = function if isinstance(function, nn.Module) else _Does(function)
        return autopar.compile(model, "cpu*2", **options)

    return compile


WAYS: dict[str, Compile] = {
    "`torch.compile`": lambda function: torch.compile(function),
    "autopar": _autopar(),
    'autopar, `kernels="inductor"`': _autopar(kernels="inductor"),
}
OURS = tuple(WAYS)[1:]


@dataclass(frozen=True)
class Row:
    """A case, what eager answers in a word, and the verdict on each way."""

    case: Case
    eager: str
    verdicts: dict[str, str] = field(default_factory=dict)


def rows(cases: Iterable[Case] = CASES, ways: Iterable[str] = tuple(WAYS)) -> Iterator[Row]:
    """Yield a row for each case."""
    for case in cases:
        expected = _observe(case, eager)
        kind = type(expected).__name__ if isinstance(expected, Exception) else "a value"
        yield Row(case, kind, {name: _verdict(expected, _observe(case, WAYS[name])) for name in ways})


def markdown(table: list[Row]) -> str:
    """Return the table, with counts below."""
    lines = [f"| report | program | eager | {' | '.join(WAYS)} |", f"|{'---|' * (3 + len(WAYS))}"]
    for row in table:
        link = f"[{row.case.issue}](https://github.com/pytorch/pytorch/issues/{row.case.issue})"
        lines.append(f"| {link} | {row.case.title} | {row.eager} | {' | '.join(row.verdicts.values())} |")
    for name in WAYS:
        wrong = sum(row.verdicts[name] == WRONG for row in table)
        lines.append(f"\n{name}: {wrong} wrong of {len(table)}")
    return "\n".join(lines)


def _observe(case: Case, way: Compile) -> Any:
    """Return what the caller of a case observes: its values, or the exception."""
    torch.compiler.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return case.observe(way)
        except Exception as error:
            return error


def _verdict(expected: Any, answer: Any) -> str:
    """Return whether an answer is eager's, another one, or an exception where eager has none."""
    if isinstance(answer, Exception):
        if isinstance(expected, Exception):
            return RIGHT if isinstance(answer, type(expected)) else f"right, as {type(answer).__name__}"
        return f"refused: {type(answer).__name__}"
    if isinstance(expected, Exception):
        return WRONG
    return RIGHT if _equal(expected, answer) else WRONG


def _equal(expected: Any, answer: Any) -> bool:
    """Return whether all leaves are equal: tensors in dtype, shape and values to rounding."""
    leaves, spec = _pytree.tree_flatten(expected)
    others, other_spec = _pytree.tree_flatten(answer)
    if spec != other_spec:
        return False
    return all(map(_same, leaves, others))


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return one == other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-5, equal_nan=True)
