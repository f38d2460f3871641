"""Kernels for calls of all sizes, without a model around them: their errors, and the lengths that they hold for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from autopar.pipeline.kernel_calls import fitting_all
from autopar.runtime.kernels import Compilation
from autopar.runtime.kernels.stack import bounds_of

TABLE = torch.arange(20.0).view(10, 2)


def rows(ids: Tensor) -> tuple[Tensor]:
    return (torch.ops.aten.embedding.default(TABLE, ids),)


def kernel(call: Callable[..., Any], folder: Path, limits: list[str]) -> Callable[..., Any]:
    module, examples = fx.symbolic_trace(rows), [torch.zeros(4, 6, dtype=torch.long)]
    work = Compilation(module, examples, torch.device("cpu"), 1, 1, folder, axes=({0: "rows", 1: "columns"},))
    return fitting_all(call, work, module(*examples), limits)


def failing(ids: Tensor) -> tuple[Tensor]:
    if ids.shape[1] % 2:
        raise ValueError("odd")
    return rows(ids)


def test_eager_answers_where_a_kernel_fails(tmp_path: Path) -> None:
    limits: list[str] = []
    call = kernel(failing, tmp_path, limits)
    for length in (8, 7, 9, 6):
        ids = torch.randint(10, (4, length))
        assert torch.equal(call(ids)[0], rows(ids)[0])
    assert limits == ["ValueError: odd"]


def test_where_eager_fails_too_the_error_is_eagers(tmp_path: Path) -> None:
    limits: list[str] = []
    call = kernel(failing, tmp_path, limits)
    with pytest.raises(IndexError):
        call(torch.full((4, 7), 10))
    assert not limits


class Slicing(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * torch.ones(10)[: x.shape[0]], y + 1


def test_lengths_of_several_inputs_are_within_the_limits_of_each() -> None:
    given = torch.randn(4), torch.randn(4)
    made = torch.export.export(
        Slicing(), given, dynamic_shapes=tuple({0: torch.export.Dim.DYNAMIC} for _ in given)
    )
    assert bounds_of(made, ({0: "length"}, {0: "length"})) == {"length": (2, 10)}
