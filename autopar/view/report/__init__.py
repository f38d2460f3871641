"""`explain`: the report on a plan and its recording, one screen, or the sections and names that are asked for."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Sequence

from ...ir.display_names import PHASES
from ...ir.plan import Plan
from ...ir.timeline import Timeline
from ...system.text import COLUMNS, counted, percent, percent_free, seconds, size, table, wrapped
from .reasons import (
    baseline,
    best_of_each,
    change,
    explain_clusters,
    faster,
    helps,
    on_one_device,
    reasons_table,
    sections,
    waited,
)
from .statistics import device_busy, hidden, phases

_LINES = 50
"""Lines of a screen."""
_MOST_ROWS, _MOST_NOTES = 5, 10
"""Limits on the rows of a table, and on the lines of notes, on one screen."""
_EXTRA = ("reasons", "path", "phases", "devices", "kernels")
"""Sections that one screen lacks if it would be too long, the first one first."""


class Report(str):
    """A report as text, which notebooks show with its columns aligned."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"

    def __repr__(self) -> str:
        return str(self)


def explain(
    plan: Plan,
    timeline: Timeline | None = None,
    measured_single: float | None = None,
    notes: Sequence[str] = (),
    *names: str,
    kernels: Sequence[str] = (),
    serving: str = "",
) -> Report:
    """Return the report on a plan: what serves and why, its cost as predicted and measured, kernels, devices, and what
    would help; at most 50 lines of 100 columns.

    timeline: a measured call.
    measured_single: measured seconds of the best single device.
    notes: sentences of the caller.
    names: sections in full ("costs", "notes", "kernels", "devices", "phases", "candidates", "path", "reasons",
        "hardware", or "all"), or names that a report or a picture shows.
    kernels: a table for each program with kernels.
    serving: what answers calls: libraries of kernels, or the plain model.

    Raises PlanError for a name that nothing has.
    """
    plan = plan.printable
    timed = timeline if timeline and not timeline.needs_slow_down else None
    several = len({placed.device for placed in plan.placed}) > 1
    lines = [line for note in notes for line in wrapped(note).splitlines()]
    # Each is given the limit on its rows, None for all of them.
    by_name: dict[str, Callable[[int | None], str]] = {
        "costs": lambda most: _costs(plan, timeline, measured_single),
        "notes": lambda most: _clipped(lines, most and _MOST_NOTES),
        "kernels": lambda most: "\n\n".join(kernels[-1:] if most else kernels),
        "why": lambda most: wrapped(on_one_device(plan) or _chosen(plan)),
        "devices": lambda most: _devices(plan, timed, most),
        "phases": lambda most: _phases(plan, timed) if plan.words.training else "",
        "candidates": lambda most: "" if most else _candidates(plan),
        "path": lambda most: _path(plan, most) if several or not most else "",
        "reasons": lambda most: _reasons(plan, most) if several or not most else "",
        "hardware": lambda most: helps(plan, most) if plan.makespan else "",
    }
    if names and "all" not in names:
        policies = {name for each in plan.candidates for name in (each.policy, each.name)}
        parts = ["candidates" if name in policies else name for name in names]
        shown = {
            name: by_name[name](None) or f"There are no {name} in this report."
            for name in parts
            if name in by_name
        }
        if others := [name for name in parts if name not in by_name]:
            shown["clusters"] = explain_clusters(plan, others)
        return Report("\n\n".join(shown.values()))
    most = None if names else _MOST_ROWS
    shown = {"head": _head(plan, serving), **{name: section(most) for name, section in by_name.items()}}
    if most:
        for name in _EXTRA:
            if sum(text.count("\n") + 2 for text in shown.values() if text) > _LINES - 3:
                shown[name] = ""
        longest = max(plan.placed, key=lambda placed: placed.end - placed.start, default=None)
        example = f', such as explain("{plan.words.cluster(longest.cluster)}")' if longest else ""
        shown["more"] = wrapped(
            f'More: explain("all"), a section ({", ".join(by_name)}), or any name that is shown here or in a picture'
            f"{example}."
        )
    return Report("\n\n".join(filter(None, shown.values())) + "\n")


def _head(plan: Plan, serving: str) -> str:
    graph, machine = plan.costed.graph, plan.costed.machine
    count = counted(len(graph.tasks), "task")
    if machine.queued:
        count += f" in {counted(len(plan.placed), 'cluster')}"
    # A graph file has no batch.
    split = graph.split or ("batch not split" if machine.queued else "")
    head = wrapped(", ".join(filter(None, (f"{graph.name}: {count}", f"placed by {plan.policy}", split))))
    lines = [head, *([wrapped(f"[{machine.label}]")] if machine.label else [])]
    if serving:
        devices = ", ".join(dict.fromkeys(placed.device for placed in plan.placed))
        names = ("PyTorch's kernels" if name == "eager" else name for name in serving.split("; "))
        serving = "; ".join(names)
        lines.append(wrapped(f"served by {serving}" + (f" on {devices}" if devices else "")))
    return "\n".join(lines)


def _clipped(lines: Sequence[str], most: int | None) -> str:
    """Return lines, with their number if some are left out."""
    if most is None or len(lines) <= most:
        return "\n".join(lines)
    return "\n".join([*lines[: most - 1], f"… {len(lines) - most + 1} more lines"])


def _costs(plan: Plan, timeline: Timeline | None, measured_single: float | None) -> str:
    """Return the seconds of a call, predicted beside measured, and the bytes it holds and moves."""
    single, graph, queued = baseline(plan), plan.costed.graph, plan.costed.machine.queued
    measured, *remarks = _measured(plan, timeline, measured_single) if timeline else ("-",)
    if single and plan.makespan:
        remarks.append(faster(single[1] / plan.makespan))
    if queued and not timeline:
        remarks.append("record() measures it")
    rows = [
        ("", "predicted", "measured", ""),
        ("one call", seconds(plan.makespan), measured, "; ".join(remarks)),
    ]
    if single:
        strict = single == plan.best_single
        note = f"all on {single[0]}" if strict else f"{single[0]}: the rest is what cannot run there"
        took = seconds(measured_single) if measured_single and strict else "-"
        rows.append(("best single device", seconds(single[1]), took, note))
    else:
        rows.append(("best single device", "-", "-", "no device can run it all alone"))
    if plan.lower_bound:
        note = f"no plan for this machine is shorter; gap {percent(plan.gap)}"
        rows.append(("lower bound", seconds(plan.lower_bound), "", note))
    if plan.costed.call_s and queued:
        note = f"guards and arguments of a call; {seconds(plan.makespan + plan.costed.call_s)} in total"
        rows.append(("overhead", seconds(plan.costed.call_s), "", note))
    text = table(rows, right=(1, 2), width=COLUMNS).splitlines()
    del text[1]
    if graph.state and queued:
        text.append(wrapped(f"weights: {_weights(plan)}"))
    text.append(f"moved in each call: {size(plan.moved)} in {counted(len(plan.transfers), 'transfer')}")
    return "\n".join(text)


def _measured(plan: Plan, timeline: Timeline, measured_single: float | None) -> tuple[str, ...]:
    """Return the measured time, and remarks on it; refused if emulated work was too late."""
    slow, late = plan.costed.machine.stretch, percent(timeline.late)
    if timeline.needs_slow_down:
        enough = math.ceil(timeline.needs_slow_down)
        advice = f"needs slow_down ≥ {enough}"
        if slow >= enough:
            advice = f"record it again, the clock is {slow:g} × now"
        return "refused", f"emulated work was {late} late: {advice}"
    expected, notes = plan.makespan * slow, []
    promised = timeline.predicted.makespan if timeline.predicted else expected
    if promised:
        notes.append(f"{change(timeline.makespan / promised - 1)} against predicted")
    if abs(promised - expected) > 0.005 * expected:
        notes[0] = (
            f"{notes[0]} {seconds(promised)} of the programs that ran (forward and backward apart, weights copied only "
            "after a change)"
        )
    elif promised and slow != 1:
        notes[0] += f" (clock slowed {slow:g} ×)"
    if measured_single and timeline.makespan:
        notes.append(f"{faster(measured_single / timeline.makespan)}, measured")
    if timeline.late >= 0.005:
        notes.append(f"emulated work up to {late} late")
    return seconds(timeline.makespan), *notes


def _weights(plan: Plan) -> str:
    """Return the model's bytes of state, and their places."""
    graph, home = plan.costed.graph, plan.costed.home
    # Several values may share one storage.
    storages: dict[tuple[str, str], int] = {}
    for value in map(graph.value.__getitem__, graph.state):
        key = home[value.name], value.storage
        storages[key] = max(storages.get(key, 0), value.bytes)
    homes = ", ".join(dict.fromkeys(device for device, _ in storages))
    copied = sorted({device for name, device in plan.resident if device != home[name]})
    sliced = {value.slice.of for value in graph.values if value.slice}
    facts = {
        f"{size(sum(storages.values()))} on {homes}": True,
        f"copies on {', '.join(copied)}": copied,
        f"each device has the parts it reads of {counted(len(sliced), 'weight')}": sliced,
        "sent to other devices after each step of the optimizer": graph.changing,
        "sent to other devices in each call": graph.streamed,
    }
    return "; ".join(fact for fact, holds in facts.items() if holds)


def _devices(plan: Plan, timeline: Timeline | None, most: int | None) -> str:
    names = [device.name for device in plan.costed.machine.devices]
    caps = [device.memory_bytes for device in plan.costed.machine.devices]
    busy, real = device_busy(plan.timeline()), device_busy(timeline) if timeline else {}
    peaks = {memory.device: memory.peak for memory in timeline.memory} if timeline else {}
    gets, sends = Counter[str](), Counter[str]()
    for transfer in plan.transfers:
        gets[transfer.dst] += transfer.bytes
        sends[transfer.src] += transfer.bytes

    def left(name: str, cap: int | None) -> str:
        used = max(plan.peaks.get(name, 0), peaks.get(name, 0))
        return "-" if cap is None else percent_free(1 - used / cap) if cap else "0 %"

    columns: list[tuple[str, Sequence[object]]] = [
        ("device", names),
        ("busy", [percent(busy.get(name, 0.0)) for name in names]),
        ("measured", [percent(real[name]) if name in real else "-" for name in names]),
        ("clusters", [sum(placed.device == name for placed in plan.placed) for name in names]),
        ("gets", [size(gets[name]) for name in names]),
        ("sends", [size(sends[name]) for name in names]),
        ("peak memory", [size(plan.peaks.get(name, 0)) for name in names]),
        ("measured", [size(peaks[name]) if name in peaks else "-" for name in names]),
        ("cap", ["none" if cap is None else size(cap) for cap in caps]),
        ("free at peak", list(map(left, names, caps))),
    ]
    shown = [(head, *cells) for head, cells in columns if timeline or head != "measured"]
    text = table(list(zip(*shown)), right=range(1, len(shown)), width=COLUMNS)
    return _clipped(text.splitlines(), most and _MOST_NOTES)


def _phases(plan: Plan, timeline: Timeline | None) -> str:
    """Return the phases of a training step as predicted and, if the call was measured in time, as measured."""
    sides = {"predicted": plan.timeline(), **({"measured": timeline} if timeline else {})}
    took = [phases(plan, each) for each in sides.values()]
    heads = ("active", "exposed", "measured active", "measured exposed")
    rows = [("phase", *heads[: 2 * len(sides)])]
    for name in PHASES:
        if any(name in each for each in took):
            rows.append((name, *(text for each in took for text in map(seconds, each.get(name, (0.0, 0.0))))))
    text = "time by phase; active: the phase is running; exposed: it is, and no phase above is\n"
    text += table(rows, right=range(1, len(rows[0])), width=COLUMNS)
    if any("reduction" in each for each in took):
        shares = ", ".join(f"{percent(hidden(plan, each))} as {side}" for side, each in sides.items())
        text += f"\ngradient reduction hidden behind the backward: {shares}"
    return text


def _chosen(plan: Plan) -> str:
    """Return what was compared before the plan was chosen; "" if nothing was."""
    mine = ", ".join(filter(None, (plan.policy, plan.costed.graph.split)))
    best = next((each for each in best_of_each(plan) if each.name != mine), None)
    if best is None or best.makespan is None or not plan.makespan:
        return ""
    took, note = seconds(best.makespan), f"; {best.note}" if best.note else ""
    took += f" ({change(best.makespan / plan.makespan - 1)}{note})"
    count = counted(len(plan.candidates), "candidate")
    return f"Chosen from {count}; the best other, {best.name}, is predicted to take {took}."


def _candidates(plan: Plan) -> str:
    if not plan.candidates:
        return ""
    alone = {f"single {device}": took for device, took in plan.singles}
    rows = [("candidate", "predicted", "against chosen", "note")]
    for each in best_of_each(plan):
        note, moved = each.note, alone.get(each.name)
        if each.makespan is None:
            rows.append((each.name, "-", "-", note or "not feasible"))
            continue
        if moved and abs(moved - each.makespan) > 1e-3 * moved:
            note = "; ".join(filter(None, (note, f"{seconds(moved)} if the weights lived there")))
        more = change(each.makespan / plan.makespan - 1 if plan.makespan else 0.0)
        rows.append((each.name, seconds(each.makespan), more, note))
    return table(rows, right=(1, 2), width=COLUMNS)


def _path(plan: Plan, most: int | None) -> str:
    parts, path, total = sections(plan), plan.critical, plan.makespan or 1.0
    longest = sorted(parts, key=lambda part: part.start - part.end)[:most]
    rows = [("from", "to", "where", "what", "clusters", "waited for")]
    for part in sorted(longest, key=lambda part: (part.start, part.end)):
        why = waited(plan, part.steps[0]) if part.steps else ""
        count = str(len(part.steps)) if part.kind == "compute" else ""
        rows.append((seconds(part.start), seconds(part.end), part.where, part.what, count, why))
    waits = max(0.0, plan.makespan - path.compute_s - path.transfer_s)
    compute, transfer, waiting = (percent(s / total) for s in (path.compute_s, path.transfer_s, waits))
    lines = [
        f"critical path: {compute} compute, {transfer} transfer, {waiting} waiting; any delay here delays the result",
        table(rows, right=(0, 1, 4), width=COLUMNS),
    ]
    if len(longest) < len(parts):
        lines.append(f"… the {len(longest)} longest of {len(parts)} stretches")
    return "\n".join(lines)


def _reasons(plan: Plan, most: int | None) -> str:
    longest = sorted(plan.placed, key=lambda placed: (placed.start - placed.end, placed.start))[:most]
    if not longest:
        return ""
    count = f" (the {len(longest)} longest of {len(plan.placed)})" if len(longest) < len(plan.placed) else ""
    return f"why each cluster is where it is{count}\n{reasons_table(plan, longest)}"
