"""`explain`: the report on a plan and its recording, as text and tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ...ir.display_names import PHASES
from ...ir.plan import Plan
from ...ir.timeline import Timeline
from ...system.text import counted, free, percent, seconds, size, table
from .reasons import (
    baseline,
    best_of_each,
    change,
    faster,
    helps,
    on_one_device,
    path_shares,
    sections,
    waited,
)
from .statistics import device_busy, hidden, phases

_MOST_REASONS = 12
_MOST_STRETCHES = 12
_WIDEST = 110


def explain(
    plan: Plan,
    timeline: Timeline | None = None,
    measured_single: float | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return the report on a plan: baseline, bound, prediction, measurement, bytes moved, devices, candidates,
    critical path with waits, reasons, and the change of hardware or cap that would help most.

    timeline: a measured call.
    measured_single: measured seconds of the best single device.
    notes: sentences of the caller, shown below the head.
    """
    plan = plan.printable
    costed, machine = plan.costed, plan.costed.machine
    timed = timeline if timeline and not timeline.needs_slow_down else None
    count = counted(len(costed.graph.tasks), "task")
    if machine.queued:
        count += f" in {counted(len(plan.placed), 'cluster')}"
    # A graph file has no batch.
    split = costed.graph.split or ("batch not split" if machine.queued else "")
    head = ", ".join(filter(None, (f"{costed.graph.name}: {count}", f"placed by {plan.policy}", split)))
    blocks = [
        "\n".join([head, *([f"[{machine.label}]"] if machine.label else []), *notes]),
        _numbers(plan, timeline, measured_single),
        _devices(plan, timed),
        *([_phases(plan, timed)] if plan.words.training else []),
        *([_candidates(plan)] if plan.candidates else []),
        *filter(None, [on_one_device(plan)]),
        _path(plan),
        *([_reasons(plan)] if plan.placed else []),
        *([helps(plan)] if plan.makespan else []),
    ]
    return "\n\n".join(blocks) + "\n"


def _numbers(plan: Plan, timeline: Timeline | None, measured_single: float | None) -> str:
    rows: list[tuple[str, str, str]] = []
    single, graph, queued = baseline(plan), plan.costed.graph, plan.costed.machine.queued
    if single:
        strict = single == plan.best_single
        note = f"all on {single[0]}" if strict else f"{single[0]}: the rest is what cannot run there"
        note += f"; measured {seconds(measured_single)}" if measured_single and strict else ""
        rows.append(("best single device", seconds(single[1]), note))
    else:
        rows.append(("best single device", "-", "no device can run it all alone"))
    if plan.lower_bound:
        note = "no plan of this graph on this machine is shorter"
        rows.append(("lower bound", seconds(plan.lower_bound), note))
    notes = [f"gap to the bound {percent(plan.gap)}"] if plan.lower_bound else []
    if single and plan.makespan:
        notes.append(faster(single[1] / plan.makespan))
    rows.append(("predicted", seconds(plan.makespan), "; ".join(notes)))
    if plan.costed.call_s and queued:
        whole = seconds(plan.makespan + plan.costed.call_s)
        note = f"of torch.compile's guards and arguments: {whole} in all"
        rows.append(("and a call's own", seconds(plan.costed.call_s), note))
    if timeline:
        rows.append(_measured(plan, timeline, measured_single))
    elif queued:
        rows.append(("measured", "-", "not recorded yet"))
    if graph.state and queued:
        rows.append(_weights(plan))
    rows.append(("moved", size(plan.moved), f"{counted(len(plan.transfers), 'transfer')} in each call"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c}".rstrip() for a, b, c in rows)


def _measured(plan: Plan, timeline: Timeline, measured_single: float | None) -> tuple[str, str, str]:
    """Return the row of measured and predicted time; refused if emulated work was too late."""
    slow, late = plan.costed.machine.stretch, percent(timeline.late)
    if timeline.needs_slow_down:
        enough = math.ceil(timeline.needs_slow_down)
        advice = f"needs slow_down ≥ {enough}"
        if slow >= enough:
            advice = f"record it again, the clock is {slow:g} × now"
        return "measured", "refused", f"emulated work was {late} late: {advice}"
    expected, notes = plan.makespan * slow, []
    promised = timeline.predicted.makespan if timeline.predicted else expected
    if abs(promised - expected) > 0.005 * expected:
        notes.append(
            f"{change(timeline.makespan / promised - 1)} against {seconds(promised)}, predicted for the programs that "
            "ran: forward and backward, weights copied only when they have changed"
        )
    else:
        note = f"{change(timeline.makespan / expected - 1)} against predicted" if expected else ""
        notes.append(note + (f" × {slow:g}, by which its clock is slowed" if slow != 1 else ""))
    if measured_single and timeline.makespan:
        notes.append(f"{faster(measured_single / timeline.makespan)}, measured")
    if timeline.late >= 0.005:
        notes.append(f"emulated work up to {late} late")
    return "measured", seconds(timeline.makespan), "; ".join(notes)


def _weights(plan: Plan) -> tuple[str, str, str]:
    """Return the row of the model's bytes of state, and their places."""
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
    return "weights", size(total), "; ".join((f"live on {', '.join(living)}", *more))


def _devices(plan: Plan, timeline: Timeline | None) -> str:
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
    return table(list(zip(*shown)), right=range(1, len(shown)))


def _phases(plan: Plan, timeline: Timeline | None) -> str:
    """Return the phases of a training step as predicted and, if the call was measured in time, as measured."""
    sides = {"predicted": plan.timeline(), **({"measured": timeline} if timeline else {})}
    by_side = {side: {phase.name: phase for phase in phases(plan, each)} for side, each in sides.items()}
    rows = [("phase", *(f"{what} {side}" for side in sides for what in ("under way", "adds", "of all")))]
    for name in PHASES:
        row = [name]
        for side, each in sides.items():
            phase = by_side[side].get(name)
            share = percent(phase.adds / (each.makespan or 1.0)) if phase else "-"
            row += [seconds(phase.span), seconds(phase.adds), share] if phase else ["-"] * 3
        if any(name in by_name for by_name in by_side.values()):
            rows.append(tuple(row))
    head = "how the time divides; under way: its clusters or copies, adds: while none of a phase above are"
    text = f"{head}\n{table(rows, right=range(1, len(rows[0])))}"
    if any("reduction" in by_name for by_name in by_side.values()):
        shares = ", ".join(f"{percent(hidden(plan, each))} as {side}" for side, each in sides.items())
        text += f"\nhidden behind the backward: {shares} of the time in which gradients are copied and summed"
    return text


def _candidates(plan: Plan) -> str:
    rows = [("candidate", "split", "predicted", "against chosen", "note")]
    for candidate in best_of_each(plan):
        if candidate.makespan is None:
            rows.append((candidate.policy, candidate.split, "-", "-", candidate.note or "not feasible"))
            continue
        more = change(candidate.makespan / plan.makespan - 1 if plan.makespan else 0.0)
        rows.append((candidate.policy, candidate.split, seconds(candidate.makespan), more, candidate.note))
    if not any(row[1] for row in rows[1:]):
        return table([(name, *rest) for name, _, *rest in rows], right=(1, 2), widest=72)
    return table(rows, right=(2, 3), widest=72)


def _path(plan: Plan) -> str:
    parts = sections(plan)
    longest = sorted(parts, key=lambda part: part.start - part.end)[:_MOST_STRETCHES]
    rows = [("from", "to", "where", "what", "waited for")]
    for part in sorted(longest, key=lambda part: (part.start, part.end)):
        why = waited(plan, part.steps[0]) if part.steps else ""
        rows.append((seconds(part.start), seconds(part.end), part.where, part.what, why))
    lines = [path_shares(plan), table(rows, right=(0, 1), widest=64)]
    if len(longest) < len(parts):
        lines.append(f"… the {len(longest)} longest of {len(parts)} stretches")
    return "\n".join(lines)


def _reasons(plan: Plan) -> str:
    longest = sorted(plan.placed, key=lambda placed: (placed.start - placed.end, placed.start))[
        :_MOST_REASONS
    ]
    rows = [("cluster", "device", "takes", "slack", "waited for", "why there")]
    for placed in longest:
        number = plan.critical.number[placed.cluster]
        times = seconds(placed.end - placed.start), seconds(plan.critical.slack[number])
        name, why = plan.words.cluster(placed.cluster), plan.reason[placed.cluster].text
        rows.append((name, placed.device, *times, waited(plan, number), why))
    head = f"why each cluster is where it is (the {len(longest)} longest of {len(plan.placed)})"
    return f"{head}\n{table(rows, right=(2, 3), widest=_WIDEST)}"
