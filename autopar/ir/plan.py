"""A schedule with its times, bound and reasons: `Plan`. Printed as a table, saved as JSON, drawn by `view`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

from ..errors import PlanError
from ..system import jsonfile
from ..system.text import percent, seconds, size, table
from . import pictures
from .costed import CostedGraph
from .critical_path import Critical, critical
from .device_map import device_map
from .display_names import Words
from .plan_check import check, sound
from .serialize import decode, encode
from .timeline import Memory, Placed, Span, Step, Timeline, Transfer

FORMAT = "autopar plan 1"


@dataclass(frozen=True, slots=True)
class Choice:
    """One device a cluster could have gone to: when its inputs would be there, when the device would be free, when it
    would have ended (None: cannot run there, `why` says so)."""

    device: str
    arrives: float
    free: float
    end: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a cluster is where it is: one sentence and the alternatives weighed."""

    cluster: str
    text: str
    choices: tuple[Choice, ...] = ()


class _Named(Mapping[str, Reason]):
    """Reasons by cluster name; those that are worked out when asked for stay so."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        names = getattr(reasons, "clusters", None) or (reason.cluster for reason in reasons)
        self.reasons, self.position = reasons, {name: index for index, name in enumerate(names)}

    def __getitem__(self, cluster: str) -> Reason:
        return self.reasons[self.position[cluster]]

    def __contains__(self, cluster: object) -> bool:
        return cluster in self.position

    def __iter__(self) -> Iterator[str]:
        return iter(self.position)

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan that was in the race: policy, split, its predicted makespan (None: not feasible) and a note."""

    policy: str
    split: str
    makespan: float | None
    note: str = ""

    @property
    def name(self) -> str:
        """Policy and split, as in `heft, 2 parts: 4 + 4`."""
        return f"{self.policy}, {self.split}" if self.split else self.policy


SCREEN = 30
"""Rows of the table that `repr` shows."""


@dataclass(frozen=True, repr=False)
class Plan:
    """A costed graph placed on its machine.

    `placed` and `transfers` are sorted by start, which is also the order in each lane. `resident` pairs state values
    with devices that keep a copy. `memory` is the predicted use of each device over time. `singles` is the makespan
    with everything on one device (None: does not fit or cannot run there). `lower_bound` is proven: no plan of this
    graph on this machine is shorter. `stopped` is `time` when the search was cut short by a ceiling in seconds.
    `period` is the time from one call to the next where calls follow each other without a pause (None: a plan
    for one call), and then what `lower_bound` is of. `bound_once` is the bound of plans that compute each task once
    and send each value from where it was made, where a stronger one was proven for these. All times in seconds.

    However a plan comes about, its bounds are held against what it reaches here, so that none is above it: one that is
    proves nothing and becomes 0, with a BoundWarning. `bound_once` says nothing of a plan that computes clusters again.
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
    reasons: Sequence[Reason] = ()
    stopped: str = ""
    period: float | None = None
    bound_once: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "lower_bound", sound(self.lower_bound, self.reached, self.makespan))
        if not self.costed.again:
            object.__setattr__(self, "bound_once", sound(self.bound_once, self.reached, self.makespan))

    @property
    def reached(self) -> float:
        """Seconds that `lower_bound` is of: the period where there is one, else the makespan."""
        return self.makespan if self.period is None else self.period

    @cached_property
    def place(self) -> dict[str, Placed]:
        """Placement of each cluster, by cluster name."""
        return {placed.cluster: placed for placed in self.placed}

    @cached_property
    def reason(self) -> Mapping[str, Reason]:
        """Why, by cluster name."""
        return _Named(self.reasons)

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
        found: dict[str, list[Step]] = {lane: [] for lane in self.costed.machine.lanes}
        for step in self.steps:
            for lane in step.lanes if isinstance(step, Placed) else (step.lane,):
                found[lane].append(step)
        return {lane: tuple(steps) for lane, steps in found.items()}

    @property
    def best_single(self) -> tuple[str, float] | None:
        """The fastest single device and its makespan, None when none can run it all."""
        feasible = [(time, device) for device, time in self.singles if time is not None]
        return (min(feasible)[1], min(feasible)[0]) if feasible else None

    @property
    def gap(self) -> float:
        """Optimality gap as a share of the lower bound: 0.1 is 10 %, inf where only 0 is proven. Of the period where
        there is one."""
        if not self.lower_bound:
            return math.inf if self.reached else 0.0
        return self.reached / self.lower_bound - 1

    @property
    def moved(self) -> int:
        """Bytes moved between devices in one call."""
        return sum(transfer.bytes for transfer in self.transfers)

    @property
    def peaks(self) -> dict[str, int]:
        """Predicted peak bytes of each device, were every cluster to take as long as predicted and to hold from its
        start all that it makes.

        Caps hold for these and for the most bytes in any order that the lanes may take, which
        `lowering.check.check(program, plan.costed.graph).peaks` gives and which may be more. The plan of a compiled
        model in training has the larger of both.
        """
        return {memory.device: memory.peak for memory in self.memory}

    @cached_property
    def critical(self) -> Critical:
        """The waits of each step, the critical path, and the slack of the rest."""
        return critical(self.costed, self.steps)

    def timeline(self) -> Timeline:
        """The prediction as a timeline, which knows its critical path."""
        graph, machine = self.costed.graph, self.costed.machine
        hot = {id(self.critical.steps[number]) for number in self.critical.path}
        spans: list[tuple[Span, bool]] = []
        for placed in self.placed:
            first = graph.task[self.costed.cluster[placed.cluster].tasks[0]]
            spans += [
                (Span(lane, placed.device, "compute", placed.cluster, placed.start, placed.end,
                      module=first.module, source=first.source, called=self.words.cluster(placed.cluster),
                      phase=self.words.phase(placed.cluster)), id(placed) in hot)
                for lane in placed.lanes
            ]  # fmt: skip
        for t in self.transfers:
            device = t.lane.rsplit("/", 1)[0]
            copy = Span(
                t.lane,
                device,
                "copy",
                t.value,
                t.start,
                t.end,
                src=t.src,
                dst=t.dst,
                bytes=t.bytes,
                ready=t.ready,
                called=self.words.value(t.value),
            )
            spans.append((copy, id(t) in hot))
        spans.sort(key=lambda pair: (pair[0].start, pair[0].lane))
        return Timeline(
            graph.name,
            machine.lanes,
            tuple(span for span, _ in spans),
            self.makespan,
            self.memory,
            machine.label,
            path=tuple(number for number, (_, critical) in enumerate(spans) if critical),
        )

    def device_map(self) -> dict[str, str]:
        """The plan as a device map of Hugging Face accelerate, which `pins=` takes too: {module path: device}.

        Paths are the shortest that have all parameters and buffers below them on one device, "" the whole model, and
        between them cover each of the model's. What is read on several devices is where most of the time of its
        readers is; what no task reads where its neighbours are. A plan of one graph of several knows of that one.
        """
        return device_map(self.costed, {placed.cluster: placed.device for placed in self.placed})

    def explain(self, *clusters: str) -> str:
        """The report, or of clusters by name or glob why each is where it is: what it waited for, and when it would
        end on each device.

        The report tells the critical path with its waits, and which one change of hardware or of a cap would shorten
        the plan most, for which it plans again: up to some seconds. Raises PlanError for a name that no cluster has.
        """
        return str(pictures.render("explain", self, *clusters))

    def draw(self, path: str | PathLike[str]) -> None:
        """Draw it as `.html`, `.svg`, `.png`, `.dot` or `.txt`."""
        pictures.render("draw", self, path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as JSON, graph, machine and costs included."""
        Path(path).write_text(json.dumps({"format": FORMAT, "plan": encode(self)}, indent=1) + "\n")

    @staticmethod
    def load(path: str | PathLike[str]) -> Plan:
        """Read what `save` wrote, edited perhaps; PlanError or DeviceError says what is not as it should be."""
        data = jsonfile.load(path, "a plan is read from what Plan.save wrote, never a pickle")
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise PlanError(f"{path} is not an {FORMAT!r} file; write one with plan.save({str(path)!r})")
        plan = decode(Plan, data.get("plan"), str(path))
        check(str(path), plan)
        return plan

    def __str__(self) -> str:
        return self._table(self.steps)

    def __repr__(self) -> str:
        """The first rows of the table, as much as a screen shows."""
        more = len(self.steps) - SCREEN
        rest = f"\n… {more:,} more rows; print(plan) shows all, plan.draw('plan.html') draws them"
        return self._table(self.steps[:SCREEN]) + (rest if more > 0 else "")

    def _repr_html_(self) -> str:
        return str(pictures.render("html", self))

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
        head = [
            f"plan of {self.costed.graph.name} by {self.policy}"
            + (f" [{machine.label}]" if machine.label else "")
        ]
        often = "" if self.period is None else f", a call every {seconds(self.period)}"
        head.append(
            f"predicted {seconds(self.makespan)}{often}, lower bound {seconds(self.lower_bound)} "
            f"(gap {percent(self.gap)})"
        )
        return "\n".join(head) + "\n" + table(rows, right=(0, 1, 5))
