"""`Plan`: a schedule with its times and lower bound. Printed as a table, saved as JSON, drawn by `view`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from os import PathLike
from pkgutil import resolve_name
from typing import Any, TypeAlias

import networkx

from ..errors import PlanError
from ..system.text import percent, printable, seconds, size, table
from . import serialize
from .costed import CostedGraph
from .critical_path import Critical, critical
from .display_names import Words
from .plan_check import check, sound_bound
from .timeline import Memory, Placed, Span, Step, Theme, Timeline, Transfer

FORMAT = "autopar plan 1"


@dataclass(frozen=True, slots=True)
class Choice:
    """An alternative device for a cluster; times in seconds.

    arrives: arrival of the last input.
    free: the device becomes free.
    end: end of the cluster; None: it cannot run there, because of `why`.
    """

    device: str
    arrives: float
    free: float
    end: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for a cluster's placement: one sentence and the alternatives."""

    cluster: str
    text: str
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan in the race: policy, split, predicted makespan in seconds (None: infeasible, not sought),
    note."""

    policy: str
    split: str
    makespan: float | None
    note: str = ""

    @property
    def name(self) -> str:
        """Policy and split: `heft, 2 parts: 4 + 4`."""
        return f"{self.policy}, {self.split}" if self.split else self.policy


SCREEN = 30
"""Rows of the table in `repr`."""


@dataclass(frozen=True, repr=False)
class Plan:
    """A costed graph placed on its machine. Times are in seconds.

    placed, transfers: sorted by start, which is also the order in each lane.
    resident: (state value, device with a replica).
    memory: predicted use of each device over time.
    singles: (device, makespan with everything on it; None: does not fit or cannot run there).
    lower_bound: proven: no plan of this graph on this machine is shorter.
    stopped: `time` if the time limit ended the search.

    Every plan compares its bound with its own time: one above it proves nothing and becomes 0, with a
    BoundWarning.
    """

    costed: CostedGraph
    policy: str
    placed: tuple[Placed, ...]
    transfers: tuple[Transfer, ...]
    resident: tuple[tuple[str, str], ...]
    memory: tuple[Memory, ...]
    makespan: float
    lower_bound: float = 0.0
    singles: tuple[tuple[str, float | None], ...] = ()
    candidates: tuple[Candidate, ...] = ()
    stopped: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower_bound", sound_bound(self.lower_bound, self.makespan))

    @cached_property
    def place(self) -> dict[str, Placed]:
        """Placement of each cluster, by cluster name."""
        return {placed.cluster: placed for placed in self.placed}

    @cached_property
    def reason(self) -> Mapping[str, Reason]:
        """Reason of each cluster, by cluster name, computed from the plan on demand."""
        reasons: Mapping[str, Reason] = resolve_name("autopar.planner.reasons:Reasons")(self)
        return reasons

    @cached_property
    def printable(self) -> Plan:
        """The plan as text shows it, with line breaks, control characters and changes of direction in names
        escaped."""
        graph = self.costed.graph
        names = chain(
            (graph.name, *self.costed.index, *self.costed.cluster),
            *((task.name, task.module, task.source) for task in graph.tasks),
            *((value.name, value.path) for value in graph.values),
            (link.wire or "" for link in self.costed.machine.links),
        )
        if all(map(str.isprintable, names)):
            return self
        return serialize.decode(Plan, _printable(serialize.encode(self)))

    @cached_property
    def words(self) -> Words:
        """Display names of its clusters and values."""
        return Words(self.costed)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Clusters and transfers by start."""
        both: list[Step] = [*self.placed, *self.transfers]
        return tuple(sorted(both, key=lambda step: (step.start, step.end)))

    @cached_property
    def orders(self) -> dict[str, tuple[Step, ...]]:
        """Steps of each lane of the machine, in order."""
        orders: dict[str, list[Step]] = {lane: [] for lane in self.costed.machine.lanes}
        for step in self.steps:
            orders[step.lane].append(step)
        return {lane: tuple(steps) for lane, steps in orders.items()}

    @property
    def best_single(self) -> tuple[str, float] | None:
        """The fastest single device and its makespan; None if no device can run everything."""
        feasible = [(time, device) for device, time in self.singles if time is not None]
        return (min(feasible)[1], min(feasible)[0]) if feasible else None

    @property
    def gap(self) -> float:
        """Optimality gap as a share of the lower bound: 0.1 is 10 %, inf for a bound of 0."""
        if not self.lower_bound:
            return math.inf if self.makespan else 0.0
        return self.makespan / self.lower_bound - 1

    def candidate(self, note: str = "") -> Candidate:
        """Return its entry among the plans of a race."""
        return Candidate(self.policy, self.costed.graph.split, self.makespan, note)

    @property
    def moved(self) -> int:
        """Bytes moved between devices in one call."""
        return sum(transfer.bytes for transfer in self.transfers)

    @property
    def peaks(self) -> dict[str, int]:
        """Predicted peak bytes of each device, if every cluster takes as long as predicted and holds its
        outputs from its start.

        `lowering.check.check(program, plan.costed.graph)` returns the maximum over all orders in which the
        lanes may run, which may be larger. Caps apply to both. The plan of a compiled model in training has
        the larger one.
        """
        return {memory.device: memory.peak for memory in self.memory}

    @cached_property
    def critical(self) -> Critical:
        """The waits of each step, the critical path, and the slack of the rest."""
        return critical(self.costed, self.steps)

    def timeline(self) -> Timeline:
        """Return the prediction as a timeline with its critical path."""
        hot, machine = self.critical.on_path, self.costed.machine
        pairs = [(self._span(step), number in hot) for number, step in enumerate(self.steps)]
        pairs.sort(key=lambda pair: (pair[0].start, pair[0].lane))
        spans = tuple(span for span, _ in pairs)
        path = tuple(number for number, (_, critical) in enumerate(pairs) if critical)
        title, lanes = self.costed.graph.name, machine.lanes
        return Timeline(title, lanes, spans, self.makespan, self.memory, machine.label, path=path)

    def _span(self, step: Step) -> Span:
        """Return the predicted span of a step."""
        if isinstance(step, Transfer):
            device, called = step.lane.rsplit("/", 1)[0], self.words.value(step.value)
            return Span(
                step.lane, device, "copy", step.value, step.start, step.end, src=step.src, dst=step.dst,
                bytes=step.bytes, ready=step.ready, called=called,
            )  # fmt: skip
        first = self.costed.graph.task[self.costed.cluster[step.cluster].tasks[0]]
        called, phase = self.words.cluster(step.cluster), self.words.phase(step.cluster)
        return Span(
            step.lane, step.device, "compute", step.cluster, step.start, step.end, module=first.module,
            source=first.source, called=called, phase=phase,
        )  # fmt: skip

    def device_map(self) -> dict[str, str]:
        """Return the plan as a device map of Hugging Face accelerate: {module path: device}; accepted by `pins=`.

        Paths are the shortest below which all parameters and buffers are on one device ("": the whole model),
        and cover all of them. A tensor read on several devices is where its readers spend most time, an
        unread one where its neighbours are. The plan of one of several graphs covers only that graph. Raises PlanError
        for a plan that splits the batch or features: a map of modules cannot say so.
        """
        if self.costed.graph.split:
            raise PlanError(
                f"the plan splits {self.costed.graph.name!r} ({self.costed.graph.split}), which no device map can say; "
                "plan.save('plan.json') and compile(model, devices, plan='plan.json') keep the split, and a plan made "
                "with split=None has a device map"
            )
        return _device_map(self.costed, {placed.cluster: placed.device for placed in self.placed})

    def explain(self, *names: str) -> str:
        """Return the report, at most 50 lines of 100 columns; or what is asked for: sections in full ("costs",
        "devices", "phases", "candidates", "path", "reasons", "hardware", or "all"), or why something is where it is, by
        any name that a report or picture shows, or a glob.

        Raises PlanError for a name that nothing has.
        """
        report: str = resolve_name("autopar.view:explain")(self, None, None, (), *names)
        return report

    def draw(
        self, path: str | PathLike[str], *, width: float | None = None, theme: Theme | None = None
    ) -> None:
        """Draw as `.html`, `.svg`, `.png` or `.pdf`. For `.svg`, `.png` and `.pdf`, `width` in pixels and
        `theme` (`light` or `dark`) can be chosen."""
        resolve_name("autopar.view:draw")(self, path, width=width, theme=theme)

    def save(self, path: str | PathLike[str]) -> None:
        """Write to a JSON file, with graph, machine and costs."""
        serialize.save(self, FORMAT, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Plan:
        """Read a file written by `save`, edited or not; PlanError or DeviceError says what is wrong with it."""
        plan = serialize.load(Plan, FORMAT, path)
        check(str(path), plan)
        return plan

    def __str__(self) -> str:
        return self.printable._table(self.printable.steps)

    def __repr__(self) -> str:
        """Return as many first rows of the table as fit on a screen."""
        more = len(self.steps) - SCREEN
        rest = f"\n… {more:,} more rows; print(plan) shows all, plan.draw('plan.html') draws them"
        return self.printable._table(self.printable.steps[:SCREEN]) + (rest if more > 0 else "")

    def _repr_html_(self) -> str:
        return str(resolve_name("autopar.view.pages:plan_html")(self))

    def _table(self, steps: Sequence[Step]) -> str:
        rows = [("start", "end", "lane", "what", "reads", "bytes")]
        for step in steps:
            if isinstance(step, Placed):
                reads = ", ".join(map(self.words.value, self.costed.cluster[step.cluster].reads))
                what = self.words.cluster(step.cluster)
                rows.append((seconds(step.start), seconds(step.end), step.lane, what, reads, ""))
            else:
                what = f"{self.words.value(step.value)}: {step.src} → {step.dst}"
                rows.append((seconds(step.start), seconds(step.end), step.lane, what, "", size(step.bytes)))
        machine = self.costed.machine
        label = f" [{machine.label}]" if machine.label else ""
        return (
            f"plan of {self.costed.graph.name} by {self.policy}{label}\n"
            f"predicted {seconds(self.makespan)}, lower bound {seconds(self.lower_bound)} "
            f"(gap {percent(self.gap)})\n{table(rows, right=(0, 1, 5))}"
        )


def _printable(data: Any) -> Any:
    """Return JSON data with each text as a terminal may show it; different texts stay different."""
    if isinstance(data, str):
        return printable(data.replace("\\", r"\\"))
    if isinstance(data, list):
        return [_printable(item) for item in data]
    return {key: _printable(item) for key, item in data.items()} if isinstance(data, dict) else data


_Place: TypeAlias = tuple[float, int, int]
"""Sort key of a module's devices, the largest wins: seconds of tasks, number of tasks, − device number."""


def _device_map(costed: CostedGraph, devices: Mapping[str, str]) -> dict[str, str]:
    """Return the device of every parameter and buffer, by the shortest module paths with a single device.

    `devices` gives the device of each cluster. A module's own tensors stay together, and so do modules that
    share tensors: tied weights are on one device.
    """
    graph = costed.graph
    paths = dict(graph.paths) or {path: path for path in (graph.value[name].path for name in graph.state)}
    # Modules that share tensors, by a representative.
    tied = networkx.Graph((_owner(path), _owner(same)) for path, same in paths.items())
    unit = {module: min(group) for group in networkx.connected_components(tied) for module in group}
    device_of = _devices(costed, devices, unit)
    where = {path: device_of.get(unit[_owner(path)], "") for path in paths}
    for path, device in where.items():
        where[path] = device or _neighbour(path, where) or costed.machine.host
    return dict(_folded("", where))


def _owner(path: str) -> str:
    """Return the module that owns a tensor; the tensor itself if that is the whole model."""
    return path.rpartition(".")[0] or path


def _devices(costed: CostedGraph, devices: Mapping[str, str], unit: dict[str, str]) -> dict[str, str]:
    """Return the device on which the tasks of each unit spend the most time."""
    graph = costed.graph
    spent: dict[str, dict[str, _Place]] = {}
    for task in graph.tasks:
        device = devices.get(costed.cluster_of.get(task.name, ""))
        if device is None or task.phase != "forward":
            continue
        read = {_owner(graph.value[name].path) for name in task.inputs if graph.value[name].kind == "state"}
        at = costed.index[device]
        for module in {unit[owner] for owner in (task.module, *read) if owner in unit}:
            places = spent.setdefault(module, {})
            time, count, _ = places.get(device, (0.0, 0, 0))
            places[device] = time + (costed.cost[task.name].seconds[at] or 0.0), count + 1, -at
    return {module: max(places, key=lambda name: places[name]) for module, places in spent.items()}


def _neighbour(path: str, where: dict[str, str]) -> str:
    """Return the device of most of the tensors next to a path."""
    while path:
        path = path.rpartition(".")[0]
        near = Counter(device for other, device in where.items() if device and _below(other, path))
        if near:
            return near.most_common(1)[0][0]
    return ""


def _below(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(f"{module}.")


def _folded(module: str, where: dict[str, str]) -> list[tuple[str, str]]:
    if len({*where.values()}) == 1:
        return [(module, next(iter(where.values())))]
    children: dict[str, dict[str, str]] = {}
    start = len(module) + 1 if module else 0
    for path, device in where.items():
        child = path[:start] + path[start:].partition(".")[0]
        children.setdefault(child, {})[path] = device
    return [entry for child, below in children.items() for entry in _folded(child, below)]
