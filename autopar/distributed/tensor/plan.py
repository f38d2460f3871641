"""The choice of layers to split over ranks by columns and rows, from the graph and the cost model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...capture import Captured
from ...capture.ahead import ahead
from ...costs.measure import measured
from ...costs.roofline import Estimate, Ratios, estimate, work
from ...errors import PlanError
from ...ir.device import Device, Link
from ...ir.graph import Graph, Task
from ...ir.hosts import compute_devices
from ...ir.machine import Machine
from ...pipeline.batch_split import WORTH
from ...pipeline.compare import present
from ...planner.pipelines.grid import all_gather_s, all_reduce_s
from ...system.text import percent, seconds, table
from ...transform.features import CONVOLUTIONS as TARGETS
from ...transform.features import EMBEDDING, Stretch, by_channel, narrowed, stretches

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRAINED = 3
"""Products of a training step for each product of the forward: each of the two gradients adds one."""


@dataclass(frozen=True)
class TensorGroup:
    """Modules by path that are split together, or the reason why not.

    columns: linears and convolutions split by their outputs; without `rows`, the parts are joined at once.
    rows: linears and convolutions split by their inputs.
    embeddings: split by their vocabulary.
    channels: norms and grouped convolutions between columns and rows, split by channels.
    dropouts: dropouts between columns and rows.
    whole_s: seconds of a step (or a forward) on one rank.
    part_s: seconds of one rank's part.
    network_s: seconds of communication.
    form: values between a column and a row: `local` tensors of a part's size, or a `dtensor`.
    """

    columns: tuple[str, ...]
    rows: tuple[str, ...] = ()
    embeddings: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    dropouts: tuple[str, ...] = ()
    whole_s: float = 0.0
    part_s: float = 0.0
    network_s: float = 0.0
    split: bool = False
    why: str = ""
    form: str = "local"

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of all modules whose weights are split."""
        return (*self.embeddings, *self.columns, *self.channels, *self.rows)

    @property
    def gain_s(self) -> float:
        """Predicted seconds that the split saves each rank in a step; negative if it costs more."""
        return self.whole_s - self.part_s - self.network_s

    @property
    def title(self) -> str:
        """The modules as text: `mlp.up, mlp.gate → mlp.down`."""
        left = ", ".join((*self.embeddings, *self.columns))
        return f"{left} → {', '.join(self.rows)}" if self.rows else left


@dataclass(frozen=True)
class TensorPlan:
    """A tensor-parallel split of a model over `ranks` processes: its groups, including those that stay whole.

    whole_s: predicted seconds of a step on one rank (forward and backward if `training`), without the update.
    dispatch_s: seconds of the host for each split layer in the forward, and again in the backward.
    draws: True if the model draws random numbers in training, by modules or functions.
    """

    model: str
    ranks: int
    link: Link
    dispatch_s: float
    training: bool
    whole_s: float
    groups: tuple[TensorGroup, ...]
    draws: bool = False

    @property
    def split(self) -> tuple[TensorGroup, ...]:
        """The groups that are split."""
        return tuple(group for group in self.groups if group.split)

    @property
    def split_s(self) -> float:
        """Predicted seconds of a step of all ranks together."""
        return self.whole_s - sum(group.gain_s for group in self.split)

    def explain(self) -> str:
        """Return the decision for each group of layers, with the predicted seconds."""
        rows: list[tuple[str, ...]] = [("layers", "like it", "one rank", "part", "network", "decision")]
        for group, alike in _alike(self.groups):
            priced = group.whole_s > 0
            figures = [seconds(s) if priced else "-" for s in (group.whole_s, group.part_s, group.network_s)]
            rows.append(
                (group.title, str(alike), *figures, f"split over {self.ranks}" if group.split else "whole")
            )
        what = "a training step" if self.training else "a forward"
        count = sum(len(group.modules) for group in self.split)
        head = (
            f"{self.model} over {self.ranks} ranks: {count} layers split; {what} is predicted to take "
            f"{seconds(self.split_s)}, {seconds(self.whole_s)} on one rank\n"
            f"link: {seconds(self.link.latency_s)} + {self.link.bytes_per_s / 1e9:.3g} GB/s; dispatch: "
            f"{seconds(self.dispatch_s)} a layer"
        )
        reasons = [f"{group.title}: {group.why}" for group, _ in _alike(self.groups)]
        return "\n".join([head, "", table(rows, right=(1, 2, 3, 4), widest=100), "", *reasons])

    def __str__(self) -> str:
        return self.explain()


def tensor_plan(
    model: nn.Module,
    ranks: int,
    machine: Machine,
    link: Link,
    *,
    dispatch_s: float = 0.0,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    training: bool | None = None,
) -> TensorPlan:
    """Plan a tensor-parallel split over `ranks` equal devices where it is predicted to be faster. The model
    is neither run nor changed.

    Each rank computes on the first accelerator of `machine`, or else its CPU; ranks communicate over `link` in rings
    (`autopar.ir.device.Link`: seconds, bytes per second). `dispatch_s`: exposed seconds of the host for each split
    layer in the forward, and again in the backward. On a real `machine`, tasks are timed once, in about 1 s.
    For a declared machine, tensors may be on the meta device. `training` None: as in `model.training`. Shapes are
    those of the examples. A group of layers is split if that saves at least 3 % of its seconds.

    Raises CaptureError if the model is not one graph, PlanError for fewer than two ranks.
    """
    if ranks < 2:
        raise PlanError(
            f"ranks={ranks}: a tensor split needs two processes or more; start them with torchrun"
        )
    trains = model.training if training is None else training
    # Captured in training mode even for a forward, so that dropouts are seen.
    with torch.no_grad(), in_mode(model, True):
        captured, tensors = ahead(model, tuple(example_inputs), dict(example_kwargs or {}))
    given = present(captured, tensors)
    real = not machine.absent and not any(tensor.is_meta for tensor in given.values())
    ratios = measured(captured.graph, machine, captured.calls, given) if real else {}
    device = machine.device[compute_devices(machine)[0]]
    by_roofline = estimate(machine, device)
    price = _Price(captured.graph, ranks, link, dispatch_s, trains, device, by_roofline, ratios)
    learned = [name for name in captured.graph.state if given[name].requires_grad]
    groups: list[TensorGroup] = []
    for stretch in stretches(captured.graph, ranks, learned, channels=True):
        group = price.group(stretch, _wrong(model, captured, stretch))
        if groups and groups[-1].columns == group.columns and not stretch.rows and not group.embeddings:
            # A column that begins no pair comes again, alone; its reason then includes why it begins no pair.
            group = replace(group, why=f"{group.why}; no pair: {groups.pop().why}")
        groups.append(group)
    whole_s = price.seconds(captured.graph.task)
    name, draws = type(model).__name__, any(_drawn(model, task) for task in captured.graph.tasks)
    return TensorPlan(name, ranks, link, dispatch_s, trains, whole_s, tuple(groups), draws)


@dataclass(frozen=True)
class _Price:
    """Seconds of stretches of tasks, whole and split, on one device and one link."""

    graph: Graph
    ranks: int
    link: Link
    dispatch_s: float
    training: bool
    device: Device
    estimate: Estimate
    ratios: Ratios

    def seconds(self, tasks: Iterable[str], graph: Graph | None = None) -> float:
        """Return the seconds of tasks in a step, for the sizes of values in `graph`."""
        at, total = graph or self.graph, 0.0
        for name in tasks:
            task = at.task[name]
            once = self.estimate(work(at, task))
            once *= self.ratios.get((name, self.device.name), 1.0)
            if not self.training:
                total += once
            elif task.target == EMBEDDING:
                # The gradient is as large as the table, however little was looked up.
                total += 2 * once + 2 * at.value[task.inputs[0]].bytes / self.device.bytes_per_s
            else:
                total += _TRAINED * once
        return total

    def group(self, stretch: Stretch, wrong: str) -> TensorGroup:
        """Return a stretch as a group of modules, priced unless refused for the reason `wrong`."""
        graph = self.graph
        modules = {name: graph.task[name].module for name in stretch.tasks}
        named = TensorGroup(
            tuple(modules[name] for name in stretch.columns),
            tuple(modules[name] for name in stretch.rows),
            tuple(modules[name] for name in stretch.embeddings),
            tuple(modules[name] for name in stretch.inner if by_channel(graph.task[name])),
            tuple(dict.fromkeys(modules[name] for name in stretch.inner if graph.task[name].random)),
        )
        if wrong:
            return replace(named, why=wrong)
        whole = self.seconds(stretch.tasks)
        part = self.seconds(stretch.tasks, narrowed(graph, stretch, self.ranks))
        network = sum(self.exchanged(stretch))
        pays = part + network <= (1 - WORTH) * whole
        if pays:
            why = f"{percent(1 - (part + network) / whole)} less"
        elif part + network >= whole:
            why = "a part and what is exchanged take no less than the whole"
        else:
            why = f"a gain below {percent(WORTH)} is finer than predictions are"
        return replace(named, whole_s=whole, part_s=part, network_s=network, split=pays, why=why)

    def exchanged(self, stretch: Stretch) -> Iterator[float]:
        """Yield the seconds of each collective of a step, and of the dispatch of its layers."""
        inner = sum(by_channel(self.graph.task[name]) for name in stretch.inner)
        layers = len(stretch.rows) + len(stretch.columns) + len(stretch.embeddings) + inner
        yield self.dispatch_s * layers * (2 if self.training else 1)
        graph, size = self.graph, {value.name: value.bytes for value in self.graph.values}
        pace = self.link.latency_s, self.link.bytes_per_s
        for name in (*stretch.rows, *stretch.embeddings):
            yield all_reduce_s(self.ranks, size[graph.task[name].outputs[0]], *pace)
        for name in stretch.columns:
            task = graph.task[name]
            if not stretch.rows:
                yield all_gather_s(self.ranks, size[task.outputs[0]], *pace)
            if self.training and task.inputs[0] not in graph.inputs:
                yield all_reduce_s(self.ranks, size[task.inputs[0]], *pace)


def _wrong(model: nn.Module, captured: Captured, stretch: Stretch) -> str:
    """Return the reason why a stretch of tasks is not a group of modules that can be split; "" if it is."""
    if stretch.refusal:
        return stretch.refusal
    graph = captured.graph
    for name in (*stretch.columns, *stretch.rows, *stretch.embeddings):
        task = graph.task[name]
        kind = _kind_of(task)
        weight = task.inputs[0 if kind is nn.Embedding else 1]
        module = model.get_submodule(task.module)
        owner, key = captured.state[weight]
        if not _runs(module, kind):
            return f"{task.where} is not called by an nn.{kind.__name__} of its own"
        if module._parameters.get("weight") is not owner[key]:
            return f"the weight of {task.module} is not a parameter of its own (parametrized?)"
        if isinstance(module, nn.Embedding) and (
            module.padding_idx is not None
            or module.max_norm is not None
            or module.sparse
            or module.scale_grad_by_freq
        ):
            return f"{task.module} has padding_idx, max_norm, sparse or scale_grad_by_freq, which need the whole table"
    for name in stretch.inner:
        task = graph.task[name]
        if by_channel(task) and (why := _wrong_channels(model, captured, task)):
            return why
        if not task.random:
            continue
        if not isinstance(model.get_submodule(task.module), (nn.Dropout, nn.AlphaDropout)):
            return (
                f"{task.where} is not an nn.Dropout module, so that ranks could not draw masks of their own"
            )
        if any(other.module == task.module and other.name not in stretch.inner for other in graph.tasks):
            return (
                f"{task.module} is also called where nothing is cut; give each place an nn.Dropout of its own"
            )
    return ""


def _wrong_channels(model: nn.Module, captured: Captured, task: Task) -> str:
    """Return the reason why the module of a task cannot be split by channels; "" if it can."""
    module = model.get_submodule(task.module)
    own = [id(tensor) for tensor in (*module._parameters.values(), *module._buffers.values())]
    states = [captured.state[name] for name in task.inputs if captured.graph.value[name].kind == "state"]
    kinds = (*CONVOLUTIONS, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)
    if not any(_runs(module, kind) for kind in kinds) or any(
        id(owner[key]) not in own for owner, key in states
    ):
        return f"{task.where} is not called by a convolution, nn.BatchNorm or nn.GroupNorm of its own"
    alike = [
        other for other in captured.graph.tasks if (other.module, other.target) == (task.module, task.target)
    ]
    return f"{task.module} is called more than once" if len(alike) > 1 else ""


def _drawn(model: nn.Module, task: Task) -> bool:
    """Return True if a task draws random numbers, and is not a dropout of nothing."""
    if task.random is None:
        return False
    module = dict(model.named_modules()).get(task.module)
    return not (isinstance(module, nn.modules.dropout._DropoutNd) and module.p == 0)


def _runs(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return True if a call of the module runs the forward of `kind` unchanged."""
    return type(module).forward is kind.forward and "forward" not in vars(module)


def _kind_of(task: Task) -> type[nn.Module]:
    other = nn.Embedding if task.target == EMBEDDING else nn.Linear
    return next((kind for kind, name in zip(CONVOLUTIONS, TARGETS) if task.target.startswith(name)), other)


def _alike(groups: Sequence[TensorGroup]) -> Iterator[tuple[TensorGroup, int]]:
    """Yield the first of groups that differ only in numbers within their paths, and their count."""
    found: dict[tuple[str, bool], list[TensorGroup]] = {}
    for group in groups:
        names = re.sub(r"\b\d+\b", "#", " ".join(group.modules))
        found.setdefault((names, group.split), []).append(group)
    return ((alike[0], len(alike)) for alike in found.values())


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Within the block, put the model in training or evaluation mode; then restore the mode of each module."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was
