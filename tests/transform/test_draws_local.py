"""Random numbers on machines whose devices have generators of their own: drawn where they are read."""

import dataclasses
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from turns import by_turns

import autopar
from autopar.errors import ProgramError
from autopar.ir.graph import DEFAULT, LOCAL
from autopar.ir.machine import Machine
from autopar.ir.program import Compute, Wait
from autopar.lowering.check import check
from autopar.lowering.lower import lower
from autopar.session.compare import interpret

pytestmark = pytest.mark.slow

DECLARED = Machine.declare("cpu", "h100-sxm", "h100-sxm")


class Block(nn.Module):
    """A residual block with dropout inside, behind attention's own and around the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = (
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
            .transpose(1, 2)
            .flatten(2)
        )
        return x + self.drop(F.gelu(self.out(self.drop(mixed))))


def blocks(count: int, width: int = 512) -> nn.Module:
    return nn.Sequential(*(Block(width) for _ in range(count)))


def planned(model, x, training, devices=DECLARED, **options):
    with torch.set_grad_enabled(training):
        return autopar.plan(model, devices, example_inputs=(x,), **options)


@by_turns("training, split", [False, True], [None, 2])
def test_no_layer_has_its_mask_brought_from_elsewhere(training: bool, split: int | None) -> None:
    """As many values move with dropout as without, however many layers there are, and no mask does."""
    x = torch.randn(64, 128, 512)
    moved = {}
    for mode in (True, False):
        model = blocks(3).train(mode).requires_grad_(training)
        policy = "single cuda:0" if split is None else "auto"
        plan = planned(model, x, training, policy=policy, split=split)
        drawn = {name for task in plan.costed.graph.tasks if task.random for name in task.outputs}
        assert bool(drawn) == mode
        assert not drawn & {transfer.value for transfer in plan.transfers}
        weights = set(plan.costed.graph.state)
        moved[mode] = len([t for t in plan.transfers if t.value not in weights])
        check(lower(plan), plan.costed.graph)
    if not training:
        assert moved[True] == moved[False]


def test_parts_draw_for_themselves() -> None:
    plan = planned(blocks(1), torch.randn(64, 128, 512), False, split=2)
    drawing = [task for task in plan.costed.graph.tasks if task.random]
    assert drawing and all(task.part and task.random == LOCAL for task in drawing)


class Bound(nn.Module):
    """Attention with dropout whose first axes have equal sizes, but not for a batch."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.inner, self.outer = form, nn.Linear(512, 512), nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        rows, length, _ = x.shape
        query = key = x[:, 0] if self.form == "rows" else x.unflatten(-1, (rows, -1)).transpose(1, 2)
        mask = x.new_zeros(length, length) if self.form == "mask" else None
        if self.form == "heads":
            key = key[0]
        made = F.scaled_dot_product_attention(query, key, key, mask, dropout_p=0.1)
        return x + self.outer(x + (made[:, None] if self.form == "rows" else made.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("form", ["rows", "mask", "heads"])
def test_attention_is_split_along_its_batch_alone(form: str) -> None:
    """Rows that attend to one another, a mask of as many rows, and heads that all examples share, stay together."""
    tasks = planned(Bound(form), torch.randn(16, 16, 512), False, split=2).costed.graph.tasks
    assert any(task.part for task in tasks)
    assert [task.part for task in tasks if task.random] == [""]


@pytest.mark.parametrize("shape", [(8, 6, 10, 10), (8, 6, 10)])
def test_channels_are_dropped_whole(shape: tuple[int, ...]) -> None:
    """Parts of a batch drop channels of their own rows, never some of the places of a channel."""
    drop = nn.Dropout2d(0.5) if len(shape) == 4 else nn.Dropout1d(0.5)
    plan = planned(nn.Sequential(nn.Softplus(), drop, nn.Softplus()), torch.zeros(shape), False, split=2)
    graph = plan.costed.graph
    assert any(task.part for task in graph.tasks if task.random)
    values = {graph.inputs[0]: torch.zeros(shape)}
    for _ in interpret(graph, {}, values, torch.device("cpu")):
        pass
    channels = values[graph.outputs[0]].flatten(2)
    assert torch.equal(channels, channels[..., :1].expand_as(channels)) and len(channels.unique()) == 2


@pytest.mark.parametrize(
    "devices", [["cpu"], ["cpu*2"], ["cpu", "emulated:0"], Machine.emulate("cpu", "t4", "t4")],
    ids=["cpu", "lanes", "stand-in", "emulated machine"],
)  # fmt: skip
def test_devices_that_share_a_generator_draw_in_program_order(devices) -> None:
    plan = planned(blocks(1, 64), torch.randn(4, 8, 64), False, devices)
    drawing = [task for task in plan.costed.graph.tasks if task.random]
    assert drawing and all(task.random == DEFAULT and task.home for task in drawing)
    assert all(b.after == (a.name,) for a, b in itertools.pairwise(drawing))


class Towers(nn.Module):
    """Many draws that do not wait for each other."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Linear(512, 512) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(F.dropout(torch.tanh(tower(x)), 0.5, self.training) for tower in self.towers)


def beside(costed) -> dict[str, str]:
    return {cluster.name: "cpu" for cluster in costed.clusters}


def test_lanes_of_a_device_take_turns() -> None:
    """Two lanes of one CPU draw in one order whatever their threads do, and the proof asks for it."""
    host = dataclasses.replace(DECLARED.device["cpu"], lanes=2)
    machine = dataclasses.replace(DECLARED, devices=(host, *DECLARED.devices[1:]))
    plan = planned(Towers(), torch.randn(256, 512), False, machine, policy=beside, split=None)
    program, graph = lower(plan), plan.costed.graph
    check(program, graph)
    drawing = {task.name for task in graph.tasks if task.random == LOCAL}
    lanes = [lane for lane in program.lanes if any(_draws(step, drawing) for step in lane.steps)]
    assert len(drawing) == 4 and len(lanes) == 2
    refused = 0
    for lane in lanes:
        for at, step in enumerate(lane.steps):
            if isinstance(step, Wait):
                without = dataclasses.replace(lane, steps=(*lane.steps[:at], *lane.steps[at + 1 :]))
                others = tuple(without if other is lane else other for other in program.lanes)
                try:
                    check(dataclasses.replace(program, lanes=others), graph)
                except ProgramError as error:
                    refused += "draws from the generator of cpu" in str(error)
    assert refused


def _draws(step, drawing) -> bool:
    return isinstance(step, Compute) and step.task in drawing
