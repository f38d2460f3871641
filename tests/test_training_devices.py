"""A joint graph captured on the CPU, on fake GPUs: each task gives there what the graph says, in shape and dtype."""

from dataclasses import replace

import pytest
import torch
from fake_devices import run_fake
from torch import nn
from training_models import Convolved, Tied, machine, mlp

from autopar.capture.joint import joint
from autopar.lowering.lower import lower
from autopar.options import Options
from autopar.stages import plan_captured


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
    "conv, eval": (lambda: Convolved().eval(), lambda: torch.randn(4, 3, 6, 6)),
    "tied": (Tied, lambda: torch.randint(0, 11, (8,))),
    "attends": (Attends, lambda: torch.randn(4, 5, 8)),
    "attends, bf16": (lambda: Attends().bfloat16(), lambda: torch.randn(4, 5, 8).bfloat16()),
    "recurs": (Recurs, lambda: torch.randn(4, 5, 6)),
}


@pytest.mark.parametrize("parts", [None, 2])
@pytest.mark.parametrize("name", CASES)
def test_tasks_mean_the_same_on_a_gpu(name, parts):
    torch.manual_seed(0)
    make, data = CASES[name]
    model, x = make(), data()
    captured = joint(model, (x,))
    tangents = [torch.randn(captured.graph.value[t].shape) for t, _ in captured.tangents]
    options = Options(policy="round_robin", split=parts, check="never")
    plan = plan_captured(replace(captured, tangents=()), machine(), options, [x, *tangents])
    program = lower(plan)
    results = run_fake(program, plan.costed.graph, captured.calls)
    assert {program.buffer[name].device for name in results} == {"cpu"}
    assert all(results[name].device.type == "cpu" for name in results)
