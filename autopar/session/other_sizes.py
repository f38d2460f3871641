"""Memory of a program in calls of other sizes than its own."""

from __future__ import annotations

from dataclasses import replace

from ..costs.roofline import workspace
from ..ir.graph import Graph
from ..ir.program import Program, tasks_of
from ..lowering.memory_bound import fits


def keeps_caps(program: Program, graph: Graph) -> bool:
    """Return True if a program keeps every memory cap in a call in which the values of its graph have the bytes that
    `graph` tells."""
    buffers = tuple(
        each if each.kind == "resident" else replace(each, bytes=graph.value[each.value].bytes)
        for each in program.buffers
    )
    tasks = (task for _, step in program.steps() for task in tasks_of(step))
    scratch = tuple((task, workspace(graph, graph.task[task])) for task in tasks)
    everything = sum(each.bytes for each in buffers) + sum(nbytes for _, nbytes in scratch)
    # The bound takes milliseconds, as much as a short call, and each length of a sequence may be new.
    return all(everything <= cap for _, cap in program.caps) or fits(
        replace(program, buffers=buffers, workspace=scratch)
    )
