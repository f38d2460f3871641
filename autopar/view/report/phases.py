"""How the time of a training step divides, and how much of the reduction is hidden behind the backward."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.graph import Graph
from ...ir.phases import PHASES
from ...ir.plan import Plan
from ...ir.timeline import Timeline
from .facts import Interval, length, shared, union


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a step: `work` seconds of its runs and copies over all lanes, `span` in which any of them is under
    way, `adds` of these in which nothing of the phases before it is; `start` of the first and `end` of the last."""

    name: str
    work: float
    span: float
    adds: float
    start: float
    end: float


def hidden(plan: Plan, timeline: Timeline) -> float:
    """The share of the time of the reduction in which some device works on the backward; 1.0 without a reduction.

    `timeline` is of the plan: `plan.timeline()`, or measured. Linear in spans but for sorting them.
    """
    found = _intervals(plan, timeline)
    reduction = union(found["reduction"])
    total = length(reduction)
    return (
        shared(reduction, union(_intervals(plan, timeline, copies=False)["backward"])) / total
        if total
        else 1.0
    )


def phases(plan: Plan, timeline: Timeline) -> tuple[Phase, ...]:
    """The phases that take time, in order; none for a plan without a backward."""
    if not plan.words.training:
        return ()
    made: list[Phase] = []
    before: list[Interval] = []
    for name, held in _intervals(plan, timeline).items():
        if held:
            own = union(held)
            span = length(own)
            adds = span - shared(own, before)
            made.append(Phase(name, length(held), span, adds, own[0][0], own[-1][1]))
            before = union((*before, *own))
    return tuple(made)


def _intervals(plan: Plan, timeline: Timeline, *, copies: bool = True) -> dict[str, list[Interval]]:
    """Start and end of what each phase does."""
    graph, costed = plan.costed.graph, plan.costed
    of_task, of_value = plan.words.phase_of_task, plan.words.phase_of_value
    found: dict[str, list[Interval]] = {name: [] for name in PHASES}
    # Where tasks were measured they are asked: the runs of the two halves of a step are not those of the whole.
    fine = any(span.run for span in timeline.spans)
    for span in timeline.spans:
        if span.end <= span.start:
            continue
        if span.kind == "copy":
            phase = of_value.get(span.name) if copies else None
        elif fine:
            phase = of_task.get(span.name) if span.run and not _free(graph, span.name) else None
        else:
            phase = plan.words.phase(span.name) if span.name in costed.run else None
            phase = (
                None if phase and all(_free(graph, task) for task in costed.run[span.name].tasks) else phase
            )
        if phase:
            found[phase].append((span.start, span.end))
    return found


def _free(graph: Graph, name: str) -> bool:
    return name in graph.task and graph.task[name].free
