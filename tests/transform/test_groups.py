"""Small parameters updated together: what is in a group, what it waits for, and how its new values travel."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import adversary
import networkx
import pytest
import torch
from capturing import joint
from machines import machine
from plain_loop import Pair, batches
from program_text import parse
from redundant import redundant
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from twins import Twins, eager
from twins import batches as twin_batches

from autopar.costs.roofline import cost
from autopar.errors import PlanError, ProgramError
from autopar.ir.graph import SUM, UPDATES, Graph, Ref, Task
from autopar.ir.plan import Plan
from autopar.ir.program import Copy
from autopar.lowering.check import check
from autopar.lowering.lower import lower
from autopar.planner import place
from autopar.session.batch_split import split_graph
from autopar.training import formulas
from autopar.training.optimizers import updated
from autopar.transform.buckets import FEW, grouped

CPU = torch.device("cpu")
LAYERS = 4


def deep(width: int = 12) -> nn.Module:
    """Many small parameters, and one that is larger than a bucket in the tests that want one."""
    torch.manual_seed(0)
    layers = [module for _ in range(LAYERS) for module in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, 5))


@functools.cache
def captured(kind: type[Optimizer] = Adam) -> Any:
    """The joint graph of a deep model and its loss, followed by the optimizer's step."""
    model = deep()
    optimizer = kind(model.parameters(), lr=0.01)
    model(torch.randn(8, 12)).square().mean().backward()
    optimizer.step()

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x).square().mean()

    return updated(joint(Loss(), (torch.randn(8, 12),)), optimizer)


def steps(graph: Graph) -> list[Task]:
    return [task for task in graph.tasks if task.target in UPDATES]


def paths(task: Task) -> list[str]:
    return [item[0] for item in task.args]  # type: ignore[index, misc]


@pytest.mark.slow
@pytest.mark.parametrize("nbytes", [1, 700, 1500, 1 << 20])
def test_every_parameter_is_updated_once_in_groups_of_at_most_so_many_bytes(nbytes: int) -> None:
    graph = captured().graph
    after = grouped(graph, {}, {}, nbytes).check()
    assert grouped(after, {}, {}, nbytes) == after
    assert sorted(path for task in steps(after) for path in paths(task)) == sorted(
        path for task in steps(graph) for path in paths(task)
    )
    assert sorted(target for _, target in after.updates) == sorted(target for _, target in graph.updates)
    assert after.carried == graph.carried and after.outputs == graph.outputs
    held = {graph.value[name].path: graph.value[name].bytes for name in graph.state}
    for task in steps(after):
        together = paths(task)
        assert len(together) == 1 or sum(held[path] for path in together) <= nbytes
        assert all(held[path] < nbytes for path in together) or len(together) == 1
    assert (len(steps(after)) < len(steps(graph))) == (nbytes > 1)


def test_what_differs_in_home_pin_or_param_group_stays_apart() -> None:
    graph = captured().graph
    names = [name for name in graph.state if name.endswith("weight")]
    for homes, pins in (
        (dict.fromkeys(names, "cuda:0"), {}),
        ({}, {task.name: "cuda:0" for task in steps(graph) if task.name.endswith("weight")}),
    ):
        groups = [paths(task) for task in steps(grouped(graph, homes, pins))]
        assert len(groups) == 2
        assert {path.endswith("weight") for path in groups[0]} != {
            path.endswith("weight") for path in groups[1]
        }
    twins = Twins(
        lambda model: SGD(
            [{"params": [*model.fc1.parameters(), model.scale]},
             {"params": [*model.fc2.parameters(), model.again.bias], "lr": 0.5}], 0.1)
    )  # fmt: skip
    apart = [paths(task) for task in steps(twins.stepping(nbytes=1 << 20).captured.graph)]
    assert len(apart) == 2 and {"fc2.weight", "fc2.bias", "again.bias"} in map(set, apart)


def test_what_is_unlike_its_neighbours_stays_alone() -> None:
    graph = captured().graph
    one, first = steps(graph)[3], graph.tasks[0]
    (item,) = one.args
    own = graph.value[item[2].value]  # type: ignore[index, union-attr]
    factor = (*item[:4], Ref(first.outputs[0]), *item[5:])  # type: ignore[index]
    reader = Task("reader", "aten.sin.default", (Ref(one.outputs[0]),), outputs=("read",))
    read = replace(graph.value[one.outputs[0]], name="read", storage="read")
    for changed, more, value in (
        (replace(one, after=(first.name,)), (), own),
        (replace(one, args=(factor,)), (), own),
        (one, (reader,), read),
        (one, (), replace(own, order=(1, 0))),
        (one, (), replace(own, dtype="float64", bytes=2 * own.bytes)),
    ):
        tasks = tuple(changed if task is one else task for task in graph.tasks)
        values = {**graph.value, value.name: value}
        made = replace(graph, tasks=(*tasks, *more), values=tuple(values.values())).check()
        groups = [paths(task) for task in steps(grouped(made, {}, {}).check())]
        assert paths(one) in groups and len(groups) == 2


def test_a_handful_stays_alone() -> None:
    twins = Twins(lambda model: SGD(model.parameters(), 0.1))
    graph = updated(twins.base, twins.optimizer).graph
    assert 1 < len(steps(graph)) <= FEW and grouped(graph, {}, {}) is graph


def cut(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A batch in two parts, gradients in buckets."""
    monkeypatch.setattr("autopar.transform.buckets.BUCKET_BYTES", nbytes)
    return split_graph(grouped(captured().graph, {}, {}, nbytes), (4, 4)).check()


def test_a_group_waits_for_its_own_bucket_of_gradients_and_comes_before_later_backward(monkeypatch) -> None:
    graph = cut(1300, monkeypatch)
    together = [task for task in steps(graph) if len(task.args) > 1]
    assert len(together) > 2
    before = graph.networkx()
    order = {task.name: number for number, task in enumerate(graph.tasks)}
    sums = [
        {name for name in networkx.ancestors(before, task.name) if graph.task[name].target == SUM}
        for task in together
    ]
    packed = [{name for name in each if name.startswith("bucket")} for each in sums]
    assert all(len(each) == 1 for each in packed), "one bucket of gradients, one of parameters"
    assert len({*map(frozenset, packed)}) == len(together)
    backward = [task for task in graph.tasks[order[together[0].name] :] if task.phase == "backward"]
    assert len(backward) > len(graph.tasks) // 4


def test_planned_lowered_proved_and_right_in_every_order(monkeypatch) -> None:
    graph = cut(1300, monkeypatch)
    plan = place(cost(graph, machine(), homes={}), "round_robin")
    program = lower(plan)
    assert redundant(program, graph) == ()
    assert parse(str(program)) == program
    whole = {name for name, _ in program.keeps if program.buffer[name].value in graph.flat}
    assert whole and len(whole) < len(program.keeps)
    state = {name: owner[key].detach() for name, (owner, key) in captured().state.items()}
    given = {**state, **{name: torch.randn(graph.value[name].shape) for name in graph.inputs}}
    found = [adversary.run(program, graph, captured().calls, given, seed, turns=2) for seed in range(3)]
    for outputs, new in found[1:]:
        assert all(map(torch.equal, outputs, found[0][0])) and all(map(torch.equal, new, found[0][1]))
    for (_, target), tensor in zip(program.updates, found[0][1]):
        assert tuple(tensor.shape) == graph.value[target].shape and tensor.isfinite().all()
    broken = replace(program, keeps=program.keeps[1:])
    with pytest.raises(ProgramError, match="out of date after the call"):
        check(broken, graph)


def test_a_flat_value_of_the_wrong_length_is_refused() -> None:
    graph = grouped(captured().graph, {}, {})
    with pytest.raises(PlanError, match="is not as long as the states whose new values it holds"):
        replace(graph, updates=graph.updates[:-1]).check()


AT_HOME: dict[str, Any] = {
    "policy": "auto",
    "split": {"emulated:0": 0.5, "emulated:1": 0.5},
    "pins": {"*.weight": "cpu", "*.bias": "cpu"},
}


def new_weights(plan: Plan) -> list[tuple[str, str]]:
    """(value, device) of each transfer of new weights to who reads them."""
    graph = plan.costed.graph
    weights = {made for made, target in graph.updates if not graph.value[target].path.startswith("optimizer")}
    return [(moved.value, moved.dst) for moved in plan.transfers if moved.value in weights]


@pytest.mark.slow
def test_new_weights_go_back_in_one_transfer_for_each_bucket_and_device() -> None:
    pair = Pair(deep, Adam, machine(), **AT_HOME)
    data = batches(6)
    pair.same(data[:4])
    step = pair.step
    plan, program, graph = step.plan, step.program, step.plan.costed.graph
    count = len(list(pair.model.parameters()))
    together = [task for task in steps(graph) if len(task.args) > 1]
    assert sum(len(task.args) for task in together) == count > FEW
    moved = new_weights(plan)
    assert sorted(moved) == sorted((task.outputs[0], f"emulated:{n}") for task in together for n in "01")
    copied = [s for lane in program.lanes for s in lane.steps if isinstance(s, Copy)]
    assert sum(program.buffer[s.src].value in graph.flat for s in copied) == len(moved) < count
    kept = {(state, program.buffer[name].device) for name, state in program.keeps}
    weights = {name for name in graph.state if graph.value[name].path in pair.model.state_dict()}
    assert {(name, f"emulated:{n}") for name in weights for n in "01"} <= kept
    pair.same(data[4:])
    with torch.no_grad():
        for model in (pair.model, pair.plain):
            model[0].weight.mul_(0.5)
    pair.same(data[:2])


def test_on_one_device_the_bits_are_the_plain_loop_s() -> None:
    pair = Pair(deep, AdamW, ["cpu"], dtype=torch.float32, policy="auto", split=None)
    found, expected = pair.losses(batches(6, dtype=torch.float32))
    assert found == expected
    for mine, other in zip(pair.model.parameters(), pair.plain.parameters()):
        assert torch.equal(mine, other)
    assert any(len(task.args) > 1 for task in steps(pair.step.plan.costed.graph))


def test_step_counts_that_differ_are_each_their_own() -> None:
    twins = Twins(lambda model: Adam(model.parameters()))
    stepping = twins.stepping(nbytes=1 << 20)
    for optimizer, model in ((twins.optimizer, twins.model), (twins.rival, twins.twin)):
        optimizer.state[model.fc2.bias]["step"] += 40
    for batch in twin_batches(3):
        stepping(batch)
        eager(twins.twin, twins.rival, batch)
        twins.are_equal()


@pytest.mark.parametrize("adaptive", [False, True])
def test_tensors_are_made_one_only_where_that_gives_the_same_bits(adaptive: bool, monkeypatch) -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = Adam([parameter]) if adaptive else SGD([parameter], 0.1, 0.9)
    (group,) = optimizer.param_groups
    assert formulas.alike({**group, "lr": torch.tensor(0.1)}, torch.float32, CPU) is False
    first = formulas.alike(group, torch.float32, CPU)
    formulas._rounds_alike.cache_clear()
    with torch.device("meta"):
        assert formulas.alike(group, torch.float32, CPU) is first
    step = formulas.step

    def rounding(group: Any, parameters: Any, *others: Any, **options: Any) -> None:
        step(group, parameters, *others, **options)
        for tensor in parameters:
            tensor[-1] += 1e-3

    formulas._rounds_alike.cache_clear()
    monkeypatch.setattr(formulas, "step", rounding)
    assert formulas.alike(group, torch.float32, CPU) is False
    formulas._rounds_alike.cache_clear()
