"""Text on placements: reasons of clusters, waits, stretches of the critical path, and comparisons of the plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

from ...ir.display_names import common_module
from ...ir.plan import Candidate, Choice, Plan, Reason
from ...ir.timeline import Placed, Transfer
from ...planner.what_if import changes
from ...system.text import COLUMNS, meant, percent, seconds, table, wrapped

_MOST_CHANGES = 6
_MOST_BLOCKS = 8
"""Limit on the clusters that are explained at length."""


def explain_clusters(plan: Plan, names: Iterable[str]) -> str:
    """Explain the clusters with any of some names: place and time, waits, their ends on each device with the rest of
    the plan unchanged, and the reason; if there are many, as a table.

    names: names in reports and pictures, ids of tasks and values, modules, devices, and globs.

    Raises PlanError for a name that nothing has.
    """
    known, chosen = clusters_by_name(plan), dict[str, None]()
    for name in names:
        complaint = f"{name!r} is not a task of {plan.costed.graph.name!r}"
        for match in meant(name, known, complaint):
            chosen |= dict.fromkeys(known[match])
    plan = plan.printable
    if not chosen:
        return "Nothing of this is computed in a call."
    if len(chosen) > _MOST_BLOCKS:
        return reasons_table(plan, [plan.place[cluster] for cluster in chosen])
    return "\n\n".join(
        _block(plan, cluster) for cluster in sorted(chosen, key=plan.critical.number.__getitem__)
    )


def clusters_by_name(plan: Plan) -> dict[str, list[str]]:
    """Return the clusters of `plan.printable` by each name that a report or a picture may show: of clusters, tasks,
    modules, values (their producer and readers), devices, lanes, and of parts of the critical path.

    A name of several kinds stands for the first of these.
    """
    names: dict[str, list[str]] = {}
    shown = dict(zip(plan.place, plan.printable.place))
    for each in (plan, plan.printable) if plan is not plan.printable else (plan,):
        graph, words = each.costed.graph, each.words
        pairs: list[list[tuple[str, str]]] = [[] for _ in range(5)]
        clusters, tasks, modules, values, places = pairs
        for cluster in each.place:
            runs = [graph.task[task] for task in each.costed.cluster[cluster].tasks]
            clusters += [(cluster, cluster), (words.cluster(cluster), cluster)]
            tasks += [(name, cluster) for task in runs for name in (task.name, words.task(task))]
            for path in {task.module for task in runs}:
                modules += [(path[: match.start()], cluster) for match in re.finditer(r"\.|$", path)]
            for value in (*each.costed.cluster[cluster].makes, *each.costed.cluster[cluster].reads):
                values += [(name, cluster) for name in (value, words.value(value))]
            places += [(name, cluster) for name in (each.place[cluster].device, each.place[cluster].lane)]
            arriving = {*each.costed.cluster[cluster].reads}
            places += [
                (f"{copy.src} → {copy.dst}", cluster)
                for copy in each.transfers
                if copy.dst == each.place[cluster].device and copy.value in arriving
            ]
        places += [(device, "") for device in each.costed.machine.device]
        places += [(f"{copy.src} → {copy.dst}", "") for copy in each.transfers]
        pairs.append(resolve_name("autopar.view.placed.fold:titles")(each))
        parts = sections(each)
        for part in parts:
            steps = [each.steps[number] for number in part.steps]
            pairs.append([(part.what, step.cluster) for step in steps if isinstance(step, Placed)])
        for kind in pairs:
            found: dict[str, list[str]] = {}
            for name, cluster in kind:
                found.setdefault(name, []).extend([shown.get(cluster, cluster)] if cluster else [])
            names = {**found, **names}
    names.pop("", None)
    return names


def reasons_table(plan: Plan, chosen: Sequence[Placed]) -> str:
    """Return the place, time, wait and reason of some clusters, one row each."""
    rows = [("cluster", "device", "takes", "slack", "waited for", "why there")]
    for placed in chosen:
        number = plan.critical.number[placed.cluster]
        times = seconds(placed.end - placed.start), seconds(plan.critical.slack[number])
        why = plan.reason[placed.cluster].text
        rows.append((plan.words.cluster(placed.cluster), placed.device, *times, waited(plan, number), why))
    return table(rows, right=(2, 3), width=COLUMNS)


def _block(plan: Plan, cluster: str) -> str:
    """Return all that is known of one cluster."""
    step, number = plan.place[cluster], plan.critical.number[cluster]
    late = f"slack {seconds(plan.critical.slack[number])}"
    late = "on the critical path" if number in plan.critical.on_path else late
    span = f"{seconds(step.start)} → {seconds(step.end)}"
    head = f"{plan.words.cluster(cluster)} on {step.lane}: {span}, {late}"
    reason = plan.reason[cluster]
    lines = [f"waited for {waited(plan, number) or 'nothing'}", *_choices(step.device, reason), reason.text]
    return "\n  ".join([wrapped(head), *(part for line in lines for part in _indented(line))])


def _indented(line: str) -> list[str]:
    """Return a line of a table as it is, a longer one wrapped."""
    return [line] if len(line) <= COLUMNS - 2 else wrapped(line, COLUMNS - 2).splitlines()


def _choices(device: str, reason: Reason) -> list[str]:
    if len(reason.choices) < 2:
        return []
    rows = [("device", "inputs there", "starts", "ends", "")]
    for choice, late in choices(device, reason):
        if choice.end is None:
            rows.append((choice.device, "-", "-", "-", choice.why))
        else:
            starts = seconds(max(choice.arrives, choice.free))
            rows.append((choice.device, seconds(choice.arrives), starts, seconds(choice.end), late))
    return table(rows, right=(1, 2, 3), width=COLUMNS - 2).splitlines()


def choices(device: str, reason: Reason) -> list[tuple[Choice, str]]:
    """Return the choices of a cluster, its own `device` first, then by end, each with how much later it would end
    there."""
    order = sorted(reason.choices, key=lambda c: (c.device != device, c.end is None, c.end or 0.0))
    own_end = next((choice.end for choice in order if choice.device == device), None)
    return [(choice, "chosen" if choice.device == device else _against(choice, own_end)) for choice in order]


def _against(choice: Choice, own_end: float | None) -> str:
    """Return the end of a cluster on another device relative to its own: `+1.2 ms`, `−0.3 ms`."""
    if choice.end is None or own_end is None:
        return "-"
    late = choice.end - own_end
    if abs(late) <= 1e-9 * max(choice.end, own_end):
        return "0 s"
    return f"{'+' if late > 0 else '−'}{seconds(abs(late))}"


def helps(plan: Plan, most: int | None = None) -> str:
    """Return the changes of hardware that would shorten the plan most, each alone, with the predictions; with `most`,
    only the first one."""
    rows = [
        (change.what, seconds(change.seconds), f"−{percent(1 - change.seconds / plan.makespan)}")
        for change in changes(plan)[:_MOST_CHANGES]
    ]
    if not rows:
        return "No kind of device and no link, if it were twice as fast, would shorten the makespan."
    if most:
        return wrapped("What would help most: {}: {} ({}).".format(*rows[0]))
    text = f"What would help most: {rows[0][0]} (the same plan, each change alone)\n"
    return text + table([("change", "makespan", "against now"), *rows], right=(1, 2), width=COLUMNS)


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


def path_shares(plan: Plan) -> str:
    """Return the shares of compute, transfers and waits in the critical path as a sentence."""
    path, total = plan.critical, plan.makespan or 1.0
    waits = max(0.0, plan.makespan - path.compute_s - path.transfer_s)
    compute, transfer, waiting = (percent(s / total) for s in (path.compute_s, path.transfer_s, waits))
    return f"critical path: {compute} compute, {transfer} transfer, {waiting} waiting; any delay here delays the result"


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the critical path: `compute` on one device, one `copy`, or a `wait` that no step explains. `steps`:
    numbers of its steps."""

    kind: str
    start: float
    end: float
    where: str
    what: str
    steps: tuple[int, ...] = ()


def sections(plan: Plan) -> list[Section]:
    """Return the critical path in sections: consecutive clusters of one lane are one, gaps above 0.1 % are waits."""
    groups: list[list[int]] = []
    clock, starts = 0.0, list[float]()
    for number in plan.critical.path:
        step, before = plan.steps[number], plan.steps[groups[-1][-1]] if groups else None
        late = step.start - clock > plan.makespan * 1e-3
        if not late and isinstance(step, Placed) and isinstance(before, Placed) and before.lane == step.lane:
            groups[-1].append(number)
        else:
            groups.append([number])
            starts.append(clock if late else step.start)
        clock = max(clock, step.end)
    parts: list[Section] = []
    for numbers, start in zip(groups, starts):
        first, last = plan.steps[numbers[0]], plan.steps[numbers[-1]]
        if start < first.start:
            what = "waits; no cluster or transfer explains it"
            parts.append(Section("wait", start, first.start, first.lane, what))
        if isinstance(first, Transfer):
            kind, where, what = "copy", f"{first.src} → {first.dst}", plan.words.value(first.value)
        else:
            kind, where, what = "compute", first.lane, plan.words.cluster(first.cluster)
            if isinstance(last, Placed) and len(numbers) > 1:
                what += f" … {plan.words.cluster(last.cluster)}"
        parts.append(Section(kind, first.start, last.end, where, what, tuple(numbers)))
    return parts


def module_of(plan: Plan, cluster: str) -> str:
    """Return the longest module path that all tasks of a cluster with a module share."""
    paths = [plan.costed.graph.task[task].module for task in plan.costed.cluster[cluster].tasks]
    return common_module([path for path in paths if path])


def on_one_device(plan: Plan) -> str:
    """Return the reason why everything is on one device; "" if it is not."""
    if len({placed.device for placed in plan.placed}) != 1:
        return ""
    text, other = f"Everything is on {plan.placed[0].device}", alternative(plan)
    if len(plan.costed.machine.devices) == 1:
        return f"{text}, the only device there is."
    if other is None or other.makespan is None:
        return f"{text}; no other candidate was feasible, or could be shorter."
    lost = other.makespan - plan.makespan
    if lost < 0 and other.note:
        return f"{text}: {other.name} is predicted to take {seconds(other.makespan)}, but {other.note}."
    if lost <= 1e-6 * plan.makespan:
        return f"{text}: no plan over several devices was found that takes less."
    more = f"{seconds(lost)} more ({lost / plan.makespan * 100:+.1f} %)"
    return f"{text}: the best plan over several ({other.name}) would take {seconds(other.makespan)}, {more}."


def alternative(plan: Plan) -> Candidate | None:
    """Return the best candidate on several devices; None if none is feasible."""
    others = [c for c in plan.candidates if c.makespan is not None and not c.policy.startswith("single")]
    return min(others, key=lambda c: (c.makespan, c.policy), default=None)


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
