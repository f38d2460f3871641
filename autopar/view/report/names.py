"""Names of clusters, values and stretches of time in pictures and reports."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.critical_path import Critical
from ...ir.display_names import common_module
from ...ir.plan import Candidate, Plan
from ...ir.steps import Placed, Transfer


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the critical path: `compute` on one device, one `copy`, or a `wait` that no step explains; `steps` are
    the numbers of its steps."""

    kind: str
    start: float
    end: float
    where: str
    what: str
    steps: tuple[int, ...] = ()


def stretches(plan: Plan, found: Critical) -> list[Stretch]:
    """The critical path as stretches: consecutive clusters of one lane are one, gaps of over 0.1 % are named
    waits."""
    parts: list[Stretch] = []
    clusters: list[Placed] = []
    numbers: list[int] = []
    small = plan.makespan * 1e-3
    clock = 0.0

    def flush() -> None:
        if clusters:
            what = span_name(plan, clusters)
            parts.append(
                Stretch(
                    "compute", clusters[0].start, clusters[-1].end, clusters[0].lane, what, tuple(numbers)
                )
            )
            clusters.clear()
            numbers.clear()

    for number in found.path:
        step = found.steps[number]
        if step.start - clock > small:
            flush()
            parts.append(
                Stretch("wait", clock, step.start, step.lane, "waits; no cluster or transfer explains it")
            )
        if isinstance(step, Transfer):
            flush()
            what = plan.words.value(step.value)
            parts.append(Stretch("copy", step.start, step.end, f"{step.src} → {step.dst}", what, (number,)))
        else:
            if clusters and clusters[-1].lane != step.lane:
                flush()
            clusters.append(step)
            numbers.append(number)
        clock = max(clock, step.end)
    flush()
    return parts


def span_name(plan: Plan, clusters: list[Placed]) -> str:
    """`first … last` with a count."""
    first, last = plan.words.cluster(clusters[0].cluster), plan.words.cluster(clusters[-1].cluster)
    return first if len(clusters) == 1 else f"{first} … {last} ({len(clusters)} clusters)"


def module_of(plan: Plan, cluster: str) -> str:
    """The longest module path that all tasks of a cluster which have one share."""
    paths = [plan.costed.graph.task[task].module for task in plan.costed.cluster[cluster].tasks]
    return common_module([path for path in paths if path])


def alternative(plan: Plan) -> Candidate | None:
    """The best candidate that uses several devices, None when there is no feasible one."""
    others = [c for c in plan.candidates if c.makespan is not None and not c.policy.startswith("single")]
    return min(others, key=lambda c: (c.makespan, c.policy), default=None)


def baseline(plan: Plan) -> tuple[str, float] | None:
    """What a plan is held against: the shortest on one device, weights included, and its seconds. A device that some
    clusters cannot be on, for a pin, counts with those left where they must be, as `mostly cuda:0`; None when no
    device can run all."""
    best = plan.best_single
    for candidate in plan.candidates if best else ():
        device = candidate.policy.removeprefix("single ")
        if candidate.makespan is None or candidate.split or device == candidate.policy:
            continue
        all_there = dict(plan.singles).get(device) is not None
        if not all_there and plan.costed.graph.streamed:
            # All of it runs there, with weights that come and go: it is no device that a model could be moved to.
            continue
        if best is None or candidate.makespan < best[1]:
            best = (device if all_there else f"mostly {device}", candidate.makespan)
    return best


def best_of_each(plan: Plan) -> list[Candidate]:
    """The candidates, best first; of those of one policy and split that only differ in time, the best."""
    order = sorted(plan.candidates, key=lambda c: (c.makespan is None, c.makespan or 0.0))
    found: dict[tuple[str, str, str], Candidate] = {}
    for candidate in order:
        found.setdefault((candidate.policy, candidate.split, candidate.note), candidate)
    return list(found.values())


def chosen(plan: Plan) -> Candidate | None:
    """The candidate that became the plan, None when it is none of them."""
    split = plan.costed.graph.split
    mine = [c for c in plan.candidates if c.policy == plan.policy and c.makespan is not None]
    alike = [c for c in mine if c.split == split] or mine
    return min(alike, key=lambda c: abs((c.makespan or 0.0) - plan.makespan), default=None)


def faster(gain: float) -> str:
    """How a plan compares with one device whose time is `gain` times as long."""
    if gain >= 1.005:
        return f"{gain:.2f} × faster than one device"
    return "as fast as one device" if gain > 0.995 else f"{(1 / gain - 1) * 100:.0f} % slower than one device"


def change(share: float) -> str:
    """A relative change as a signed whole percentage: `+5 %`, `0 %`, `−3 %`."""
    rounded = round(share * 100)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else ''}{abs(rounded)} %"


def slow_down(plan: Plan) -> float:
    """By how much a measured call of this plan is stretched: 1 unless the machine's clock is a declared
    one."""
    machine = plan.costed.machine
    return machine.slow_down if machine.clock == "declared" else 1.0
