"""Simulation of a pipeline step: passes as clusters, processes as devices, each with a lane for gradient sums; its
timeline, and the waits between processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ...ir.costed import Cluster, CostedGraph
from ...ir.distribution import Distribution, Stage
from ...ir.graph import Graph, Ref, Task, Value
from ...ir.timeline import Span, Timeline
from ..model.instance import Instance
from ..model.simulator import Play, Schedule
from ..model.timing import timing
from .grid import Grid, processes
from .options import Option

HALF = 0.5
"""Default share of a backward that computes weight gradients."""


def passes_of(
    grid: Grid, option: Option, stages: Sequence[Stage], weights: Sequence[int], shares: Sequence[float]
) -> list[dict[str, float]]:
    """Return the seconds of each stage's actions by letter, for one micro-batch, and under `sum` those by which its
    gradient sum over replicas ends after the last backward.

    `weights`: bytes of each stage. `shares`: share of its backward for weight gradients.
    """
    found = []
    sent = (0, *(stage.bytes_out for stage in stages))
    for number, (stage, nbytes, share) in enumerate(zip(stages, weights, shares)):
        position = number % option.positions
        forward_s, backward_s, groups = stage.forward_s, stage.backward_s, len(stage.groups)
        if groups:
            forward_s = grid.pass_s(position, forward_s, nbytes, groups, 1)
            backward_s = grid.pass_s(position, backward_s, nbytes, groups, 2)
        # The first stage computes no gradient of its input.
        of_weights = share * backward_s if number else backward_s
        messages_s = grid.message_s(position, sent[number]) + grid.message_s(position, sent[number + 1])
        last_s = of_weights if option.schedule == "zero-bubble" else backward_s
        found.append({
            "F": forward_s + messages_s, "B": backward_s + messages_s,
            "W": of_weights, "I": backward_s - of_weights + messages_s,
            "sum": grid.reduce_s(position, nbytes, last_s) if option.trained and not groups else 0.0,
        })  # fmt: skip
    return found


def simulate(
    grid: Grid, option: Option, stages: Sequence[Stage], passes: Sequence[Mapping[str, float]],
    ties: Sequence[tuple[tuple[int, ...], int]],
) -> Play:  # fmt: skip
    """Simulate the actions of each process in order; each bus serves messages FIFO.

    The rest of a stage's gradient sums follows its last backward, overlapping with the process's remaining actions.
    `passes`: as in `passes_of`. `ties`: (stages, bytes) of shared parameters, whose gradients are summed too.
    """
    positions, last_stage = option.positions, len(stages) - 1
    tasks: list[Task] = []
    clusters: list[Cluster] = []
    values: list[Value] = []
    lanes: dict[str, list[str]] = {f"{at}/{lane}": [] for at in range(positions) for lane in (0, 1)}
    last: dict[int, str] = {}
    timed = [{what: (s,) * positions for what, s in of.items()} for of in passes]

    def add(name: str, at: str, seconds: tuple[float, ...], reads: tuple[str, ...], makes: str, nbytes: int,
            after: tuple[str, ...] = ()) -> None:  # fmt: skip
        outputs = (makes,) if makes else ()
        tasks.append(Task(name, "pass", tuple(map(Ref, reads)), outputs=outputs, after=after))
        clusters.append(Cluster(name, (name,), seconds, 0.0, reads, outputs, after))
        if makes:
            values.append(Value(makes, (), "", nbytes, makes))
        lanes[at].append(name)

    for at, order in enumerate(option.orders()):
        for what, stage, m in order:
            reads: tuple[str, ...] = ()
            makes, nbytes = "", 0
            if what == "F":
                reads = (f"a{stage - 1}.{m}",) if stage else ()
                if stage < last_stage:
                    makes, nbytes = f"a{stage}.{m}", stages[stage].bytes_out
            elif what in "BI":
                reads = (f"g{stage + 1}.{m}",) if stage < last_stage else ()
                if stage:
                    makes, nbytes = f"g{stage}.{m}", stages[stage - 1].bytes_out
            name = f"{stage}{what}{m}"
            add(name, f"{at}/0", timed[stage][what], reads, makes, nbytes)
            last[stage] = name
    own = [((stage,), each["sum"]) for stage, each in enumerate(passes)]
    parts = option.replicas if option.sharded else 1
    tied = [
        (of, grid.tie_s([stage % positions for stage in of], nbytes / parts))
        for of, nbytes in (ties if option.trained else ())
    ]
    # The last stages finish their backward first.
    for number, (of, seconds) in enumerate(each for each in (*reversed(own), *tied) if each[1] > 0):
        add(f"sum{number}", f"{of[0] % positions}/1", (seconds,) * positions, (), "", 0,
            tuple(last[stage] for stage in of))  # fmt: skip
    graph = Graph("pipeline", tuple(values), tuple(tasks), (), (), ())
    costed = CostedGraph(graph, grid.machine, (), tuple(clusters), (), ())
    return Play(Instance(costed), Schedule("pipeline", {lane: tuple(names) for lane, names in lanes.items()}))


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
    passes = passes_of(grid, option, plan.stages, weights, [HALF] * len(weights))
    found = timing(simulate(grid, option, plan.stages, passes, plan.ties))
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
