"""Task graphs from files and other libraries as `CostedGraph`, and plans as the JSON of the graph file."""

from __future__ import annotations

import json
from typing import Any

from ...ir.plan import Plan
from .read import Source, plain, read

__all__ = ["Source", "described", "plain", "read", "text"]


def described(plan: Plan) -> dict[str, Any]:
    """Return makespan, lower bound, tasks by start and transfers by start, in seconds; simultaneous steps of zero
    length are in execution order.

    `stopped`: if the search was cut short.
    """
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


def text(plan: Plan) -> str:
    """Return the JSON as text, one line for each task and transfer."""
    parts = []
    for key, value in described(plan).items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(item, allow_nan=False) for item in value)
            parts.append(f'"{key}": [\n{lines}\n]')
        else:
            parts.append(f'"{key}": {json.dumps(value, allow_nan=False)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"
