"""Kernels that composite operators have during a capture alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_impls import op_implementations_dict

import autopar

LINEAR = torch.ops.aten.linear.default


def known() -> tuple[Any, ...]:
    return dict(LINEAR.py_kernels), {*op_implementations_dict}


def test_captures_leave_those_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that fails, and where other code registers a kernel meanwhile."""
    layer, x = torch.nn.functional.linear, torch.ones(2, 3)
    autopar.compile(layer, ["cpu"])(x, torch.ones(4, 3))
    for meanwhile in (False, True):
        if meanwhile:
            key = torch._C.DispatchKey.AutogradPrivateUse1
            monkeypatch.setitem(LINEAR.py_kernels, key, lambda *args: None)
        before = known()
        for _ in range(2):
            fast = autopar.compile(layer, ["cpu"])
            with torch.no_grad():
                fast(x, torch.ones(4, 3))
                assert [task.target for task in fast.plan.costed.graph.tasks] == ["aten.linear.default"]
                with pytest.raises(RuntimeError):
                    fast(x, torch.ones(4, 2))
            assert known() == before
            fast.close()
