"""Products of one input, computed as one product (`runtime/kernels/joined`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import fx, nn

from autopar.runtime.kernels import STACKS
from autopar.runtime.kernels.joined import FEW, MANY, joined, products
from autopar.runtime.kernels.stack import Compilation

aten = torch.ops.aten
FUNCTIONS: tuple[Any, ...] = (
    None, aten.relu.default, aten.tanh.default, aten.gelu.default, aten.abs.default,
)  # fmt: skip
VIEWS: tuple[Any, ...] = (None, lambda graph, node: graph.call_function(aten.unsqueeze.default, (node, 0)))


def module_of(layers: list[tuple[Any, ...]], rows: int) -> tuple[fx.GraphModule, torch.Tensor]:
    """Return a module of products, and its input: for each layer a width, `addmm` or `linear`, a bias or none, what
    follows, the number of an earlier value that it reads, and whether it is returned as it is."""
    root, graph = nn.Module(), fx.Graph()
    generator = torch.Generator().manual_seed(len(layers))
    first = graph.placeholder("x")
    read, results = [first], []
    for number, (width, turned, bias, function, view, source, returned) in enumerate(layers):
        weight = torch.randn(4, width, generator=generator)
        root.register_buffer(f"weight{number}", weight if turned else weight.t().contiguous())
        held = graph.get_attr(f"weight{number}")
        extra = None
        if bias or turned:
            # `addmm` also takes a bias of one number, which no joined bias can be made of.
            root.register_buffer(f"bias{number}", torch.randn(width if bias else 1, generator=generator))
            extra = graph.get_attr(f"bias{number}")
        x = read[source % len(read)]
        arguments = (extra, x, held) if turned else (x, held, extra)
        node = graph.call_function(aten.addmm.default if turned else aten.linear.default, arguments)
        if returned:
            results.append(view(graph, node) if view else node)
        if function:
            node = graph.call_function(function, (node,))
        if width == 4:
            read.append(node)
        results.append(graph.call_function(aten.mul.Tensor, (node, 2.0)))
    graph.output(tuple(results))
    return fx.GraphModule(root, graph), torch.randn(rows, 4, generator=generator)


layer = st.tuples(
    st.sampled_from([1, 3, 4]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(FUNCTIONS),
    st.sampled_from(VIEWS),
    st.integers(0, 5),
    st.sampled_from([False, False, True]),
)


CHAIN: list[Any] = [(4, False, True, None, None, source, False) for source in (0, 0, 1, 1)]
"""Products of one input whose result is the input of others."""


@example(CHAIN, False, 1)
@settings(max_examples=60, deadline=None)
@given(
    st.lists(layer, min_size=1, max_size=6), st.booleans(), st.sampled_from([1, FEW, FEW + 1, MANY, MANY + 1])
)
def test_joined_products_equal_single_ones(layers: list[Any], copied: bool, rows: int) -> None:
    module, x = module_of(layers, rows)
    right, before = module(x), len(products(module.graph))
    made = joined(module, [x], copied)
    module.graph.lint()
    found = module(x)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    # Those that are returned must not share memory with others.
    memories = [each.untyped_storage().data_ptr() for each in found]
    assert len({*memories}) == len(memories)
    assert (len(products(module.graph)) < before) == bool(made)
    assert not made or rows <= (FEW if copied else MANY)


def ensemble(parts: int, rows: int, function: Any = aten.relu.default) -> tuple[fx.GraphModule, torch.Tensor]:
    return module_of([(4, False, True, function, None, 0, False)] * parts, rows)


def count(module: fx.GraphModule, target: Any) -> int:
    return len(module.graph.find_nodes(op="call_function", target=target))


@pytest.mark.parametrize("copied", [False, True])
def test_what_follows_is_joined_where_parts_are_copied(copied: bool) -> None:
    module, x = ensemble(3, FEW)
    assert joined(module, [x], copied) == {
        "joined0": ("weight0", "weight1", "weight2"), "joined1": ("bias0", "bias1", "bias2")
    }  # fmt: skip
    assert count(module, aten.linear.default) == 1
    assert count(module, aten.relu.default) == (1 if copied else 3)
    # The joined product is a product of one weight, so that nothing is left to join.
    assert joined(module, [x], copied) == {}


def test_what_follows_stays_where_it_is_used_elsewhere_or_differs() -> None:
    module, x = module_of([(4, False, True, function, None, 0, False) for function in FUNCTIONS[1:3]], FEW)
    joined(module, [x], copied=True)
    assert count(module, aten.linear.default) == 1
    assert (count(module, aten.relu.default), count(module, aten.tanh.default)) == (1, 1)


def test_products_of_different_inputs_stay() -> None:
    module, x = module_of([(4, False, True, None, None, source, False) for source in (0, 1, 2)], 1)
    assert joined(module, [x], copied=False) == {}


class Repeated(nn.Module):
    """Two layers on one input, applied several times; `also` reads the weight of the first."""

    def __init__(self, also: Any = None) -> None:
        super().__init__()
        self.also = also
        for name in ("first", "second"):
            self.register_buffer(name, torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = aten.linear.default(x, self.first).tanh() * aten.linear.default(x, self.second)
        return x if self.also is None else x + self.also(x, self.first)


def test_a_layer_that_is_applied_again_is_joined_once() -> None:
    model, x = Repeated(), torch.randn(1, 4)
    module = fx.symbolic_trace(model)
    assert joined(module, [x], copied=True) == {"joined0": ("first", "second")}
    assert count(module, aten.linear.default) == 3
    torch.testing.assert_close(module(x), model(x))


@pytest.mark.parametrize(
    "also", [aten.linear.default, lambda x, weight: aten.embedding.default(weight, x.argmax(-1))]
)
def test_a_weight_that_is_read_elsewhere_is_not_copied(also: Any) -> None:
    module = fx.symbolic_trace(Repeated(also))
    assert joined(module, [torch.randn(1, 4)], copied=False) == {}


READERS: tuple[Any, ...] = (
    lambda x: x.as_strided((2, 2), (1, 4)), torch.view_as_complex, lambda x: x.view(torch.int32),
)  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("between", [lambda x: x, lambda x: aten.unsqueeze.default(x, 0)])
def test_what_reads_strides_gets_a_product_of_its_own(reader: Any, between: Any) -> None:
    first, second, third = (torch.randn(width, 4) for width in (2, 3, 3))

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = [aten.linear.default(x, weight) for weight in (first, second, third)]
        return reader(between(made[0])).abs(), made[1].tanh(), made[2].tanh()

    x = torch.randn(8, 4)
    module = torch.fx.experimental.proxy_tensor.make_fx(call, pre_dispatch=True)(x)
    made = joined(module, [x], copied=False)
    assert [len(parts) for parts in made.values()] == [2]
    for one, other in zip(module(x), call(x), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inductor frozen", "onnxruntime", "openvino"])
@pytest.mark.parametrize("rows", [1, FEW, FEW + 1])
def test_kernels_with_joined_products_equal_eager(name: str, rows: int, tmp_path: Path) -> None:
    (stack,) = (each for each in STACKS if each.name == name)
    if reason := stack.missing():
        pytest.skip(reason)
    layers = [
        (width, turned, True, aten.relu.default, None, 0, turned)
        for width in (3, 4)
        for turned in (False, True)
    ]
    (eager, x), (module, _) = module_of(layers * 2, rows), module_of(layers * 2, rows)
    work = Compilation(module, [x], torch.device("cpu"), 1, 1, tmp_path)
    assert stack.compile is not None
    stack.compile(work)
    # The caller's process loads what another one has compiled, with the module as it was.
    work = Compilation(eager, [x], torch.device("cpu"), 1, 1, tmp_path)
    kernel = stack.load(work)
    for _ in range(2):
        x = torch.randn_like(x)
        for one, other in zip(kernel(x), eager(x), strict=True):
            assert one.is_contiguous()
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
