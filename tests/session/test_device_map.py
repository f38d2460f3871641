"""Plans as device maps of accelerate, and device maps as pins."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import autopar
from autopar.ir.graph import JOIN, PART, SUM
from autopar.planner.model.instance import Instance

pytestmark = pytest.mark.slow

DEVICES = ["cpu", "emulated:0", "emulated:1"]
MACHINE = autopar.Machine.declare("cpu", "t4", "t4")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        return x + self.drop(self.down(torch.relu(self.up(self.norm(x))))) * self.scale


class Model(nn.Module):
    """An embedding tied to the head, a parameter of its own, and a part that never runs."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight
        self.shift = nn.Parameter(torch.zeros(width))
        self.pooler = nn.Sequential(nn.Linear(width, 2), nn.Tanh())

    def forward(self, x):
        y = self.embed(x)
        for block in self.blocks:
            y = block(y)
        return self.head(y + self.shift)


TOKENS = torch.arange(10).view(2, 5)


def covering(mapping: dict[str, str], path: str) -> str | None:
    """The entry of a device map that a path is under: the longest; None where it is under none."""
    found = [key for key in mapping if not key or path == key or path.startswith(f"{key}.")]
    return max(found, key=len, default=None)


def pieces(model: nn.Module) -> list[str]:
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return [path for path, _ in named]


def obeyed(plan: autopar.Plan, mapping: dict[str, str]) -> None:
    """Every forward task of a module is where the map has the module; a split takes values apart, and joins
    or sums them, anywhere."""
    costed = plan.costed
    for task in costed.graph.tasks:
        key = covering(mapping, task.module)
        if task.module and key is not None and task.phase == "forward" and not task.home:
            if task.target in (JOIN, PART, SUM):
                continue
            wanted = mapping[key]
            assert plan.place[costed.cluster_of[task.name]].device == wanted, task.where


MIXED = {
    "embed": "cpu",
    "head": "cpu",
    "blocks.0": "cuda:0",
    "blocks.1": "cuda:1",
    "blocks.2.up": "cpu",
    "*": "cuda:0",
}


@pytest.mark.parametrize(("pins", "train"), [({}, True), (MIXED, False), ({"": "cuda:1"}, True)])
def test_a_plan_made_by_its_own_device_map_obeys_it(train, pins):
    model = Model().train(train)
    with torch.set_grad_enabled(train):
        first = autopar.plan(model, MACHINE, example_inputs=(TOKENS,), pins=pins, split=None)
        mapping = first.device_map()
        again = autopar.plan(model, MACHINE, example_inputs=(TOKENS,), pins=mapping)
    assert all(covering(mapping, path) in mapping for path in pieces(model))
    obeyed(again, mapping)
    later = again.device_map()
    if train and "shift" in mapping:
        # The path of what is trained says where its gradient is summed, not where it is read.
        later["shift"] = mapping["shift"]
    assert later == mapping
    if pins == MIXED:
        assert {mapping[covering(mapping, path)] for path in pieces(model)} == {"cpu", "cuda:0", "cuda:1"}
        assert mapping["embed"] == mapping["head"] == "cpu" and mapping["blocks.1"] == "cuda:1"
        assert "blocks.2" not in mapping, "its parts are on two devices"
    if "" in pins:
        assert mapping == {"": "cuda:1"}


@pytest.mark.parametrize("split", [2, "features"])
def test_a_task_rewritten_as_several_keeps_its_pin(split):
    plan = autopar.plan(
        Model(16),
        DEVICES,
        example_inputs=(TOKENS,),
        pins={"": "emulated:1", "blocks.1": "emulated:0"},
        split=split,
    )
    costed, apart = Instance(plan.costed), set()
    for task in plan.costed.graph.tasks:
        # Parts may be taken, joined and summed anywhere.
        joins = task.target in ("autopar.part", "autopar.join", "autopar.sum")
        if task.module and task.phase == "forward" and not (task.home or joins):
            apart.add(task.target)
            wanted = "emulated:0" if task.module.startswith("blocks.1") else "emulated:1"
            able = costed.allowed[costed.number[plan.costed.cluster_of[task.name]]]
            assert [costed.devices[d] for d in able] == [wanted], task.where
    assert split == "features" or "aten.ones.default" in apart, (
        "the mask of a dropout is made of several tasks"
    )


def test_tied_weights_are_on_one_device_wherever_the_plan_has_their_readers():
    model = Model().eval()

    def apart(costed):
        return {run.name: "cpu" if "linear_6" in run.tasks else "cuda:1" for run in costed.clusters}

    with torch.no_grad():
        plan = autopar.plan(model, MACHINE, example_inputs=(TOKENS,), policy=apart, split=None)
        mapping = plan.device_map()
        again = autopar.plan(model, MACHINE, example_inputs=(TOKENS,), pins=mapping)
    assert {placed.device for placed in plan.placed} == {"cpu", "cuda:1"}
    assert mapping[covering(mapping, "head.weight")] == mapping[covering(mapping, "embed.weight")]
    obeyed(again, mapping)


@pytest.mark.filterwarnings("ignore:The following device_map keys")
def test_accelerate_takes_a_device_map():
    modeling = pytest.importorskip("accelerate.utils.modeling")
    model = Model().eval()
    with torch.no_grad():
        mapping = autopar.plan(model, MACHINE, example_inputs=(TOKENS,), pins=MIXED, split=None).device_map()
    modeling.check_device_map(model, mapping)
    assert modeling.clean_device_map(dict(mapping)) == mapping


def test_a_batch_in_parts_has_no_device_map():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    with torch.no_grad():
        plan = autopar.plan(
            model, MACHINE, example_inputs=(torch.randn(64, 64),), split={"cuda:0": 3, "cuda:1": 1}
        )
    with pytest.raises(autopar.PlanError, match=r"2 parts: 48 \+ 16"):
        plan.device_map()


FORMS = {
    "": "cpu",
    "embed": torch.device("cpu"),
    "head": "cpu:0",
    "blocks.0": 1,
    "blocks.1.drop": 0,
    "pooler": 0,
    "shift": "emulated:0",
}


def test_a_device_map_of_accelerates_is_obeyed_by_calls():
    torch.manual_seed(0)
    model = Model().eval()
    fast = autopar.compile(model, DEVICES, pins=FORMS)
    with torch.no_grad():
        assert torch.allclose(fast(TOKENS), model(TOKENS), atol=1e-6)
    where = {task.module: fast.plan.place[fast.plan.costed.cluster_of[task.name]].device
             for task in fast.plan.costed.graph.tasks}  # fmt: skip
    assert where["blocks.0.up"] == "emulated:1" and where["blocks.1.up"] == where["embed"] == "cpu"
    # A dropout that does nothing is in the graphs of some versions of torch, and not of others.
    assert re.search(r"without effect: (.*, )?pooler", fast.explain())
    fast.close()


def test_a_device_map_of_the_whole_model_is_obeyed_by_a_training_step():
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD([p for n, p in model.named_parameters() if "pooler" not in n], 0.1)
    loss = lambda out, y: nn.functional.cross_entropy(out.flatten(0, 1), y.flatten())  # noqa: E731
    mapping = {"": 1, "blocks.1": 0, "pooler": "cpu"}
    step = autopar.train_step(model, loss, optimizer, DEVICES, pins=mapping)
    for _ in range(2):
        step(TOKENS, TOKENS)
    obeyed(step.plan, {"": "emulated:1", "blocks.1": "emulated:0", "pooler": "cpu"})
    assert step.plan.device_map()["blocks.1"] == "emulated:0"
    assert "without effect: pooler" in step.explain()
    step.close()


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("disk", 'keeps weights in memory: pin it to "cpu"'),
        (7, "no device 'emulated:7'.*it has cpu, emulated:0"),
        ("cuda", "no device 'cuda:0'"),
        (None, "None, which is not a device"),
        (True, "True, which is not a device"),
        ([0], "which is not a device"),
    ],
)
def test_a_device_that_is_none_is_refused_with_its_path(device, says):
    with pytest.raises(autopar.DeviceError, match=f"the pin 'blocks.0'.*{says}"):
        autopar.compile(Model(), DEVICES, pins={"blocks.0": device})


@pytest.mark.parametrize("door", ["compile", "plan", "train_step"])
def test_a_path_that_is_not_in_the_model_is_an_error_with_what_is_near(door):
    model = Model()
    pins = {"block.1": "cpu"}
    with pytest.raises(autopar.PlanError, match=r"'block.1' names no module.*near are 'blocks.1'"):
        if door == "compile":
            autopar.compile(model, DEVICES, pins=pins)
        elif door == "plan":
            autopar.plan(model, DEVICES, example_inputs=(TOKENS,), pins=pins)
        else:
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            autopar.train_step(model, nn.CrossEntropyLoss(), optimizer, DEVICES, pins=pins)
