"""The table of the operators whose values differ between a library and PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopar.ir.graph import Const, Graph, Ref, Task, Value
from autopar.runtime.kernels.differences import DIFFERENCES, differs

LIBRARIES = ("inductor", "inductor frozen", "onnxruntime", "openvino")
DOCS = Path(__file__).parents[2] / "docs" / "kernels.md"


def reasons(target: str, reads: str, makes: str, *constants: object) -> set[str]:
    """The libraries under which a task that reads two tensors, or one and constants, stays eager."""
    names = ("a",) if constants else ("a", "b")
    values = [Value(name, (4,), reads, 16, name, "input") for name in names]
    task = Task("t", target, (*map(Ref, names), *constants), outputs=("c",))
    graph = Graph("g", (*values, Value("c", (4,), makes, 16, "c")), (task,), names, (), ("c",))
    return {library for library in LIBRARIES if differs(task, graph, library)}


@pytest.mark.parametrize(
    ("target", "reads", "makes", "constants", "under"),
    [
        ("aten.div.Tensor_mode", "int64", "int64", (), set(LIBRARIES)),
        ("aten.remainder.Scalar", "int64", "int64", (7,), {"openvino"}),
        ("aten.sub.Tensor", "uint8", "uint8", (), {"onnxruntime", "openvino"}),
        ("aten.expm1.default", "float32", "float32", (None,), set(LIBRARIES)),
        ("aten._to_copy.default", "uint8", "float32", (Const("torch.float32"),), set()),
        ("aten.add.Tensor", "int64", "int64", (1,), set()),
        ("aten.add.Tensor", "int64", "int64", (2**40,), {"openvino"}),
        ("aten.mul.Tensor", "float32", "float32", (0.5,), set()),
        ("aten.div.Tensor", "float32", "float32", (), set()),
        ("aten.linear.default", "float32", "float32", (), set()),
        ("aten.relu.default", "float32", "float32", (None,), set()),
        ("aten.embedding.default", "int64", "float32", (), set()),
    ],
)
def test_operators_of_usual_models_are_compiled_and_others_stay_eager(
    target: str, reads: str, makes: str, constants: tuple[object, ...], under: set[str]
) -> None:
    assert reasons(target, reads, makes, *constants) == under


def test_the_docs_have_the_table() -> None:
    text = DOCS.read_text()
    for row in DIFFERENCES:
        assert row.instead in text
        assert all(f"`{name}`" in text for name in row.operators.split())
