"""How the time of a training step divides: forward, backward, reduction of the gradients, update.

The reduction are the sums of gradients over the parts of the batch, what packs for them, and the copies that bring
the gradients there and the sums on. A sum that a part of the backward waits for, as of BatchNorm's statistics, is
backward.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..graph import SUM, Graph
from ..plans import Plan
from ..timeline import Timeline
from .facts import Interval, length, shared, union

PHASES = ("forward", "backward", "reduction", "update")
_PACKS = "aten.flatten_dense_tensors.default"


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


def phase_of_runs(plan: Plan) -> dict[str, str]:
    """The phase of each run, of `PHASES`: that of most of its time."""
    of_task = phase_of_tasks(plan.costed.graph)
    of_value = phase_of_values(plan.costed.graph, of_task)
    found = {}
    for run in plan.costed.runs:
        made = [of_value[name] for name in run.makes if name in of_value]
        found[run.name] = _of_run(plan, run.name, of_task) or (made or [plan.words.phase(run.name)])[0]
    return found


def phase_of_tasks(graph: Graph) -> dict[str, str]:
    """The phase of each task, of `PHASES`."""
    waited: set[str] = set()
    awaited: set[str] = set()
    found: dict[str, str] = {task.name: task.phase for task in graph.tasks}
    for task in reversed(graph.tasks):
        if (task.part and task.phase == "backward" and task.target != _PACKS) or not waited.isdisjoint(
            task.outputs
        ):
            waited.update(task.inputs)
        elif task.target == SUM and task.phase == "backward":
            found[task.name] = "reduction"
            awaited.update(task.inputs)
        elif task.target == _PACKS and not awaited.isdisjoint(task.outputs):
            found[task.name] = "reduction"
    return found


def phase_of_values(graph: Graph, of_task: dict[str, str]) -> dict[str, str]:
    """The phase that the copies of each value are of: gradients to and from their sum are of the reduction, what an
    update makes is of the update, and what is there before the call of the first phase that reads it."""
    rank = {name: index for index, name in enumerate(PHASES)}
    found: dict[str, str] = {}
    for task in graph.tasks:
        phase = of_task[task.name]
        if task.free and task.inputs and found.get(task.inputs[0]) == "reduction":
            phase = "reduction"
        found.update(dict.fromkeys(task.outputs, phase))
        for name in task.inputs:
            if name not in graph.producer:
                found[name] = min(found.get(name, phase), phase, key=lambda each: rank[each])
    for task in graph.tasks:
        if of_task[task.name] == "reduction":
            found.update(dict.fromkeys(task.inputs, "reduction"))
    return found


def _intervals(plan: Plan, timeline: Timeline, *, copies: bool = True) -> dict[str, list[Interval]]:
    """Start and end of what each phase does."""
    graph, costed = plan.costed.graph, plan.costed
    of_task = phase_of_tasks(graph)
    of_value = phase_of_values(graph, of_task)
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
            phase = _of_run(plan, span.name, of_task) if span.name in costed.run else None
        if phase:
            found[phase].append((span.start, span.end))
    return found


def _free(graph: Graph, name: str) -> bool:
    return name in graph.task and graph.task[name].free


def _of_run(plan: Plan, name: str, of_task: dict[str, str]) -> str | None:
    """The phase most tasks of a run are of, views left out; None for a run of views alone."""
    tasks = plan.costed.run[name].tasks
    heavy = [task for task in tasks if not plan.costed.graph.task[task].free]
    most = plan.words.phase(name)
    counted = Counter(of_task[task] for task in heavy)
    if not counted:
        return None
    return most if most in counted else max(counted, key=lambda phase: counted[phase])
