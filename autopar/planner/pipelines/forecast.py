"""The predicted timeline of a step of a distribution, and the waits between its processes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...ir.distribution import Distribution
from ...ir.timeline import Span, Timeline
from ..model.timing import timing
from .grid import Grid
from .options import Option
from .processes import processes
from .simulation import HALF, passes_of, simulate


def predicted(plan: Distribution) -> Timeline:
    """Return the predicted step of the first replica: a lane for each process, with passes such as `0F2` (stage 0,
    forward, micro-batch 2), and one for the messages of each pair.

    All replicas are planned to take the same time.
    """
    grid = grid_of(plan)
    rows = plan.batch // plan.replicas // plan.micro_batches
    option = Option(
        plan.replicas, plan.positions, len(plan.stages) // plan.positions, plan.micro_batches, plan.schedule, rows,
        plan.trained, plan.sharded,
    )  # fmt: skip
    weights = [stage.state_bytes for stage in plan.stages]
    passes = passes_of(grid, option, plan.stages, weights, [HALF] * len(weights), plan.ties)
    found = timing(simulate(passes, option.orders(), grid.ways))
    names = plan.ranks[0]
    spans = []
    for step in found.placed:
        name, phase = names[int(step.device)], _phase(step.cluster)
        lane = f"{name}/{'sums' if phase == 'update' else '0'}"
        spans.append(Span(lane, name, "compute", step.cluster, step.start, step.end, phase=phase))
    for move in found.transfers:
        src, dst = names[int(move.src)], names[int(move.dst)]
        spans.append(Span(f"{src}/to {dst}", src, "copy", move.value, move.start, move.end, src=src, dst=dst,
                          bytes=move.bytes, ready=move.ready))  # fmt: skip
    spans.sort(key=lambda span: (span.start, span.lane))
    lanes = sorted(
        {span.lane for span in spans}, key=lambda lane: (names.index(lane.rsplit("/", 1)[0]), lane)
    )
    return Timeline(plan.model, tuple(lanes), tuple(spans), found.makespan, label="predicted")


def grid_of(plan: Distribution) -> Grid:
    """Return the processes of a plan, one for each host."""
    by_host = {process.name: process for process in processes(plan.hosts)}
    return Grid(plan.hosts, tuple(tuple(by_host[name] for name in row) for row in plan.ranks))


def waits(plan: Distribution, spans: Iterable[Span]) -> dict[tuple[str, str], float]:
    """Return the seconds that each process waited for another, by (device of its spans, host of the other).

    The gap before a pass counts for the stage whose message it reads; without a message, for the process itself.
    `spans` are those of `predicted`, of a job's timeline, or of merged timelines of several ranks.
    """
    last: dict[str, float] = {}
    found: dict[tuple[str, str], float] = {}
    for span in sorted(spans, key=lambda span: span.start):
        name = re.fullmatch(r"(\d+)([FBIW])(\d+)", span.name)
        if span.kind != "compute" or name is None:
            continue
        stage, what = int(name[1]), name[2]
        other = stage - 1 if what == "F" else stage + 1 if what in "BI" else stage
        if not 0 <= other < len(plan.stages):
            other = stage
        gap = span.start - last.get(span.device, 0.0)
        if gap > 0:
            key = (span.device, plan.ranks[0][plan.position(other)])
            found[key] = found.get(key, 0.0) + gap
        last[span.device] = max(span.end, last.get(span.device, 0.0))
    return found


def _phase(name: str) -> str:
    return "update" if name.startswith("sum") else "forward" if "F" in name else "backward"
