"""The training step of d2l.ai, figure 13.3.1, found from the captured graph: its tasks, its arrows."""

import networkx
import pytest
import torch
from machines import machine
from torch import nn

import autopar


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(20, 256), nn.Linear(256, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


@pytest.fixture(scope="module")
def figure():
    torch.manual_seed(0)
    model = MLP()
    step = autopar.train_step(
        model,
        nn.MSELoss(),
        torch.optim.SGD(model.parameters(), 0.1),
        machine(),
        split={"emulated:0": 0.5, "emulated:1": 0.5},
        pins={"*.weight": "cpu", "*.bias": "cpu"},
    )
    x, y = torch.randn(100, 20), torch.randn(100, 10)
    step(x, y)
    step(x, y)
    return step, model, (x, y)


def where(plan):
    return {task: plan.place[cluster].device for task, cluster in plan.costed.cluster_of.items()}


@pytest.mark.slow
def test_the_batch_arrives_on_the_cpu_and_goes_out_in_halves(figure):
    plan = figure[0].plan
    rows = [task.part for task in plan.costed.graph.tasks if task.part]
    assert set(rows) == {"rows 0–49", "rows 50–99"}
    sent = {(t.src, t.dst) for t in plan.transfers if t.value.startswith("inputs#")}
    assert sent == {("cpu", "emulated:0"), ("cpu", "emulated:1")}


@pytest.mark.slow
def test_each_device_has_the_whole_forward_and_backward_of_its_half(figure):
    plan = figure[0].plan
    graph, at = plan.costed.graph, where(plan)
    for device, part in (("emulated:0", "rows 0–49"), ("emulated:1", "rows 50–99")):
        here = [task for task in graph.tasks if at[task.name] == device]
        multiplied = [
            (t.module, t.phase) for t in here if t.target in ("aten.linear.default", "aten.mm.default")
        ]
        assert sorted(multiplied) == [
            ("fc1", "backward"),
            ("fc1", "forward"),
            ("fc2", "backward"),
            ("fc2", "backward"),
            ("fc2", "forward"),
        ]
        assert any("mse_loss_backward" in task.name for task in here)
        assert {task.part for task in here if task.part} == {part}


def test_the_cpu_sums_and_updates_and_does_nothing_else(figure):
    plan = figure[0].plan
    graph, at = plan.costed.graph, where(plan)
    heavy = [task for task in graph.tasks if at[task.name] == "cpu" and task.flops and task.phase != "update"]
    assert not [task.name for task in heavy if task.part]
    for path in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
        assert at[f"update {path}"] == "cpu"
    sums = [task for task in graph.tasks if task.target == "autopar.sum" and task.phase == "backward"]
    assert len(sums) == 4 and {at[task.name] for task in sums} == {"cpu"}


def test_the_sum_of_fc2_waits_for_both_backwards_of_fc2_and_for_nothing_of_fc1(figure):
    graph = figure[0].plan.costed.graph
    before = networkx.ancestors(graph.networkx(), "fc2.weight.grad#sum")
    backward = {graph.task[name] for name in before if graph.task[name].phase == "backward"}
    assert {"fc2.weight.grad#0", "fc2.weight.grad#1"} <= {task.name for task in backward}
    assert "fc1" not in {task.module for task in backward}


def test_gradients_come_to_the_cpu_and_new_weights_go_back_to_both(figure):
    plan = figure[0].plan
    moved = {(t.value, t.src, t.dst) for t in plan.transfers}
    for number in "01":
        assert (f"fc2.weight.grad#{number}", f"emulated:{number}", "cpu") in moved
        assert ("fc2.weight_next", "cpu", f"emulated:{number}") in moved
        assert ("fc1.weight_next", "cpu", f"emulated:{number}") in moved
    assert not [move for move in moved if move[0] == "fc2.weight"]


def test_the_next_forward_of_fc2_reads_what_was_copied_back(figure):
    program = figure[0].program
    for number in "01":
        kept = (f"fc2.weight_next@emulated:{number}", "fc2.weight")
        assert kept in program.keeps
        lane = program.lane[f"emulated:{number}/0"]
        readers = [s for s in lane.steps if f"fc2.weight@emulated:{number}" in getattr(s, "reads", ())]
        assert readers and program.buffer[f"fc2.weight@emulated:{number}"].kind == "resident"
