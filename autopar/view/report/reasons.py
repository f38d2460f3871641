"""Text on placements: reasons of clusters, waits, stretches of the critical path, and comparisons of the plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name

from ...ir.display_names import common_module
from ...ir.plan import Candidate, Choice, Plan, Reason
from ...ir.timeline import Placed, Transfer
from ...planner.what_if import changes
from ...system.text import COLUMNS, matching, percent, printable, seconds, table, wrapped

_MOST_CHANGES = 6
"""Limit on the changes of hardware in a table."""
_MOST_BLOCKS = 8
"""Limit on the clusters that are explained at length."""


def explain_clusters(plan: Plan, names: Iterable[str]) -> str:
    """Explain the clusters with any of some names: place and time, waits, their ends on each device with the rest of
    the plan unchanged, and the reason; if there are many, as a table.

    names: names in reports and pictures, ids of tasks and values, modules, devices, and globs.

    Raises PlanError for a name that nothing has.
    """
    plan = plan.printable
    known, chosen = _clusters_by_name(plan), dict[str, None]()
    for name in names:
        complaint = f"{name!r} is not a task of {plan.costed.graph.name!r}"
        # As a report shows it, or as it is: a plan with control characters in names shows backslashes twice.
        escaped = printable(name.replace("\\", r"\\"))
        for match in matching(escaped if escaped in known else printable(name), known, complaint):
            chosen |= known[match]
    if not chosen:
        return "Nothing of this is computed in a call."
    if len(chosen) > _MOST_BLOCKS:
        return reasons_table(plan, [plan.place[cluster] for cluster in chosen])
    return "\n\n".join(
        _block(plan, cluster) for cluster in sorted(chosen, key=plan.critical.number.__getitem__)
    )


def _clusters_by_name(plan: Plan) -> dict[str, dict[str, None]]:
    """Return the clusters by each name that a report or a picture may show: of clusters, tasks, modules, devices,
    lanes, links, stretches of the critical path, and values (their producer and readers), unless a value has the name
    of anything else."""
    graph, words, place = plan.costed.graph, plan.words, plan.place
    idle = [*plan.costed.machine.device, *(f"{copy.src} → {copy.dst}" for copy in plan.transfers)]
    names: dict[str, dict[str, None]] = {name: {} for name in idle}
    values: dict[str, dict[str, None]] = {}
    called = list(resolve_name("autopar.view.placed.fold:titles")(plan))
    for part in sections(plan):
        steps = (plan.steps[number] for number in part.steps)
        called += [(part.what, step.cluster) for step in steps if isinstance(step, Placed)]
    for cluster, placed in place.items():
        costed = plan.costed.cluster[cluster]
        mine = [cluster, words.cluster(cluster), placed.device, placed.lane]
        for task in map(graph.task.__getitem__, costed.tasks):
            mine += [task.name, words.task(task)]
            mine += [task.module[: match.start()] for match in re.finditer(r"\.|$", task.module)]
        called += [(name, cluster) for name in mine]
        for value in (*costed.makes, *costed.reads):
            for name in (value, words.value(value)):
                values.setdefault(name, {})[cluster] = None
    for copy in plan.transfers:
        readers = values.get(copy.value, {})
        called += [(f"{copy.src} → {copy.dst}", to) for to in readers if place[to].device == copy.dst]
    for name, cluster in called:
        names.setdefault(name, {})[cluster] = None
    names.pop("", None)
    return {**values, **names}


def reasons_table(plan: Plan, chosen: Sequence[Placed]) -> str:
    """Return the place, time, wait and reason of some clusters, one row each; a reason that all share stands above."""
    rows = [("cluster", "device", "takes", "slack", "waited for", "why there")]
    for placed in chosen:
        number = plan.critical.number[placed.cluster]
        times = seconds(placed.end - placed.start), seconds(plan.critical.slack[number])
        why = plan.reason[placed.cluster].text
        rows.append((plan.words.cluster(placed.cluster), placed.device, *times, waited(plan, number), why))
    if len(rows) > 2 and len({row[-1] for row in rows[1:]}) == 1:
        reason = wrapped(f"all of them for one reason: {rows[1][-1]}")
        return f"{reason}\n{table([row[:-1] for row in rows], right=(2, 3), width=COLUMNS)}"
    return table(rows, right=(2, 3), width=COLUMNS)


def _block(plan: Plan, cluster: str) -> str:
    """Return all that is known of one cluster."""
    step, number = plan.place[cluster], plan.critical.number[cluster]
    late = f"slack {seconds(plan.critical.slack[number])}"
    late = "on the critical path" if number in plan.critical.on_path else late
    head = (
        f"{plan.words.cluster(cluster)} on {step.lane}: {seconds(step.start)} → {seconds(step.end)}, {late}"
    )
    reason = plan.reason[cluster]
    lines = wrapped(f"waited for {waited(plan, number) or 'nothing'}", COLUMNS - 2).splitlines()
    if len(reason.choices) > 1:
        rows = [("device", "inputs there", "starts", "ends", "")]
        for choice, late in choices(step.device, reason):
            if choice.end is None:
                rows.append((choice.device, "-", "-", "-", choice.why))
            else:
                starts = seconds(max(choice.arrives, choice.free))
                rows.append((choice.device, seconds(choice.arrives), starts, seconds(choice.end), late))
        lines += table(rows, right=(1, 2, 3), width=COLUMNS - 2).splitlines()
    lines += wrapped(reason.text, COLUMNS - 2).splitlines()
    return "\n  ".join([wrapped(head), *lines])


def choices(device: str, reason: Reason) -> list[tuple[Choice, str]]:
    """Return the choices of a cluster, that of its own `device` first, then by end, each with how much later the
    cluster would end there: `+1.2 ms`, `−0.3 ms`."""

    def later(choice: Choice) -> str:
        if choice is here or choice.end is None or here.end is None:
            return "chosen" if choice is here else "-"
        late = choice.end - here.end
        if abs(late) <= 1e-9 * max(choice.end, here.end):
            return "0 s"
        return f"{'+' if late > 0 else '−'}{seconds(abs(late))}"

    here, *others = sorted(reason.choices, key=lambda c: (c.device != device, c.end is None, c.end or 0.0))
    return [(choice, later(choice)) for choice in (here, *others)]


def helps(plan: Plan, most: int | None = None) -> str:
    """Return the changes of hardware that would shorten the plan most, each alone, with the predictions; with `most`,
    only the first one."""
    rows = [
        (each.what, seconds(plan.makespan - each.seconds), percent(1 - each.seconds / plan.makespan))
        for each in changes(plan)[:_MOST_CHANGES]
    ]
    if not rows:
        return "No kind of device and no link, if it were twice as fast, would shorten the makespan."
    best = wrapped("What would help most: {} saves {} or more ({}).".format(*rows[0]))
    if most:
        return best
    heads = ("each alone, tasks placed as now", "saves at least", "of the call")
    return f"{best}\n{table([heads, *rows], right=(1, 2), width=COLUMNS)}"


def waited(plan: Plan, number: int) -> str:
    """Return the binding predecessor of a step, and how long the ready step waited for it: `v0 from cpu`,
    `t3`, `lane cuda:0/0, busy with t2, 1.2 ms`; empty if it starts at once."""
    wait, step = plan.critical.last[number], plan.steps[number]
    if wait is None:
        return ""
    before = plan.steps[wait.step]
    if isinstance(before, Placed):
        named = plan.words.cluster(before.cluster)
    else:
        named = f"{plan.words.value(before.value)} from {before.src}"
    late = step.start - plan.critical.ready(number)
    if wait.kind in ("data", "order") or late <= 1e-9 * plan.makespan:
        return named
    resource = f"lane {step.lane}"
    if wait.kind == "wire" and isinstance(step, Transfer):
        wire = plan.costed.machine.link[step.src, step.dst].wire or ""
        # A link with a bus of its own is named by its ends.
        resource = "the link" if " → " in wire else f"bus {wire}"
    return f"{resource}, busy with {named}, {seconds(late)}"


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of the critical path: `compute` on one device, one `copy`, or a `wait` for the host, whose dispatch is
    no step. `steps`: numbers of its steps."""

    kind: str
    start: float
    end: float
    where: str
    what: str
    steps: tuple[int, ...] = ()


def sections(plan: Plan) -> list[Section]:
    """Return the critical path in stretches: consecutive clusters of one lane are one, gaps above 0.1 % are waits."""
    parts: list[Section] = []
    clock, before, first, words = 0.0, None, "", plan.words
    for number in plan.critical.path:
        step = plan.steps[number]
        late = step.start - clock > plan.makespan * 1e-3
        if late:
            parts.append(Section("wait", clock, step.start, step.lane, "waits for the host"))
        if isinstance(step, Transfer):
            where, what = f"{step.src} → {step.dst}", words.value(step.value)
            parts.append(Section("copy", step.start, step.end, where, what, (number,)))
        elif not late and isinstance(before, Placed) and before.lane == step.lane:
            last, what = parts[-1], f"{first} … {words.cluster(step.cluster)}"
            parts[-1] = replace(last, end=step.end, what=what, steps=(*last.steps, number))
        else:
            first = words.cluster(step.cluster)
            parts.append(Section("compute", step.start, step.end, step.lane, first, (number,)))
        clock, before = max(clock, step.end), step
    return parts


def module_of(plan: Plan, cluster: str) -> str:
    """Return the longest module path that all tasks of a cluster with a module share."""
    paths = [plan.costed.graph.task[task].module for task in plan.costed.cluster[cluster].tasks]
    return common_module([path for path in paths if path])


def on_one_device(plan: Plan) -> str:
    """Return the reason why everything is on one device; "" if it is not."""
    if len({placed.device for placed in plan.placed}) != 1:
        return ""
    text = f"Everything is on {plan.placed[0].device}"
    if len(plan.costed.machine.devices) == 1:
        return f"{text}, the only device there is."
    others = [(c.makespan, c.policy, c.name, c.note) for c in plan.candidates if c.makespan is not None]
    others = [each for each in others if not each[1].startswith("single")]
    if not others:
        return f"{text}; no other candidate was feasible, or could be shorter."
    took, _, name, note = min(others)
    lost = took - plan.makespan
    if lost < 0 and note:
        return f"{text}: {name} is predicted to take {seconds(took)}, but {note}."
    if lost <= 1e-6 * plan.makespan:
        return f"{text}: no plan over several devices was found that takes less."
    more = f"{seconds(lost)} more ({lost / plan.makespan * 100:+.1f} %)"
    return f"{text}: the best plan over several ({name}) would take {seconds(took)}, {more}."


def baseline(plan: Plan) -> tuple[str, float] | None:
    """Return the shortest single-device plan, weights included, and its seconds; None if no device can run everything.

    If a pin keeps some clusters off a device, it counts with these where they must be, as `mostly cuda:0`.
    """
    best = plan.best_single
    for candidate in plan.candidates if best else ():
        device = candidate.policy.removeprefix("single ")
        if candidate.makespan is None or candidate.split or device == candidate.policy:
            continue
        all_there = dict(plan.singles).get(device) is not None
        if not all_there and plan.costed.graph.streamed:
            # Everything runs there, but with streamed weights: the model could not be moved to this device.
            continue
        if best is None or candidate.makespan < best[1]:
            best = (device if all_there else f"mostly {device}", candidate.makespan)
    return best


def best_of_each(plan: Plan) -> list[Candidate]:
    """Return the candidates, best first; of those with the same policy, split and note only the best."""
    order = sorted(plan.candidates, key=lambda c: (c.makespan is None, c.makespan or 0.0))
    best: dict[tuple[str, str, str], Candidate] = {}
    for candidate in order:
        best.setdefault((candidate.policy, candidate.split, candidate.note), candidate)
    return list(best.values())


def chosen(plan: Plan) -> Candidate | None:
    """Return the candidate that became the plan; None if there is none."""
    split = plan.costed.graph.split
    mine = [c for c in plan.candidates if c.policy == plan.policy and c.makespan is not None]
    alike = [c for c in mine if c.split == split] or mine
    return min(alike, key=lambda c: abs((c.makespan or 0.0) - plan.makespan), default=None)


def faster(gain: float) -> str:
    """Return, as text, the speed-up over a device that takes `gain` times as long."""
    if gain >= 1.005:
        return f"{gain:.2f} × faster than one device"
    if gain > 0.995:
        return "as fast as one device"
    slower = f"{(1 / gain - 1) * 100:.0f} % slower" if gain else "slower"
    return f"{slower} than one device"


def change(share: float) -> str:
    """Return a relative change as a signed whole percentage: `+5 %`, `0 %`, `−3 %`."""
    rounded = round(share * 100)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else ''}{abs(rounded)} %"
