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


def as_given(graph: Graph, price: Callable[[Graph], CostedGraph], given: Plan, batch_norm: str) -> Plan:
    """Return the given plan with new times. Raises MemoryCapError, and PlanError with the differences if the
    plan was made for another graph."""
    own = given.costed.graph
    found = [*differences(own, graph)]
    try:
        cut = _cut(graph, own, batch_norm)
        if [task.name for task in cut.tasks] == [task.name for task in own.tasks]:
            return replan(as_clustered(price(cut), given.costed.clusters), given)
        found = found or [_first_task(own, cut)]
    except MemoryCapError:
        raise
    except PlanError as error:
        # If the graphs are alike, something else is wrong with the plan.
        if not found:
            raise
        raise _refusal(found, own, graph) from error
    raise _refusal(found, own, graph)


def _cut(graph: Graph, own: Graph, batch_norm: str) -> Graph:
    """Return the graph, split like that of a plan."""
    label = own.split
    if label.startswith(LABEL):
        begun = {task.origin for task in own.tasks if task.part}
        return split_features(graph, len(rows_of(label)), begun)
    return split_graph(graph, rows_of(label), forced=True, batch_norm=batch_norm) if label else graph


def _refusal(found: list[str], own: Graph, graph: Graph) -> PlanError:
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return PlanError(
        f"plan= was made for another graph: {len(own.tasks)} tasks of {own.name!r}, this call has {len(graph.tasks)} "
        f"of {graph.name!r}; {'; '.join(found[:SHOWN])}{more}. Make the plan for the arguments and the grad mode of "
        "this call: autopar.plan(model, devices, example_inputs=(…)), or fast.plan.save(…) right after a call like it; "
        "or leave plan= out"
    )


def differences(then: Graph, now: Graph) -> Iterator[str]:
    """Yield how the graph of a plan differs from that of a call in what the user controls, as sentences: whether
    there is a backward, and the inputs' shapes and dtypes."""
    kept, has = (
        "with" if any(task.phase != "forward" for task in graph.tasks) else "without" for graph in (then, now)
    )
    if kept != has:
        yield f"the plan is {kept} a backward, this call {has} one"
    known, given = (
        {graph.value[name].path or name: graph.value[name] for name in graph.inputs} for graph in (then, now)
    )
    for path, value in given.items():
        if path not in known:
            yield f"the input {path!r}, {_form(value)}, is not in the plan"
        elif _form(value) != _form(known[path]):
            yield f"the input {path!r} is {_form(value)}, in the plan {_form(known[path])}"
    for path, value in known.items():
        if path not in given:
            yield f"the plan has an input {path!r}, {_form(value)}, this call has none"


def _form(value: Value) -> str:
    return f"{value.dtype} of shape {list(value.shape)}"


def _first_task(then: Graph, now: Graph) -> str:
    """Return a sentence on the first task in which the call differs from the plan."""
    for own, other in zip(now.tasks, then.tasks):
        if own.name != other.name:
            return f"the inputs are alike, but this call has {own.where}, the plan {other.where} in its place"
    longer, whose = (now, "this call") if len(now.tasks) > len(then.tasks) else (then, "the plan")
    task = longer.tasks[min(len(now.tasks), len(then.tasks))]
    return f"the inputs are alike, but {whose} also has {task.where}"
