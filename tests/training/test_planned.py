"""`plan(..., optimizer=…)`: forward, backward and update in one plan, ahead of any step."""

import pytest
import torch
from torch import nn

import autopar
from autopar.errors import CaptureError, PlanError
from autopar.ir.graph import UPDATES
from autopar.ir.machine import Machine
from autopar.lowering.check import check
from autopar.lowering.lower import lower

pytestmark = pytest.mark.slow

DECLARED = Machine.declare("cpu", "h100-sxm", "h100-sxm")
MAKERS = {
    "sgd": (lambda p: torch.optim.SGD(p, 0.1), 0),
    "momentum": (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 1),
    "adam": (lambda p: torch.optim.Adam(p), 2),
    "adamw": (lambda p: torch.optim.AdamW(p, amsgrad=True), 3),
}


def layers(count: int = 3, width: int = 256) -> nn.Module:
    return nn.Sequential(*(part for _ in range(count) for part in (nn.Linear(width, width), nn.ReLU())))


@pytest.mark.parametrize(
    ("name", "criterion", "meta"),
    [
        ("sgd", nn.MSELoss(), False), ("adamw", None, True),
        pytest.param("momentum", nn.MSELoss(), True, marks=pytest.mark.release),
        pytest.param("adam", None, False, marks=pytest.mark.release),
    ],
)  # fmt: skip
def test_the_update_and_its_state_are_in_the_plan(name: str, criterion, meta: bool) -> None:
    make, entries = MAKERS[name]
    device = "meta" if meta else "cpu"
    model, x = layers().to(device), torch.randn(32, 256, device=device)
    optimizer = make(model.parameters())
    inputs = (x,) if criterion is None else (x, torch.randn(32, 256, device=device))
    plan = autopar.plan(model, DECLARED, example_inputs=inputs, criterion=criterion, optimizer=optimizer)
    graph = plan.costed.graph
    stepped = {target for _, target in graph.updates if not graph.value[target].path.startswith("optimizer.")}
    assert stepped == {
        name for name in graph.state if graph.value[name].path in dict(model.named_parameters())
    }
    assert {task.phase for task in graph.tasks} == {"forward", "backward", "update"}
    assert any(task.target in UPDATES for task in graph.tasks)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    held = sum(v.bytes for v in graph.values if v.kind == "state" and v.path.startswith("optimizer.state."))
    assert held == entries * weights
    assert sum(plan.peaks.values()) >= (1 + entries) * weights
    assert plan.lower_bound <= plan.makespan
    program = lower(plan)
    check(program, graph)
    assert {target for _, target in program.updates} >= stepped
    assert not optimizer.state and all(p.grad is None for p in model.parameters())


def test_a_plan_ahead_equals_the_plan_of_the_step() -> None:
    """Planned ahead for the machine at hand: the tasks of `train_step` once its optimizer has state."""
    model, batch = layers(), (torch.randn(8, 256), torch.randn(8, 256))
    optimizer = torch.optim.Adam(model.parameters())
    given = {"example_inputs": batch, "criterion": nn.MSELoss(), "optimizer": optimizer}
    # A step on one lane measures nothing.
    planned = autopar.plan(model, ["cpu"], measure=False, **given)
    step = autopar.train_step(model, nn.MSELoss(), optimizer, ["cpu"])
    for _ in range(2):
        step(*batch)
    taken = step.plan
    assert [task.name for task in planned.costed.graph.tasks] == [t.name for t in taken.costed.graph.tasks]
    assert planned.makespan == pytest.approx(taken.makespan)
    step.close()


def test_caps_hold_with_the_state_of_the_optimizer() -> None:
    model, x, y = layers(6), torch.randn(32, 256), torch.randn(32, 256)
    optimizer = torch.optim.Adam(model.parameters())
    ask = {"example_inputs": (x, y), "criterion": nn.MSELoss(), "optimizer": optimizer}
    free = autopar.plan(model, DECLARED, policy="single cuda:0", home="cuda:0", **ask)
    cap = free.peaks["cuda:0"] // 2
    tight = autopar.plan(model, DECLARED, memory={"cuda:0": cap, "cuda:1": cap}, **ask)
    peaks = check(lower(tight), tight.costed.graph)
    assert all(peak.bytes <= cap for peak in peaks if peak.device != "cpu")
    with pytest.raises(autopar.MemoryCapError, match=r"the new values of optimizer\.state.*exp_avg"):
        autopar.plan(model, DECLARED, policy="single cuda:0", home="cuda:0", memory={"cuda:0": cap}, **ask)


def test_weights_on_the_device_are_updated_there() -> None:
    model, x, y = layers(4, 512), torch.randn(1024, 512), torch.randn(1024, 512)
    optimizer = torch.optim.Adam(model.parameters())
    ask = {"example_inputs": (x, y), "criterion": nn.MSELoss(), "optimizer": optimizer, "split": None}
    machine = Machine.declare("cpu", "h100-sxm")
    on = autopar.plan(model, machine, home="cuda:0", policy="single cuda:0", **ask)
    off = autopar.plan(model, machine, home="cpu", policy="single cuda:0", **ask)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert on.moved < weights and off.moved >= 6 * weights and on.makespan < off.makespan
    assert dict(on.singles)["cuda:0"] == pytest.approx(on.makespan)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda p: torch.optim.RMSprop(p), PlanError, "RMSprop cannot be planned.*SGD, Adam, AdamW"),
        (lambda p: torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.1), PlanError, "no parameter that has"),
        (lambda p: torch.optim.SGD, CaptureError, "the optimizer is the class SGD; give an instance"),
    ],
)  # fmt: skip
def test_errors_of_planning_name_the_reason(make, error, text) -> None:
    model = layers(1)
    with pytest.raises(error, match=text):
        autopar.plan(
            model, DECLARED, example_inputs=(torch.randn(2, 256),), optimizer=make(model.parameters())
        )


def test_errors_name_what_is_no_loss() -> None:
    model, x = layers(1), torch.randn(2, 256)
    ask = {"example_inputs": (x, x), "criterion": lambda a, b: (a - b).abs()}
    with pytest.raises(CaptureError, match="only one number can be minimised"):
        autopar.plan(model, DECLARED, **ask, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(CaptureError, match="nothing to train"):
        frozen = layers(1).requires_grad_(False)
        autopar.plan(
            frozen, DECLARED, example_inputs=(x,), optimizer=torch.optim.SGD(frozen.parameters(), 0.1)
        )
