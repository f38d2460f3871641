"""What a plan is held against: the model moved to one device, as `model.to(device)` moves it."""

import pytest
import torch
from torch import nn

import autopar
from autopar.ir.machine import Machine

pytestmark = pytest.mark.slow

DECLARED = Machine.declare("cpu", "h100-sxm", "h100-sxm")


def layers(count: int = 2, width: int = 1024, dropout: float = 0.0) -> nn.Module:
    parts = ((nn.Linear(width, width), nn.Tanh(), nn.Dropout(dropout)) for _ in range(count))
    return nn.Sequential(*(part for group in parts for part in group))


def planned(model, x, training, devices=DECLARED, **options):
    with torch.set_grad_enabled(training):
        return autopar.plan(model, devices, example_inputs=(x,), **options)


@pytest.mark.parametrize(
    ("options", "training"),
    [({"home": "cpu"}, False), ({"pins": {"0": "cpu"}}, True)],
    ids=["home", "pinned"],
)
def test_neither_weights_nor_pins_nor_dropout_cost_the_model_that_is_moved(training: bool, options) -> None:
    """What it takes on an accelerator is its work there and one copy each of what goes in and comes out."""
    model, x = layers(dropout=0.1), torch.randn(4096, 1024)
    plan = planned(model, x, training, **options)
    alone = planned(model, x, training, Machine.declare("cpu", "h100-sxm"), home="cuda:0")
    graph, at = alone.costed.graph, alone.costed.index["cuda:0"]
    ways = [alone.costed.machine.link["cpu", "cuda:0"], alone.costed.machine.link["cuda:0", "cpu"]]
    times = [alone.costed.cost[task.name].seconds[at] for task in graph.tasks]
    work = sum(time for time in times if time is not None)
    copies = sum(way.seconds(x.nbytes) for way in ways)
    found = dict(plan.singles)
    assert found["cuda:0"] == found["cuda:1"]
    assert work * 0.5 <= found["cuda:0"] <= (work + copies) * 1.1 + 1e-4
    assert found["cpu"] is not None and found["cpu"] > found["cuda:0"]


def test_a_training_plan_with_weights_on_the_host_is_held_against_weights_on_the_device() -> None:
    model, x = layers(), torch.randn(64, 1024)
    plan = planned(model, x, True, policy="single cuda:0", split=None, home="cpu")
    link = plan.costed.machine.link["cpu", "cuda:0"]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert plan.makespan - dict(plan.singles)["cuda:0"] > 0.5 * weights / link.bytes_per_s
    assert "slower than one device" in plan.explain()


def test_weights_go_where_a_declared_machine_has_use_for_them() -> None:
    """Nobody's weights are on a machine that is not here: none need be brought to it in each step."""
    model, x = layers(), torch.randn(64, 1024)
    plan = planned(model, x, True)
    assert plan.makespan < planned(model, x, True, home="cpu").makespan
    assert plan.costed.home[plan.costed.graph.state[0]] == "cuda:0"


def test_a_device_whose_memory_the_moved_model_does_not_fit_has_none() -> None:
    model, x = layers(), torch.randn(64, 1024)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    plan = planned(model, x, False, home="cpu", memory={"cuda:0": weights // 2})
    found = dict(plan.singles)
    assert found["cuda:0"] is None and found["cuda:1"] is not None
