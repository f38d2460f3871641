"""`explain`: the report on a plan and its recording, one screen, or the sections and names that are asked for."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ...ir.display_names import PHASES
from ...ir.plan import Plan
from ...ir.timeline import Timeline
from ...system.text import COLUMNS, counted, free, percent, seconds, size, table, wrapped
from .reasons import (
    baseline,
    best_of_each,
    change,
    explain_clusters,
    faster,
    helps,
    on_one_device,
    path_shares,
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
    whole, plan = plan, plan.printable
    timed = timeline if timeline and not timeline.needs_slow_down else None
    several = len({placed.device for placed in plan.placed}) > 1
    lines = [line for note in notes for line in wrapped(note).splitlines()]
    # Each is given the limit on its rows, None for all of them.
    found: dict[str, Callable[[int | None], str]] = {
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
        return Report(_asked(whole, names, found))
    most = None if names else _MOST_ROWS
    shown = {"head": _head(plan, serving), **{name: section(most) for name, section in found.items()}}
    if most:
        for name in _EXTRA:
            if sum(text.count("\n") + 2 for text in shown.values() if text) > _LINES - 3:
                shown[name] = ""
        longest = max(plan.placed, key=lambda placed: placed.end - placed.start, default=None)
        example = f', such as explain("{plan.words.cluster(longest.cluster)}")' if longest else ""
        shown["more"] = wrapped(
            f'More: explain("all"), a section ({", ".join(found)}), or any name that is shown here or in a picture'
            f"{example}."
        )
    return Report("\n\n".join(filter(None, shown.values())) + "\n")


def _asked(plan: Plan, names: Sequence[str], found: Mapping[str, Callable[[int | None], str]]) -> str:
    """Return the sections with these names, and the reasons for everything else that has one of them."""
    policies = {name for each in plan.candidates for name in (each.policy, each.name)}
    others = [name for name in names if name not in found and name not in policies]
    chosen = dict.fromkeys(name if name in found else "candidates" for name in names if name not in others)
    blocks = [found[name](None) or f"There are no {name} in this report." for name in chosen]
    return "\n\n".join([*blocks, *([explain_clusters(plan, others)] if others else [])])


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
        serving = "PyTorch's kernels" if serving == "eager" else serving
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
    measured, *said = _measured(plan, timeline, measured_single) if timeline else ("-",)
    if single and plan.makespan:
        said.append(faster(single[1] / plan.makespan))
    if queued and not timeline:
        said.append("not recorded yet: with fast.record()")
    rows = [
        ("", "predicted", "measured", ""),
        ("one call", seconds(plan.makespan), measured, "; ".join(said)),
    ]
    if single:
        strict = single == plan.best_single
        note = f"all on {single[0]}" if strict else f"{single[0]}: the rest is what cannot run there"
        took = seconds(measured_single) if measured_single and strict else "-"
        rows.append(("best single device", seconds(single[1]), took, note))
    else:
        rows.append(("best single device", "-", "-", "no device can run it all alone"))
    if plan.lower_bound:
        note = f"no plan of it here is shorter; gap to the bound {percent(plan.gap)}"
        rows.append(("lower bound", seconds(plan.lower_bound), "", note))
    if plan.costed.call_s and queued:
        whole = seconds(plan.makespan + plan.costed.call_s)
        note = f"guards and arguments of a call: {whole} in all"
        rows.append(("overhead", seconds(plan.costed.call_s), "", note))
    text = table(rows, right=(1, 2), width=COLUMNS).split("\n", 2)
    lines = [text[0], text[2]]
    if graph.state and queued:
        lines.append(wrapped(f"weights: {_weights(plan)}"))
    lines.append(f"moved in each call: {size(plan.moved)} in {counted(len(plan.transfers), 'transfer')}")
    return "\n".join(lines)


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
    if abs(promised - expected) > 0.005 * expected:
        notes.append(
            f"{change(timeline.makespan / promised - 1)} against {seconds(promised)}, predicted for the programs that "
            "ran: forward and backward, weights copied only when they have changed"
        )
    elif expected:
        note = f"{change(timeline.makespan / expected - 1)} against predicted"
        notes.append(note + (f" (clock slowed {slow:g} ×)" if slow != 1 else ""))
    if measured_single and timeline.makespan:
        notes.append(f"{faster(measured_single / timeline.makespan)}, measured")
    if timeline.late >= 0.005:
        notes.append(f"emulated work up to {late} late")
    return seconds(timeline.makespan), *notes


def _weights(plan: Plan) -> str:
    """Return the model's bytes of state, and their places."""
    graph, home = plan.costed.graph, plan.costed.home
    living: dict[str, dict[str, int]] = {}
    for name in graph.state:
        value = graph.value[name]
        storages = living.setdefault(home[name], {})
        storages[value.storage] = max(storages.get(value.storage, 0), value.bytes)
    total = sum(sum(storages.values()) for storages in living.values())
    copied = sorted({device for name, device in plan.resident if device != home[name]})
    more = [f"copies on {', '.join(copied)}"] if copied else []
    sliced = {value.slice.of for value in graph.values if value.slice}
    more += [f"of {counted(len(sliced), 'weight')} each device has the parts it reads"] if sliced else []
    more += ["brought after each step of the optimizer"] if graph.changing else []
    more += ["brought in each call to who reads them elsewhere"] if graph.streamed else []
    return "; ".join((f"{size(total)}, live on {', '.join(living)}", *more))


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
        return "-" if cap is None else free(1 - used / cap) if cap else "0 %"

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


_SHARES = ("active", "exposed", "share")


def _phases(plan: Plan, timeline: Timeline | None) -> str:
    """Return the phases of a training step as predicted and, if the call was measured in time, as measured."""
    sides = {"predicted": plan.timeline(), **({"measured": timeline} if timeline else {})}
    by_side = {side: {phase.name: phase for phase in phases(plan, each)} for side, each in sides.items()}
    rows = [("phase", *(f"{head}{what}" for head in ("", "measured ")[: len(sides)] for what in _SHARES))]
    for name in PHASES:
        row = [name]
        for side, each in sides.items():
            phase = by_side[side].get(name)
            share = percent(phase.adds / (each.makespan or 1.0)) if phase else "-"
            row += [seconds(phase.span), seconds(phase.adds), share] if phase else ["-"] * 3
        if any(name in by_name for by_name in by_side.values()):
            rows.append(tuple(row))
    head = "time by phase; active: the phase runs, exposed: while none of a phase above does"
    text = f"{head}\n{table(rows, right=range(1, len(rows[0])), width=COLUMNS)}"
    if any("reduction" in by_name for by_name in by_side.values()):
        shares = ", ".join(f"{percent(hidden(plan, each))} as {side}" for side, each in sides.items())
        text += "\n" + wrapped(f"copies and sums of gradients hidden behind the backward: {shares}")
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
    rows = [("candidate", "split", "predicted", "against chosen", "note")]
    for each in best_of_each(plan):
        note, kept = each.note, alone.get(each.policy)
        if each.makespan is None:
            rows.append((each.policy, each.split, "-", "-", note or "not feasible"))
            continue
        if kept and not each.split and abs(kept - each.makespan) > 1e-3 * kept:
            note = "; ".join(filter(None, (note, f"{seconds(kept)} if the weights lived there")))
        more = change(each.makespan / plan.makespan - 1 if plan.makespan else 0.0)
        rows.append((each.policy, each.split, seconds(each.makespan), more, note))
    if not any(row[1] for row in rows[1:]):
        return table([(name, *rest) for name, _, *rest in rows], right=(1, 2), width=COLUMNS)
    return table(rows, right=(2, 3), width=COLUMNS)


def _path(plan: Plan, most: int | None) -> str:
    parts = sections(plan)
    longest = sorted(parts, key=lambda part: part.start - part.end)[:most]
    rows = [("from", "to", "where", "what", "clusters", "waited for")]
    for part in sorted(longest, key=lambda part: (part.start, part.end)):
        why = waited(plan, part.steps[0]) if part.steps else ""
        count = str(len(part.steps)) if part.kind == "compute" else ""
        rows.append((seconds(part.start), seconds(part.end), part.where, part.what, count, why))
    lines = [wrapped(path_shares(plan)), table(rows, right=(0, 1, 4), width=COLUMNS)]
    if len(longest) < len(parts):
        lines.append(f"… the {len(longest)} longest of {len(parts)} stretches")
    return "\n".join(lines)


def _reasons(plan: Plan, most: int | None) -> str:
    longest = sorted(plan.placed, key=lambda placed: (placed.start - placed.end, placed.start))[:most]
    if not longest:
        return ""
    head = f"why each cluster is where it is (the {len(longest)} longest of {len(plan.placed)})"
    return f"{head}\n{reasons_table(plan, longest)}"
