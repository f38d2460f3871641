"""An option to run a chain on processes, without cuts, and the actions of each process in its schedule; their
simulation, passes as clusters and processes as devices, each with a lane for gradient sums; its timeline, and the waits
between processes.

Schedules as in `torch.distributed.pipelining`: GPipe (Huang et al., NeurIPS 2019), 1F1B (Narayanan et al., SOSP 2019;
DAPPLE: Fan et al., PPoPP 2021), interleaved 1F1B (Narayanan et al., SC 2021) and ZB1P (Qi et al., "Zero bubble pipeline
parallelism", ICLR 2024).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...ir.costed import Cluster, CostedGraph
from ...ir.distribution import SCHEDULES, Distribution, Stage
from ...ir.graph import Graph, Ref, Task, Value
from ...ir.timeline import Span, Timeline
from ..model.instance import Instance
from ..model.simulator import Schedule, Simulation
from ..model.timing import timing
from .grid import Grid, processes

HALF = 0.5
"""Default share of a backward that computes weight gradients."""

Action: TypeAlias = tuple[str, int, int]
"""A pass: kind, stage and micro-batch. `F`: forward; `B`: whole backward; `I`: its input gradients;
`W`: its weight gradients."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `positions` processes for each of `replicas`, with `chunks` stages each; `rows` of each micro-batch.
    `sharded`: replicas shard the parameters of their stages (FSDP2)."""

    replicas: int
    positions: int
    chunks: int
    micro_batches: int
    schedule: str
    rows: int
    trained: bool
    sharded: bool = False

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.positions * self.chunks

    @property
    def shardable(self) -> bool:
        """True if replicas could shard their parameters."""
        return self.trained and self.replicas > 1 and self.schedule != "zero-bubble"

    def orders(self) -> list[list[Action]]:
        """Return the actions of each position."""
        if not self.trained:
            return [[("F", stage, m) for m in range(self.micro_batches)] for stage in range(self.positions)]
        return orders(self.schedule, self.positions, self.chunks, self.micro_batches)

    def __str__(self) -> str:
        each = f" × {self.chunks} stages" if self.chunks > 1 else ""
        replicas = f"{self.replicas} {'sharded ' * self.sharded}replicas"
        return (
            f"{replicas} × {self.positions} processes{each}, {self.micro_batches} micro-batches of {self.rows} rows, "
            f"{self.schedule}"
        )


def refusal(schedule: str, positions: int, chunks: int, micro_batches: int) -> str:
    """Return the reason why torch's schedule does not support these numbers; "" if it does."""
    if schedule not in SCHEDULES:
        return f"schedule {schedule!r} is not known; give one of {', '.join(SCHEDULES)}"
    if schedule in ("gpipe", "1f1b"):
        if chunks > 1:
            return f"{schedule} has one stage to a process; use interleaved or zero-bubble"
        if schedule == "1f1b" and micro_batches < positions:
            return f"1f1b needs a micro-batch for each of {positions} stages, at least"
        return ""
    rounds = max(1, micro_batches // positions)
    if micro_batches % rounds:
        return f"{schedule} needs micro-batches that are a multiple of {rounds}, its rounds"
    return ""


def orders(schedule: str, positions: int, chunks: int, micro_batches: int) -> list[list[Action]]:
    """Return the actions of each of `positions` processes with `chunks` stages each: stage s is at s modulo positions.

    The schedule must support these numbers (`refusal`). O(positions × chunks × micro_batches).
    """
    if schedule == "gpipe":
        return [
            [(what, stage, m) for what in "FB" for m in range(micro_batches)] for stage in range(positions)
        ]
    if schedule == "1f1b":
        return [[*_one_f_one_b(stage, positions - stage, micro_batches)] for stage in range(positions)]
    apart = schedule == "zero-bubble"
    return [[*_interleaved(at, positions, chunks, micro_batches, apart)] for at in range(positions)]


@lru_cache(maxsize=4096)
def in_flight(schedule: str, positions: int, chunks: int, micro_batches: int, at: int) -> NDArray[np.int64]:
    """Return the micro-batches in flight (forward done, backward not finished) of each chunk of a process, right after
    each forward that may be the worst: (moments, chunks). In closed form, equal to a walk through `orders`."""
    if schedule == "gpipe":
        return np.array([[micro_batches]])
    if schedule == "1f1b":
        return np.array([[min(positions - at, micro_batches)]])
    apart = schedule == "zero-bubble"
    each, ahead = _rounds(at, positions, chunks, micro_batches, apart)
    # What is in flight repeats from round to round, once there are backwards.
    moments = np.arange(1, min(chunks * micro_batches, ahead + at * apart + 2 * chunks * each) + 1)
    over = np.maximum(moments - 1 - ahead - (at if apart else 0), 0)
    number = np.arange(chunks)
    return _begun(moments, number, each) - _begun(over, number[::-1], each)


def _begun(passes: NDArray[np.int64], turn: NDArray[np.int64], each: int) -> NDArray[np.int64]:
    """Return the micro-batches of each chunk among the first `passes`. `turn`: the turn of a chunk in each
    round."""
    rounds, rest = np.divmod(passes, each * len(turn))
    begun: NDArray[np.int64] = rounds[:, None] * each + np.clip(rest[:, None] - turn * each, 0, each)
    return begun


def _rounds(at: int, positions: int, chunks: int, micro_batches: int, apart: bool) -> tuple[int, int]:
    """Return micro-batches of a round, and warm-up forwards before the first backward, of the interleaved
    schedules."""
    each = micro_batches // max(1, micro_batches // positions)
    ahead = (chunks - 1) * each + (1 if apart else 2) * (positions - 1 - at)
    return each, min(chunks * micro_batches, ahead)


def _one_f_one_b(stage: int, ahead: int, micro_batches: int) -> Iterator[Action]:
    """Yield 1F1B: as many forwards as there are stages from this one on, then a backward and a forward alternately."""
    ahead = min(ahead, micro_batches)
    for m in range(ahead):
        yield "F", stage, m
    for m in range(micro_batches):
        yield "B", stage, m
        if ahead + m < micro_batches:
            yield "F", stage, ahead + m


def _interleaved(at: int, positions: int, chunks: int, micro_batches: int, apart: bool) -> Iterator[Action]:
    """Yield interleaved 1F1B: forwards pass through the chunks in rounds of about as many micro-batches as processes,
    backwards in reverse.

    With a divided backward (`apart`), weight gradients follow `at` backwards later, the rest at the end.
    """
    each, ahead = _rounds(at, positions, chunks, micro_batches, apart)
    total = chunks * micro_batches
    forward = _turns(at, positions, [*range(chunks)], each)
    backward = _turns(at, positions, [*reversed(range(chunks))], each)
    weights = _turns(at, positions, [*reversed(range(chunks))], each)
    for _ in range(ahead):
        yield "F", *next(forward)
    for number in range(total):
        if ahead + number < total:
            yield "F", *next(forward)
        yield "I" if apart else "B", *next(backward)
        if apart and number >= at:
            yield "W", *next(weights)
    for _ in range(min(at, total) if apart else 0):
        yield "W", *next(weights)


def _turns(at: int, positions: int, chunks: list[int], each: int) -> Iterator[tuple[int, int]]:
    """Yield (stage, micro-batch) of one process in rounds: `each` micro-batches through every chunk."""
    for begin in count(0, each):
        for chunk in chunks:
            for m in range(begin, begin + each):
                yield chunk * positions + at, m


def passes_of(
    grid: Grid, option: Option, stages: Sequence[Stage], weights: Sequence[int], shares: Sequence[float]
) -> list[dict[str, float]]:
    """Return the seconds of each stage's actions by letter, for one micro-batch, and under `sum` those by which its
    gradient sum over replicas ends after the last backward.

    `weights`: bytes of each stage. `shares`: share of its backward for weight gradients.
    """
    passes = []
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
        passes.append({
            "F": forward_s + messages_s, "B": backward_s + messages_s,
            "W": of_weights, "I": backward_s - of_weights + messages_s,
            "sum": grid.reduce_s(position, nbytes, last_s) if option.trained and not groups else 0.0,
        })  # fmt: skip
    return passes


def simulate(
    grid: Grid, option: Option, stages: Sequence[Stage], passes: Sequence[Mapping[str, float]],
    ties: Sequence[tuple[tuple[int, ...], int]],
) -> Simulation:  # fmt: skip
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
    stage_sums = [((stage,), each["sum"]) for stage, each in enumerate(passes)]
    parts = option.replicas if option.sharded else 1
    tied = [
        (of, grid.tie_s([stage % positions for stage in of], nbytes / parts))
        for of, nbytes in (ties if option.trained else ())
    ]
    # The last stages finish their backward first.
    for number, (of, seconds) in enumerate(each for each in (*reversed(stage_sums), *tied) if each[1] > 0):
        add(f"sum{number}", f"{of[0] % positions}/1", (seconds,) * positions, (), "", 0,
            tuple(last[stage] for stage in of))  # fmt: skip
    graph = Graph("pipeline", tuple(values), tuple(tasks), (), (), ())
    costed = CostedGraph(graph, grid.machine, (), tuple(clusters), (), ())
    return Simulation(
        Instance(costed), Schedule("pipeline", {lane: tuple(names) for lane, names in lanes.items()})
    )


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
    step_plan = timing(simulate(grid, option, plan.stages, passes, plan.ties))
    names = plan.ranks[0]
    spans = []
    for step in step_plan.placed:
        name, phase = names[int(step.device)], _phase(step.cluster)
        lane = f"{name}/{'sums' if phase == 'update' else '0'}"
        spans.append(Span(lane, name, "compute", step.cluster, step.start, step.end, phase=phase))
    for move in step_plan.transfers:
        src, dst = names[int(move.src)], names[int(move.dst)]
        spans.append(Span(f"{src}/to {dst}", src, "copy", move.value, move.start, move.end, src=src, dst=dst,
                          bytes=move.bytes, ready=move.ready))  # fmt: skip
    spans.sort(key=lambda span: (span.start, span.lane))
    lanes = sorted(
        {span.lane for span in spans}, key=lambda lane: (names.index(lane.rsplit("/", 1)[0]), lane)
    )
    return Timeline(plan.model, tuple(lanes), tuple(spans), step_plan.makespan, label="predicted")


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
    gaps: dict[tuple[str, str], float] = {}
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
            gaps[key] = gaps.get(key, 0.0) + gap
        last[span.device] = max(span.end, last.get(span.device, 0.0))
    return gaps


def _phase(name: str) -> str:
    return "update" if name.startswith("sum") else "forward" if "F" in name else "backward"
