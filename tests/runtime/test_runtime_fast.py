"""A binding of torch stands in for an operator only where both come to the same operators and the same
bits.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.ir.graph import Const, Ref, Task
from autopar.ops import resolve as bind
from autopar.ops.resolve import OPERATORS, fast

X, Y, B = "x", "y", "b"
MORE = {
    "addmm": ("y", "x", "x"), "baddbmm": ("c", "c", "c"), "bmm": ("c", "c"), "linear": ("x", "y"), "mm": ("x", "y"),
    "matmul": ("x", "y"), "where": ("b", "x", "y"), "clamp": ("x", -0.5, 0.5), "lerp": ("x", "y", 0.25),
    "masked_fill.Scalar": ("x", "b", -1.0), "masked_fill.Tensor": ("x", "b", "zero"),
    "scaled_dot_product_attention": ("c", "c", "c"), "conv1d": ("c", "c", None, (1,), (1,)),
    "conv2d": ("d", "d", None, (1, 1), (1, 1)), "conv3d": ("e", "e", None, (1, 1, 1), (1, 1, 1)),
    "layer_norm": ("x", (4,), "row", "row"), "native_layer_norm": ("x", (4,), "row", "row", 1e-5),
    "group_norm": ("d", 2, "row", "row"), "embedding": ("x", "i"), "softmax": ("x", -1), "log_softmax": ("x", 0),
    "batch_norm": ("x", "row", "row", "row", "row", False, 0.1, 1e-5, False), "max_pool2d": ("d", (2, 2)),
    "avg_pool2d": ("d", (2, 2)), "dropout": ("x", 0.5, True), "cat": (("x", "y"), 1), "stack": (("x", "y"), 0),
    "chunk": ("x", 2, 1), "split_with_sizes": ("x", (1, 3), 1), "unbind": ("x", 0), "transpose": ("x", 0, 1),
    "permute": ("x", (1, 0)), "reshape": ("x", (2, 8)), "view": ("x", (2, 8)), "unsqueeze": ("x", 1),
    "squeeze.dim": ("x", 0), "flatten": ("x", 0, 1), "select": ("x", 0, 2), "expand": ("x", (3, 4, 4)),
    "narrow": ("x", 1, 1, 2), "index_select": ("x", 0, "i"), "gather": ("x", 0, "j"),
    "sum.dim_IntList": ("x", (0,), True), "mean.dim": ("x", (1,), False), "amax": ("x", (0,)), "amin": ("x", (0,)),
    "cumsum": ("x", 0), "argmax": ("x", 1), "roll": ("x", (1,), (0,)), "flip": ("x", (0,)),
    "pow.Tensor_Scalar": ("x", 2), "logical_and": ("b", "b"), "logical_or": ("b", "b"), "logical_not": ("b",),
    "bitwise_and": ("b", "b"), "bitwise_or": ("b", "b"),
}  # fmt: skip
LISTS = ("chunk", "split_with_sizes", "unbind", "native_layer_norm")


class Seen(TorchDispatchMode):
    """The operators that calls come to."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def tensors(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def positive(*shape: int) -> torch.Tensor:
        return (torch.rand(*shape, generator=generator, dtype=torch.float32) + 0.1).to(dtype)

    return {
        "x": positive(4, 4),
        "y": positive(4, 4),
        "row": positive(4),
        "c": positive(4, 4, 4),
        "d": positive(4, 4, 4, 4),
        "e": positive(2, 2, 4, 4, 4),
        "b": positive(4, 4) > 0.5,
        "zero": torch.zeros((), dtype=dtype),
        "i": torch.tensor([0, 2, 1]),
        "j": torch.zeros(2, 4, dtype=torch.int64),
    }


def samples(name: str) -> list[tuple]:
    """Arguments for an overload; strings are tensors."""
    base, _, overload = name.partition(".")
    if name in MORE or base in MORE:
        return [MORE.get(name) or MORE[base]]
    schema = getattr(getattr(torch.ops.aten, base), overload)._schema
    kinds = [str(argument.type) for argument in schema.arguments if not argument.kwarg_only]
    if kinds[:2] == ["Tensor", "Tensor"]:
        return [("x", "y"), ("x", 2), ("x", 0.5)] if base in ("add", "sub", "mul", "div") else [("x", "y")]
    return [("x", 1.5)] if overload == "Scalar" else [("x",)]


def template(argument):
    if isinstance(argument, str):
        return Ref(argument)
    return tuple(map(template, argument)) if isinstance(argument, tuple) else argument


@pytest.mark.parametrize("target", sorted(OPERATORS))
def test_a_binding_comes_to_the_same_operators(target: str) -> None:
    name = target.removeprefix("aten.")
    operator = bind.target(target)
    for arguments in samples(name):
        task = Task("t", target, tuple(map(template, arguments)), unpack=name.split(".")[0] in LISTS)
        function = fast(task, operator)
        assert function is not operator, "nothing is gained; leave it out of the table"
        for dtype in (torch.float32, torch.bfloat16):
            found = []
            for call in (operator, function):
                values = tensors(dtype)
                torch.manual_seed(3)
                args = [
                    bind.argument(argument, values.__getitem__, torch.device("cpu")) for argument in task.args
                ]
                if call is function:
                    args = [tuple(argument) if isinstance(argument, list) else argument for argument in args]
                with torch.no_grad(), Seen() as seen:
                    made = call(*args)
                found.append((seen.names, made if isinstance(made, list | tuple) else [made]))
            assert found[0][0] == found[1][0]
            for one, other in zip(found[0][1], found[1][1], strict=True):
                assert one.dtype == other.dtype and one.stride() == other.stride()
                assert torch.equal(one, other)


def test_doubtful_arguments_keep_the_operator() -> None:
    relu = bind.target("aten.relu.default")
    assert fast(Task("t", "aten.relu.default", (Ref("x"),), (("self", Ref("x")),)), relu) is relu
    chunk = bind.target("aten.chunk.default")
    assert fast(Task("t", "aten.chunk.default", (Ref("x"), 2)), chunk) is chunk
    zeros = bind.target("aten.zeros.default")
    assert fast(Task("t", "aten.zeros.default", ((2, 2),), (("device", Const("device")),)), zeros) is zeros
    view = bind.target("aten.view.dtype")
    assert fast(Task("t", "aten.view.dtype", (Ref("x"), Const("torch.int32"))), view) is view
