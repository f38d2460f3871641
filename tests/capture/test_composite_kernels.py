"""Kernels that composite operators have during a trace, which are made once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_impls import op_implementations_dict

from autopar.capture import dynamo_private, torch_private
from autopar.capture.dynamo_private import flattened
from autopar.ops.composites.rules import whole_layers

LINEAR = torch.ops.aten.linear.default


def targets() -> list[str]:
    """What a trace of a linear layer calls."""

    class Layer(nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
            return (nn.functional.linear(x, weight).relu(),)

    graph = flattened(Layer(), (torch.ones(2, 3), torch.ones(4, 3)), {}).graph
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


def test_they_are_made_once_and_each_trace_leaves_those_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    first = targets()
    assert first == ["aten.linear.default", "aten.relu.default"]
    before, rules = dict(LINEAR.py_kernels), {*op_implementations_dict}
    with monkeypatch.context() as patch:
        patch.setattr(dynamo_private, "_override_composite_implicit_decomp", None)
        assert targets() == first
    assert LINEAR.py_kernels == before and {*op_implementations_dict} == rules
    # Torch's own way is as good as ever.
    with dynamo_private._override_composite_implicit_decomp({LINEAR: lambda *_: NotImplemented}):
        assert LINEAR.py_kernels != before
    assert LINEAR.py_kernels == before


def test_kernels_of_whole_layers_are_the_same_in_each_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    with whole_layers():
        first = targets()
    with monkeypatch.context() as patch, whole_layers():
        patch.setattr(dynamo_private, "_override_composite_implicit_decomp", None)
        assert targets() == first


def test_a_kernel_that_is_registered_meanwhile_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    first, key = targets(), torch._C.DispatchKey.AutogradPrivateUse1
    monkeypatch.setitem(LINEAR.py_kernels, key, lambda *args: None)
    before = dict(LINEAR.py_kernels)
    assert targets() == first and LINEAR.py_kernels == before
    assert torch_private._KERNELS[LINEAR][0] == before


def test_a_trace_that_fails_leaves_those_of_before() -> None:
    targets()
    before = dict(LINEAR.py_kernels)
    with pytest.raises(RuntimeError):
        flattened(nn.Module(), (torch.ones(2),), {})
    assert LINEAR.py_kernels == before
