"""The simulated step of a pipeline: passes as clusters, processes as devices with a lane for sums of gradients each;
and that of a distribution as a timeline, with who waits for whom in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ...ir.costed import Cluster, CostedGraph
from ...ir.device import Device, Link
from ...ir.distribution import Distribution, Stage
from ...ir.graph import Graph, Ref, Task, Value
from ...ir.machine import Machine
from ...ir.timeline import Span, Timeline
from ..model.instance import Instance
from ..model.simulator import Play, Schedule
from ..model.timing import timing
from .grid import Grid, Way, processes
from .orders import Action, orders

HALF = 0.5
"""Share of a backward that makes the gradients of weights: `Unit.weight_share`, which a distribution does not keep."""


Sums: TypeAlias = list[tuple[tuple[int, ...], float]]
"""(stages, seconds) of all sums of gradients, in the order in which the stages end."""


def sums(grid: Grid, nbytes: Sequence[int], ties: Iterable[tuple[tuple[int, ...], int]]) -> Sums:
    """The sums of `nbytes` of each stage over the replicas, and of parameters that stages share: (stages, bytes)."""
    count = grid.positions
    own = [((stage,), grid.reduce_s(stage % count, size)) for stage, size in enumerate(nbytes)]
    tied = [(on, grid.tie_s([stage % count for stage in on], size)) for on, size in ties]
    return [(on, seconds) for on, seconds in (*reversed(own), *tied) if seconds > 0]


def simulate(
    stages: Sequence[Stage],
    weights: Sequence[float],
    summed: Sums,
    turns: Sequence[Sequence[Action]],
    ways: Mapping[tuple[int, int], Way],
) -> Play:
    """Play the actions of each process in their order; messages take their wires as they come. `weights` are the
    seconds of each stage's backward that make the gradients of weights.

    The gradients of a stage are summed behind its last backward, beside what its process has still to do.
    """
    positions = len(turns)
    tasks: list[Task] = []
    clusters: list[Cluster] = []
    values: list[Value] = []
    lanes: dict[str, list[str]] = {f"{at}/{lane}": [] for at in range(positions) for lane in (0, 1)}
    last: dict[int, str] = {}
    timed = [
        {"F": stage.forward_s, "B": stage.backward_s, "W": own, "I": stage.backward_s - own}
        for stage, own in zip(stages, weights)
    ]

    def add(name: str, at: str, seconds: tuple[float, ...], reads: tuple[str, ...], makes: str, nbytes: int,
            after: tuple[str, ...] = ()) -> None:  # fmt: skip
        outputs = (makes,) if makes else ()
        tasks.append(Task(name, "pass", tuple(map(Ref, reads)), outputs=outputs, after=after))
        clusters.append(Cluster(name, (name,), seconds, 0.0, reads, outputs, after))
        if makes:
            values.append(Value(makes, (), "", nbytes, makes))
        lanes[at].append(name)

    for at, order in enumerate(turns):
        for what, stage, m in order:
            reads: tuple[str, ...] = ()
            makes, nbytes = "", 0
            if what == "F":
                reads = (f"a{stage - 1}.{m}",) if stage else ()
                if stage < len(stages) - 1:
                    makes, nbytes = f"a{stage}.{m}", stages[stage].bytes_out
            elif what in "BI":
                reads = (f"g{stage + 1}.{m}",) if stage < len(stages) - 1 else ()
                if stage:
                    makes, nbytes = f"g{stage}.{m}", stages[stage - 1].bytes_out
            name = f"{stage}{what}{m}"
            add(name, f"{at}/0", (timed[stage][what],) * positions, reads, makes, nbytes)
            last[stage] = name
    for number, (of, seconds) in enumerate(summed):
        add(f"sum{number}", f"{of[0] % positions}/1", (seconds,) * positions, (), "", 0,
            tuple(last[stage] for stage in of))  # fmt: skip
    graph = Graph("pipeline", tuple(values), tuple(tasks), (), (), ())
    costed = CostedGraph(graph, _machine(positions, ways), (), tuple(clusters), (), ())
    return Play(Instance(costed), Schedule("pipeline", {lane: tuple(names) for lane, names in lanes.items()}))


def _machine(positions: int, ways: Mapping[tuple[int, int], Way]) -> Machine:
    """The processes as devices. All reach each other, though only neighbours have anything to send."""
    devices = tuple(Device(str(at), "emulated", lanes=2) for at in range(positions))
    other = Way(max((way.latency_s for way in ways.values()), default=0.0), 1.0, "")
    pairs = [(src, dst) for src in range(positions) for dst in range(positions) if src != dst]
    links = tuple(
        Link(str(src), str(dst), way.latency_s, way.bytes_per_s, way.wire or None)
        for src, dst in pairs
        for way in (ways.get((src, dst), other),)
    )
    return Machine(devices, links, queued=False)


def predicted(plan: Distribution) -> Timeline:
    """The predicted step of the first replica: a lane for each process, with passes such as `0F2` (stage 0, forward,
    micro-batch 2), and one for the messages between each two.

    Replicas take the same time, as planned.
    """
    by_host = {process.name: process for process in processes(plan.hosts)}
    grid = Grid(plan.hosts, tuple(tuple(by_host[name] for name in row) for row in plan.ranks))
    weights = [HALF * stage.backward_s for stage in plan.stages]
    summed = sums(grid, [stage.state_bytes for stage in plan.stages], plan.ties) if plan.trained else []
    chunks = len(plan.stages) // plan.positions
    turns = orders(plan.schedule, plan.positions, chunks, plan.micro_batches, plan.trained)
    found = timing(simulate(plan.stages, weights, summed, turns, grid.ways))
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


def waits(plan: Distribution, spans: Iterable[Span]) -> dict[tuple[str, str], float]:
    """Seconds that each process of a step waited for another, by (device of its spans, host of the other).

    The gap before a pass goes to the stage whose message it reads, one before a pass that reads none to the process
    itself. `spans` are those of `predicted`, of a job's timeline, or of the merged timelines of several ranks.
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
