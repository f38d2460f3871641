"""Plans judged by `verify`, with their figures, and goals for figures, for all parts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autopar.ir.costed import CostedGraph
from autopar.ir.plan import Plan
from autopar.planner import place, schedule
from autopar.planner.formats import read

from .verify import infeasibilities

Data = dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """A plan as JSON, in seconds of the graph's clock; `cost` is the CPU seconds that planning took, and `wrong`
    what the judge has to say, a sentence each."""

    data: Data
    cost: float
    wrong: tuple[str, ...]

    @property
    def makespan(self) -> float:
        """Predicted seconds of the plan."""
        return self.data["makespan_s"]

    @property
    def bound(self) -> float:
        """Seconds below which no plan can be, as the planner proves."""
        return self.data["lower_bound_s"]


def described(plan: Plan) -> dict[str, Any]:
    """A plan as the judge reads it: makespan, lower bound, tasks and transfers by start, in seconds; simultaneous
    steps of zero length are in execution order. `stopped`: if the search was cut short."""
    costed = plan.costed
    number = {
        lane: index for device in costed.machine.devices for index, lane in enumerate(device.compute_lanes)
    }
    tasks = [
        {
            "id": costed.cluster[step.cluster].tasks[0],
            "device": step.device,
            "lane": number[step.lane],
            "start_s": step.start,
            "end_s": step.end,
        }
        for step in plan.placed
    ]
    transfers = [
        {
            "value": t.value,
            "src": t.src,
            "dst": t.dst,
            "start_s": t.start,
            "end_s": t.end,
        }
        for t in plan.transfers
    ]
    found: dict[str, Any] = {
        "makespan_s": plan.makespan,
        "lower_bound_s": plan.lower_bound,
        "tasks": tasks,
        "transfers": transfers,
    }
    if plan.stopped:
        found["stopped"] = plan.stopped
    return found


def planned(graph: Data, **asked: Any) -> Judged:
    """The default plan of a graph file's data, reading it included in `cost`; `asked` goes to `schedule`."""
    start = time.process_time()
    plan = schedule(graph, **asked)
    return judged(graph, plan, time.process_time() - start)


def judged(graph: Data, plan: Plan, cost: float) -> Judged:
    """A plan that was made in `cost` CPU seconds."""
    data = described(plan)
    return Judged(data, cost, tuple(infeasibilities(graph, data)))


def by_policy(graph: Data, policy: str, costed: CostedGraph | None = None) -> Judged:
    """The plan that one policy makes by itself; `costed` spares reading the graph again."""
    start = time.process_time()
    plan = place(costed or read(graph), policy)
    return judged(graph, plan, time.process_time() - start)


def by_direction(graph: Data) -> Data:
    """The graph with a wire for each direction of each link."""
    links = [{key: own for key, own in link.items() if key != "wire"} for link in graph["links"]]
    return {**graph, "links": links}


@dataclass(frozen=True)
class Goal:
    """A figure, `found`, that is to be at most `limit`."""

    what: str
    found: float
    limit: float
    form: str = ".2%"

    @property
    def met(self) -> bool:
        """True if the figure is within the limit."""
        return self.found <= self.limit

    def __str__(self) -> str:
        verdict = "met" if self.met else "NOT MET"
        return f"{self.what}, goal ≤ {self.limit:{self.form}}: {self.found:{self.form}}, {verdict}"


def verdict(goals: Iterable[Goal]) -> list[Data]:
    """Print a line for each goal; the same as data."""
    shown = []
    for goal in goals:
        print(goal)
        shown.append({"what": goal.what, "found": goal.found, "limit": goal.limit, "met": goal.met})
    return shown


def worst(found: Mapping[str, float], count: int = 5) -> list[tuple[str, float]]:
    """The instances with the largest figures, the largest first."""
    return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:count]
