"""A plan that the user gives: its placement for the graph of a call, or how the two graphs differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..costs.clustering import as_clustered
from ..errors import MemoryCapError, PlanError
from ..ir.costed import CostedGraph
from ..ir.graph import Graph, Value
from ..ir.plan import Plan
from ..planner import replan
from ..transform.feature_split import LABEL, split_features
from ..transform.split import rows_of
from .batch_split import split_graph

SHOWN = 3
"""Limit on the differences of inputs that an error names."""


def follow_user_plan(
    graph: Graph, price: Callable[[Graph], CostedGraph], user_plan: Plan, batch_norm: str
) -> Plan:
    """Return the user's plan with new times. Raises MemoryCapError, and PlanError with the differences if the
    plan was made for another graph."""
    planned = user_plan.costed.graph
    different = [*differences(planned, graph)]
    try:
        cut = _cut(graph, planned, batch_norm)
        if [task.name for task in cut.tasks] == [task.name for task in planned.tasks]:
            return replan(as_clustered(price(cut), user_plan.costed.clusters), user_plan)
        different = different or [_first_task(planned, cut)]
    except MemoryCapError:
        raise
    except PlanError as error:
        # If the graphs are alike, something else is wrong with the plan.
        if not different:
            raise
        raise _refusal(different, planned, graph) from error
    raise _refusal(different, planned, graph)


def _cut(graph: Graph, planned: Graph, batch_norm: str) -> Graph:
    """Return the graph, split like that of a plan."""
    label = planned.split
    if label.startswith(LABEL):
        begun = {task.origin for task in planned.tasks if task.part}
        return split_features(graph, len(rows_of(label)), begun)
    return split_graph(graph, rows_of(label), forced=True, batch_norm=batch_norm) if label else graph


def _refusal(different: list[str], planned: Graph, graph: Graph) -> PlanError:
    more = f", and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
    return PlanError(
        f"plan= was made for another graph: {len(planned.tasks)} tasks of {planned.name!r}, this call has "
        f"{len(graph.tasks)} of {graph.name!r}; {'; '.join(different[:SHOWN])}{more}. Make the plan for the arguments "
        "and the grad mode of this call: autopar.plan(model, devices, example_inputs=(…)), or fast.plan.save(…) right "
        "after a call like it; or leave plan= out"
    )


def differences(then: Graph, now: Graph) -> Iterator[str]:
    """Yield how the graph of a plan differs from that of a call in what the user controls, as sentences: whether
    there is a backward, and the inputs' shapes and dtypes."""
    planned, called = (
        "with" if any(task.phase != "forward" for task in graph.tasks) else "without" for graph in (then, now)
    )
    if planned != called:
        yield f"the plan is {planned} a backward, this call {called} one"
    of_plan, of_call = (
        {graph.value[name].path or name: graph.value[name] for name in graph.inputs} for graph in (then, now)
    )
    for path, value in of_call.items():
        if path not in of_plan:
            yield f"the input {path!r}, {_form(value)}, is not in the plan"
        elif _form(value) != _form(of_plan[path]):
            yield f"the input {path!r} is {_form(value)}, in the plan {_form(of_plan[path])}"
    for path, value in of_plan.items():
        if path not in of_call:
            yield f"the plan has an input {path!r}, {_form(value)}, this call has none"


def _form(value: Value) -> str:
    return f"{value.dtype} of shape {list(value.shape)}"


def _first_task(then: Graph, now: Graph) -> str:
    """Return a sentence on the first task in which the call differs from the plan."""
    for mine, other in zip(now.tasks, then.tasks):
        if mine.name != other.name:
            return (
                f"the inputs are equal, but this call has {mine.where}, the plan {other.where} in its place"
            )
    longer, whose = (now, "this call") if len(now.tasks) > len(then.tasks) else (then, "the plan")
    task = longer.tasks[min(len(now.tasks), len(then.tasks))]
    return f"the inputs are equal, but {whose} also has {task.where}"
