"""A joint graph captured on the CPU, on fake GPUs: each task gives there what the graph of its plan says, in shape,
dtype, bytes, order of axes in memory, and as a view of what it says."""

from dataclasses import replace

import pytest
import torch
from capturing import joint
from fake_devices import gpus, run_fake
from models import Convolutions, Tied, mlp
from torch import nn

from autopar.lowering.lower import lower
from autopar.session.options import Options
from autopar.session.propagate import _Form, axes
from autopar.session.stages import plan_captured

pytestmark = pytest.mark.slow


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)


class Recurs(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(6, 8, batch_first=True)

    def forward(self, x):
        return self.cells(x)[0][:, -1]


CASES = {
    "mlp": (mlp, lambda: torch.randn(8, 6)),
    "conv, eval": (lambda: Convolutions().eval(), lambda: torch.randn(4, 3, 6, 6)),
    "tied": (Tied, lambda: torch.randint(0, 11, (8,))),
    "attends": (Attends, lambda: torch.randn(4, 5, 8)),
    "attends, bf16": (lambda: Attends().bfloat16(), lambda: torch.randn(4, 5, 8).bfloat16()),
    "recurs": (Recurs, lambda: torch.randn(4, 5, 6)),
}


def placed(captured, x, policy, parts):
    options = Options(policy=policy, split=parts, check="never")
    tangents = [torch.randn(captured.graph.value[name].shape) for name, _ in captured.tangents]
    return plan_captured(replace(captured, tangents=()), gpus(), options, [x, *tangents])


@pytest.mark.parametrize(
    ("name", "policy", "parts"),
    [
        # Attention in parts is that of half precision.
        pytest.param(
            name, policy, parts, marks=() if bool(parts) == (name != "attends") else pytest.mark.release
        )
        for name in CASES
        for policy, parts in (("single cuda:0", None), ("round_robin", 2))
    ],
)
def test_tasks_mean_the_same_on_a_gpu(name, policy, parts):
    torch.manual_seed(0)
    make, data = CASES[name]
    model, x = make(), data()
    captured = joint(model, (x,))
    plan = placed(captured, x, policy, parts)
    graph, program = plan.costed.graph, lower(plan)
    memory = {}

    def check(task, name, about, made):
        if made is None:
            assert about.dtype == "object"
            return
        form = _Form(tuple(made.shape), made.stride(), made.dtype)
        assert (about.shape, about.dtype) == (form.shape, str(form.dtype).removeprefix("torch."))
        assert (about.bytes, about.order) == (made.numel() * made.element_size(), axes(form))
        root = memory.setdefault(made.untyped_storage()._cdata, (made, name))[1]
        assert root == name or program.buffer[name].storage != name, f"{name} is a view of {root}"

    results = run_fake(program, graph, captured.calls, check)
    assert {placed.device for placed in plan.placed} & {"cuda:0", "cuda:1"}
    assert all(results[name].device.type == "cpu" for name in results)


def test_statistics_that_only_a_gpu_saves_count_their_bytes():
    torch.manual_seed(0)
    model, x = Convolutions().eval(), torch.randn(4, 3, 6, 6)
    captured = joint(model, (x,))
    before, plan = captured.graph, placed(captured, x, "single cuda:0", None)
    graph = plan.costed.graph
    task = next(task for task in graph.tasks if "batch_norm" in task.target and task.phase == "forward")
    saved = [name for name in task.outputs[1:] if name in graph.value]
    assert [before.value[name].bytes for name in saved] == [0, 0]
    assert [graph.value[name].shape for name in saved] == [(8,), (8,)]


def test_copies_that_a_cpu_does_not_make_are_counted():
    torch.manual_seed(0)
    model, x = Attends(), torch.randn(4, 5, 8)
    captured = joint(model, (x,))
    graph = placed(captured, x, "single cuda:0", None).costed.graph
    other = [v.name for v in graph.values if v.storage != captured.graph.value[v.name].storage]
    assert other
    assert all(graph.value[name].storage == name for name in other)
