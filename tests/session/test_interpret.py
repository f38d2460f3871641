"""The plain meaning of a graph: what the check asks where a run and eager differ."""

from __future__ import annotations

import torch
from naive import value
from samples import graph

from autopar.ir.graph import Const, Ref, Task
from autopar.session.compare import interpret

DOUBLE = Const("torch.float64")


def test_every_kind_of_argument_and_result():
    """Keywords, constants, several results and callables that capture kept; each task is yielded once it is done."""
    values = [value("x", kind="input"), value("s_", (4, 4)), value("n_", (4, 4), dtype="int64")]
    values += [value("z_", (2,)), value("g_", (4, 4)), value("m_", (4, 4))]
    tasks = [
        Task("s", "aten.sort.stable", (Ref("x"),), (("stable", True), ("dim", 0)), ("s_", "n_"), unpack=True),
        Task("z", "aten.zeros.default", ((2,),), (("dtype", DOUBLE), ("device", Const("device"))), ("z_",)),
        Task("g", "kept", (Ref("s_"),), (("more", Ref("x")),), ("g_",)),
        Task("m", "aten.to.device", (Ref("x"), Const("device"), DOUBLE), (), ("m_",)),
    ]  # fmt: skip
    made = graph("all kinds", values, tasks, ("g_", "z_"))
    x = torch.randn(4, 4)
    held, seen = {"x": x}, []
    calls = {"kept": lambda a, more: a - more}
    for task in interpret(made, calls, held, torch.device("meta")):
        seen.append(task.name)
        assert all(name in held for name in task.outputs)
    right, order = torch.sort(x, dim=0, stable=True)
    assert seen == ["s", "z", "g", "m"]
    assert torch.equal(held["s_"], right) and torch.equal(held["n_"], order)
    assert torch.equal(held["g_"], right - x)
    for name in ("z_", "m_"):
        assert held[name].dtype is torch.float64 and held[name].device.type == "meta"
