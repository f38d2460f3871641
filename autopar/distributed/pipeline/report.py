"""The report of a distribution: stages, waits, links, and the other plans that were considered."""

from __future__ import annotations

from ...ir.distribution import Distribution
from ...planner.pipelines.forecast import grid_of, predicted, waits
from ...system.text import seconds, size, table

GATHERS = 3
"""Transfers of a sharded stage's parameters for each micro-batch: gathered for the forward and for the backward, and
their gradients scattered."""


def explained(plan: Distribution) -> str:
    """Return tables of the plan: stages, work and waits of each process of a replica, links, and the other plans."""
    parts = [str(plan)]
    timeline = predicted(plan)
    apart = waits(plan, timeline.spans)
    rows = [("process", "busy", "of the step" if plan.trained else "of one batch", "waits for")]
    for name in plan.ranks[0]:
        busy = sum(
            span.seconds
            for span in timeline.spans
            if span.device == name and span.kind == "compute" and span.phase != "update"
        )
        own = sorted(((s, other) for (device, other), s in apart.items() if device == name), reverse=True)
        said = (
            ", ".join(f"{other if other != name else 'its turn'} {seconds(s)}" for s, other in own)
            or "nobody"
        )
        rows.append(
            (name, seconds(busy), f"{busy / timeline.makespan:.0%}" if timeline.makespan else "-", said)
        )
    parts.append(table(rows, right=(1, 2)))
    if plan.positions > 1:
        links = [("from", "to", "latency", "bandwidth", "a micro-batch's message")]
        for number, stage in enumerate(plan.stages[:-1]):
            src, dst = (plan.ranks[0][plan.position(n)] for n in (number, number + 1))
            link = plan.hosts.link(src, dst)
            row = (src, dst, f"{link.latency_s * 1e6:.1f} µs", f"{size(link.bytes_per_s)}/s",
                   f"{size(stage.bytes_out)} in {seconds(link.seconds(stage.bytes_out))}")  # fmt: skip
            if row not in links:
                links.append(row)
        parts.append(table(links, right=(2, 3)))
    if plan.sharded:
        grid = grid_of(plan)
        shards = [("stage", "groups", "state of a replica", "of a process", "gathers and scatters of a step")]
        for number, stage in enumerate(plan.stages):
            each = grid.gather_s(plan.position(number), stage.state_bytes, len(stage.groups))
            shards.append((
                str(number), str(len(stage.groups)), size(stage.state_bytes), size(stage.state_bytes / plan.replicas),
                seconds(GATHERS * plan.micro_batches * each),
            ))  # fmt: skip
        parts.append(table(shards, right=(1, 2, 3, 4)))
    if plan.tried:
        others = [("also tried", "predicted", "÷ chosen")]
        for what, taken in plan.tried:
            shown = ("does not fit", "") if taken is None else (seconds(taken), f"{taken / plan.step_s:.2f}")
            others.append((what, *shown))
        parts.append(table(others, right=(1, 2)))
    return "\n\n".join(parts)
