"""Display names of clusters and values by module, parameter and phase instead of operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache, cached_property
from itertools import takewhile

from .costed import CostedGraph
from .graph import JOIN, PART, SUM, UPDATES, Task

PHASES = ("forward", "backward", "reduction", "update")
"""Phases of a training step."""
BUCKET = "gradient bucket"
"""Start of the label of tasks that sum several small gradients together."""
_PACKS = "aten.flatten_dense_tensors.default"
CRITERION = "criterion"
"""Module name of the loss of a training step; its tasks are named by operator: `mse_loss`."""
LOSS = "autopar.loss"
"""Target of the task that stands for the user's own loss: it reads the outputs of the call and makes the tangents."""
_SHARE = 0.15
_LONG = 30
_ENDS = re.compile(r"(_backward_data|_backward|_forward|_functional|_legit|_no_training)+$")


class Words:
    """Display names for a costed graph.

    Clusters: `fc1, fc2 forward #0`, `mse_loss, fc2 backward #1`, `sum fc2.weight.grad`, `update fc2.weight`;
    "forward" only if there is a backward. Values: `inputs, part 0`, `fc2.weight.grad, part 1`, `fc2.weight,
    new`. Names may repeat: tables and pictures also give place and time.
    """

    def __init__(self, costed: CostedGraph) -> None:
        self.costed, self.graph = costed, costed.graph
        self.training = any(task.phase != "forward" for task in self.graph.tasks)
        self.cluster = cache(self._cluster)
        """The display name of each cluster."""
        self.value = cache(self._value)
        """The display name of each value."""

    def task(self, task: Task) -> str:
        """Return the display name of a single task, as if it were a cluster."""
        return self._special(task) or f"{_unit(task)}{self._phase([task])}{self._suffix([task])}"

    def phase(self, name: str) -> str:
        """Return the phase in which a cluster spends most time; for views, that of the viewed value."""
        cluster = self.costed.cluster[name]
        tasks = [self.graph.task[task] for task in cluster.tasks]
        shares = self._shares((t for t in tasks if not t.free), lambda task: self.phase_of_task[task.name])
        if shares:
            return max(shares, key=lambda phase: shares[phase])
        phases = [self.phase_of_value[value] for value in cluster.makes if value in self.phase_of_value]
        return phases[0] if phases else tasks[0].phase

    @cached_property
    def phase_of_task(self) -> dict[str, str]:
        """The phase in `PHASES` of each task.

        The reduction includes sums of gradients over the parts of the batch, their packing, and transfers to
        and from the sums. A sum that a part of the backward waits for (BatchNorm's statistics) is backward.
        """
        waited: set[str] = set()
        awaited: set[str] = set()
        phases: dict[str, str] = {task.name: task.phase for task in self.graph.tasks}
        for task in reversed(self.graph.tasks):
            if (task.part and task.phase == "backward" and task.target != _PACKS) or not waited.isdisjoint(
                task.outputs
            ):
                waited.update(task.inputs)
            elif task.target == SUM and task.phase == "backward":
                phases[task.name] = "reduction"
                awaited.update(task.inputs)
            elif task.target == _PACKS and not awaited.isdisjoint(task.outputs):
                phases[task.name] = "reduction"
        return phases

    @cached_property
    def phase_of_value(self) -> dict[str, str]:
        """The phase of each value's transfers: reduction for gradients to and from their sum, update for
        results of an update; for values that exist before the call, the first phase that reads them."""
        rank = {name: index for index, name in enumerate(PHASES)}
        phases: dict[str, str] = {}
        for task in self.graph.tasks:
            phase = self.phase_of_task[task.name]
            if task.free and task.inputs and phases.get(task.inputs[0]) == "reduction":
                phase = "reduction"
            phases.update(dict.fromkeys(task.outputs, phase))
            for name in task.inputs:
                if name not in self.graph.producer:
                    phases[name] = min(phases.get(name, phase), phase, key=lambda each: rank[each])
        for task in self.graph.tasks:
            if self.phase_of_task[task.name] == "reduction":
                phases.update(dict.fromkeys(task.inputs, "reduction"))
        return phases

    def _cluster(self, name: str) -> str:
        tasks = [self.graph.task[task] for task in self.costed.cluster[name].tasks]
        phase = self._most(tasks)
        heavy = [task for task in tasks if task.phase == phase]
        heavy = [task for task in heavy if not task.free] or heavy
        longest = max(heavy, key=self._seconds)
        if len(heavy) == 1 or longest.label.startswith(BUCKET):
            special = self._special(longest)
            if special:
                return special
        if phase == "update":
            return f"update {_together([path for task in heavy for path in _updated(task)])}"
        total = sum(map(self._seconds, heavy))
        of_loss = {_unit(task) for task in heavy if task.module == CRITERION}

        def unit_of(task: Task) -> str:
            return "loss" if task.module == CRITERION and len(of_loss) > 1 else _unit(task)

        shares = self._shares(heavy, unit_of)
        modules = {unit_of(task) for task in heavy if task.module}
        large = [unit for unit in shares if shares[unit] >= _SHARE * total]
        chosen = [unit for unit in large if unit in modules] or large or list(shares)
        if len(shares) > 1 and not modules:
            chosen = [max(shares, key=lambda unit: shares[unit])]
        return f"{_together(chosen)}{self._phase(heavy)}{self._suffix(tasks)}"

    def _special(self, task: Task) -> str:
        """Return the name of a task outside of modules (part, join, sum, update, user's loss); else ""."""
        if task.label.startswith(BUCKET):
            verb = "sum" if task.target == SUM else "unpack" if task.free else "pack"
            return f"{verb} {task.label}{self._suffix([task])}"
        if task.target == LOSS:
            return "your loss"
        if task.phase == "update":
            return f"update {_range(_updated(task))}"
        if task.target in (PART, JOIN):
            verb = "split" if task.target == PART else "join"
            whole = task.outputs[0] if verb == "join" else task.inputs[0]
            return f"{verb} {self.value(whole)}{self._suffix([task])}"
        if task.target == SUM:
            return f"sum {self.value(task.outputs[0]).removesuffix(' sum')}"
        if task.phase == "backward" and len(task.outputs) == 1:
            gradient = self.value(task.outputs[0]).partition(", part ")[0]
            if gradient in self._gradients:
                return gradient + self._suffix([task])
        return ""

    def _seconds(self, task: Task) -> float:
        cost = self.costed.cost.get(task.name)
        return cost.least if cost else 0.0

    def _shares(self, tasks: Iterable[Task], key: Callable[[Task], str]) -> dict[str, float]:
        """Return the sums of the seconds of tasks with the same `key`."""
        sums: dict[str, float] = {}
        for task in tasks:
            sums[key(task)] = sums.get(key(task), 0.0) + self._seconds(task)
        return sums

    def _most(self, tasks: list[Task]) -> str:
        """Return the phase in which tasks spend most time."""
        shares = self._shares(tasks, lambda task: task.phase)
        return max(shares, key=lambda phase: shares[phase])

    def _phase(self, tasks: list[Task]) -> str:
        return f" {self._most(tasks)}" if self.training else ""

    def _value(self, name: str) -> str:
        part = self.graph.value[name].part if name in self.graph.value else None
        return f"{self._whole(part[0], name)}, part {part[1]}" if part else self._whole(name, name)

    def _whole(self, name: str, one: str) -> str:
        """Return the name of a value, or of the value of which `one` is a part."""
        if name.startswith("tangent_"):
            return "output.grad"
        known = self.graph.value.get(name)
        if known and known.kind != "made":
            return known.path.removeprefix("optimizer.state.") or name
        if name in self._new:
            return f"{_range([self.value(state) for state in self._new[name]])}, new"
        maker = self.graph.task.get(self.graph.producer.get(one, ""))
        if maker and maker.label.startswith(BUCKET):
            return maker.label
        if name in self._gradients:
            return self._gradients[name]
        if maker is None:
            return name
        if maker.target in (PART, JOIN) and maker.inputs[0] != one:
            return self._whole(self._base(maker.inputs[0]), maker.inputs[0])
        if maker.module == CRITERION:
            return _unit(maker) + (" backward" if maker.phase == "backward" else "")
        label = self.graph.value[one].label.replace("_", " ")
        if maker.phase == "forward":
            return f"{maker.module} {label or 'output'}" if maker.module else name
        return f"{_unit(maker)} {maker.phase} {label}".rstrip()

    @cached_property
    def _new(self) -> dict[str, list[str]]:
        """The states or inputs that each new value replaces, several for a flat value."""
        targets: dict[str, list[str]] = {}
        for new, target in self.graph.updates:
            targets.setdefault(new, []).append(target)
        return targets

    @cached_property
    def _gradients(self) -> dict[str, str]:
        """The gradient that each value is, or becomes by views alone; parts have the name of their whole."""
        paths = {self.graph.value[name].path for name in self.graph.state}
        names = {
            name: self._base(name)
            for name in self.graph.producer
            if self._base(name).endswith(".grad") and self._base(name).removesuffix(".grad") in paths
        }
        names.update({text: text for text in names.values()})
        for task in reversed(self.graph.tasks):
            if task.phase == "backward" and len(task.outputs) == 1 and len(task.inputs) == 1:
                output, read = self._base(task.outputs[0]), self._base(task.inputs[0])
                if task.free and output in names and task.target != PART:
                    names.setdefault(read, names[output])
        return names

    def _base(self, name: str) -> str:
        """Return the value of which a value is a part; without one, the value itself."""
        part = self.graph.value[name].part
        return part[0] if part else name

    def _suffix(self, tasks: list[Task]) -> str:
        """Return ` #1` for tasks on the second part of the batch."""
        parts = (
            self.graph.value[name].part
            for task in tasks
            if task.part or task.target == PART
            for name in task.outputs
        )
        return next((f" #{part[1]}" for part in parts if part), "")


def _unit(task: Task) -> str:
    """Return the module of a task; without a module, its operator: `relu`, `mse_loss`."""
    return task.module if task.module and task.module != CRITERION else operator(task)


def _updated(task: Task) -> list[str]:
    """Return the paths of the parameters that a task of the optimizer's step updates."""
    items = [item for item in task.args if isinstance(item, tuple) and item] if task.target in UPDATES else []
    return [str(item[0]) for item in items] or [task.module or task.name]


def operator(task: Task) -> str:
    """Return the operator of a task, as a model's author would call it: `batch_norm`, `relu`, `mse_loss`."""
    _, _, rest = task.target.partition(".")
    name = task.label or rest.partition(".")[0] or task.name
    name = _ENDS.sub("", name).strip("_").removeprefix("native_")
    return "relu" if name == "threshold" else name


def _together(units: list[str]) -> str:
    """Join one or two names, or abbreviate more: `layers.1`, `layers 0 … 2`, `first … last`."""
    units = [unit for unit in dict.fromkeys(units) if not any(u.startswith(f"{unit}.") for u in units)]
    pair = ", ".join(units) if len(units) == 2 else ""
    return pair if 0 < len(pair) <= _LONG else (len(units) > 1 and common_module(units)) or _range(units)


def _range(names: list[str]) -> str:
    """Return one name, or the first and the last of several."""
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def common_module(paths: list[str]) -> str:
    """Return the longest dotted path that is a prefix of all `paths`."""
    levels = zip(*(path.split(".") for path in paths))
    return ".".join(names[0] for names in takewhile(lambda names: len({*names}) == 1, levels))
