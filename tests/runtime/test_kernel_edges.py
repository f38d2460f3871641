"""Values that the examples of a compilation do not have, on which a library would differ from PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from autopar.runtime.kernels import LIBRARIES, tracing

pytestmark = pytest.mark.slow
TABLE, SHORT = torch.arange(40.0).view(10, 4), torch.arange(8.0).view(2, 4)


@pytest.fixture(params=["onnxruntime", "openvino"])
def library(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if missing := LIBRARIES[name].missing():
        pytest.skip(missing)
    return name


def kernel(library: str, module: fx.GraphModule, *examples: torch.Tensor) -> Any:
    with tracing():
        return LIBRARIES[library].build(module, examples)


def test_attention_whose_mask_excludes_every_key_is_zero(library: str) -> None:
    """As in a row of a batch that is padded on the left."""
    causal = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
    padded = causal.clone()
    padded[0, ..., :2] = False
    q, k, v = torch.randn(3, 2, 4, 6, 8)

    def attention(q: Any, k: Any, v: Any, mask: Any, added: Any) -> Any:
        attend = torch.ops.aten.scaled_dot_product_attention.default
        return attend(q, k, v, mask), attend(q, k, v, added)

    def both(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return mask, torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)

    with torch.no_grad():
        call = kernel(library, fx.symbolic_trace(attention), q, k, v, *both(causal))
        for mask in (causal, padded):
            for ours, right in zip(call(q, k, v, *both(mask)), attention(q, k, v, *both(mask)), strict=True):
                torch.testing.assert_close(ours, right)


def test_a_packed_causal_mask_is_eagers(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers makes it: by operators that ONNX has under other names, so that it has nothing to decompose."""
    if library == "onnxruntime":
        monkeypatch.delattr(torch.export.ExportedProgram, "run_decompositions")

    def mask(places: Any, flags: Any) -> Any:
        aten = torch.ops.aten
        steps = aten.diff.default(places, 1, -1, places[:, :1] - 1)
        turns = aten.diff.default(flags, 2)
        packed = aten.cumsum.default(aten.ne.Scalar(steps, 1), -1)
        same = aten.eq.Tensor(packed[:, None, :], packed[:, :, None])
        both = aten.__and__.Tensor(same, flags[:, None, :])
        either = aten.__xor__.Tensor(aten.__or__.Tensor(both, turns[:, :1, None]), flags[:, :, None])
        return packed, both, either, aten.__and__.Tensor(places, packed)

    places, flags = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]]), torch.rand(2, 5) > 0.5
    call = kernel(library, fx.symbolic_trace(mask), places, flags)
    for given in (places, flags), (places.flip(0), ~flags):
        for ours, right in zip(call(*given), mask(*given), strict=True):
            assert torch.equal(ours, right)


LOOKUPS: list[Callable[..., torch.Tensor]] = [
    lambda ids, own: TABLE.gather(0, ids.expand(TABLE.shape[1], -1).t()),
    lambda ids, own: TABLE[ids],
    lambda ids, own: own.gather(1, ids.expand(own.shape[0], -1)),
    lambda ids, own: functional.embedding(ids, TABLE) + functional.embedding(ids, SHORT),
    lambda ids, own: functional.embedding(ids[0], TABLE),
]
"""Entries of a weight, rows by index, entries of an argument, rows of the shorter of two tables, and of part of ids."""


def test_lookups_out_of_range_end_as_in_eager(library: str) -> None:
    """All in one kernel, each with ids of its own."""

    def looked_up(own: torch.Tensor, *ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(lookup(each, own) * 2 for lookup, each in zip(LOOKUPS, ids, strict=True))

    own, good = torch.randn(2, 2), [torch.tensor([[1, 0, 1]]) for _ in LOOKUPS]
    call = kernel(library, make_fx(looked_up)(own, *good), own, *good)
    cases = [[ids.flip(1) for ids in good]]
    cases += [
        [torch.tensor([[1, bad, 0]]) if at == place else ids for at, ids in enumerate(good)]
        for place in range(len(LOOKUPS))
        for bad in (-1, -30, 2, 10, 30)
    ]
    refused = 0
    for ids in cases:
        try:
            expected = looked_up(own, *ids)
        except (IndexError, RuntimeError) as error:
            refused += 1
            with pytest.raises(type(error)) as caught:
                call(own, *ids)
            assert str(caught.value) == str(error)
        else:
            for ours, right in zip(call(own, *ids), expected, strict=True):
                torch.testing.assert_close(ours, right)
    assert refused > len(LOOKUPS)


def test_single_operators_are_eagers_beyond_their_examples(library: str) -> None:
    """Integers beyond int32 are not wrapped, a log sigmoid is finite far below zero, and an empty vector adds nothing
    to a tensor of another rank: in one kernel, of which each takes seconds."""

    def all_three(ids: Any, gate: Any, grown: Any) -> Any:
        aten = torch.ops.aten
        hashed = aten.remainder.Scalar(ids, 7), aten.add.Tensor(ids, 1)
        joined = aten.cat.default([torch.tensor([]), grown], -2)
        return (*hashed, aten.log_sigmoid.default(gate), aten.mul.Tensor(joined, 2))

    small, usual, grown = torch.tensor([5, 20]), torch.randn(4), torch.randn(2, 3, 4)
    call = kernel(library, fx.symbolic_trace(all_three), small, usual, grown)
    far = torch.tensor([2**40 + 3, -(2**33)]), torch.tensor([-1e4, -100.0, 0.0, 50.0])
    for ids, gate in ((torch.tensor([8, 1]), usual), far):
        found, expected = call(ids, gate, grown), all_three(ids, gate, grown)
        for ours, right in zip(found[:2], expected[:2], strict=True):
            assert torch.equal(ours, right)
        for ours, right in zip(found[2:], expected[2:], strict=True):
            torch.testing.assert_close(ours, right)


def test_results_that_are_copies_of_each_other_are_all_there(library: str) -> None:
    """As a model returns its last state, and all of its states after a dropout."""

    def states(x: Any) -> Any:
        aten = torch.ops.aten
        copied, last, count = aten.clone.default, aten.tanh.default(x), aten.sum.default(x)
        dropped = aten.dropout.default(copied(last), 0.5, False)
        return last, dropped, copied(last), copied(count), count, copied(x)

    x = torch.randn(2, 3)
    call = kernel(library, fx.symbolic_trace(states), x)
    for ours, right in zip(call(-x), states(-x), strict=True):
        torch.testing.assert_close(ours, right)
