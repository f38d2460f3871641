"""`explain`: a plan, and what came of it, in words and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...ir.critical_path import Critical
from ...ir.phases import PHASES
from ...ir.plan import Plan
from ...ir.timeline import Timeline
from ...text.tables import counted, free, percent, seconds, size, table
from .facts import device_busy
from .names import alternative, baseline, best_of_each, change, faster, slow_down, stretches
from .phases import hidden, phases
from .waits import shares, waited
from .why import against, helps

_MOST_REASONS = 12
_PHASE_COLUMNS = ("from", "to", "under way", "adds", "of all")
_MOST_STRETCHES = 12
_MOST_DEVICES = 8
_WIDEST = 110


def explain(
    plan: Plan,
    timeline: Timeline | None = None,
    measured_single: float | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The report on a plan: baseline, bound, prediction, measurement, bytes moved, devices, candidates,
    path with its waits, reasons, and the one change of hardware or cap that would help most.

    `timeline` is a measured call; `measured_single` the measured seconds of the best single device;
    `notes` are sentences of the caller's own, put under the head.
    """
    costed, machine = plan.costed, plan.costed.machine
    found = plan.critical
    count = counted(len(costed.graph.tasks), "task")
    if machine.queued:
        count += f" in {counted(len(plan.placed), 'run')}"
    # A graph file has no batch.
    split = costed.graph.split or ("batch not split" if machine.queued else "")
    head = ", ".join(filter(None, (f"{costed.graph.name}: {count}", f"placed by {plan.policy}", split)))
    blocks = [
        "\n".join([head, *([f"[{machine.label}]"] if machine.label else []), *notes]),
        _numbers(plan, timeline, measured_single),
        _devices(plan, timeline),
        *([_phases(plan, timeline)] if plan.words.training else []),
        *([_candidates(plan)] if plan.candidates else []),
        *([_single(plan)] if len({placed.device for placed in plan.placed}) == 1 else []),
        _path(plan, found),
        *([_reasons(plan, found)] if plan.reasons else []),
        *([helps(plan)] if plan.makespan else []),
    ]
    return "\n\n".join(blocks) + "\n"


def _numbers(plan: Plan, timeline: Timeline | None, measured_single: float | None) -> str:
    rows: list[tuple[str, str, str]] = []
    single = baseline(plan)
    if single:
        strict = single == plan.best_single
        note = f"measured {seconds(measured_single)}" if measured_single and strict else ""
        where = f"all on {single[0]}" if strict else f"{single[0]}: the rest is what cannot run there"
        rows.append(("best single device", seconds(single[1]), "; ".join(filter(None, (where, note)))))
    else:
        rows.append(("best single device", "-", "no device can run it all alone"))
    if plan.lower_bound:
        shorter = "is shorter" if plan.period is None else "has a shorter period"
        rows.append(
            ("lower bound", seconds(plan.lower_bound), f"no plan of this graph on this machine {shorter}")
        )
    if plan.bound_once > plan.lower_bound:
        rows.append(
            ("each task once", seconds(plan.bound_once), "no plan that computes each task once is shorter")
        )
    gap = f"gap to the bound {percent(plan.gap)}" if plan.lower_bound else ""
    gain = faster(single[1] / plan.makespan) if single and plan.makespan else ""
    if plan.period is not None:
        rows.append(("period", seconds(plan.period), f"a call may begin so often; {gap}" if gap else ""))
        gap, gain = "from the start of a call to its end", ""
    rows.append(("predicted", seconds(plan.makespan), "; ".join(filter(None, (gap, gain)))))
    if timeline and timeline.needs_slow_down:
        enough = math.ceil(timeline.needs_slow_down)
        note = f"emulated work was {percent(timeline.late)} late: "
        now = slow_down(plan)
        note += (
            f"record it again, the clock is {now:g} × now" if now >= enough else f"needs slow_down ≥ {enough}"
        )
        rows.append(("measured", "refused", note))
    elif timeline:
        expected = plan.makespan * slow_down(plan)
        own = timeline.predicted.makespan if timeline.predicted else expected
        note = f"{change(timeline.makespan / expected - 1)} against predicted" if expected else ""
        if abs(own - expected) > 0.005 * expected:
            note = (
                f"{change(timeline.makespan / own - 1)} against {seconds(own)}, predicted for the programs that ran: "
                "forward and backward, weights copied only when they have changed"
            )
        elif slow_down(plan) != 1:
            note += f" × {slow_down(plan):g}, by which its clock is slowed"
        if measured_single and timeline.makespan:
            note += f"; {faster(measured_single / timeline.makespan)}, measured"
        if timeline.late >= 0.005:
            note += f"; emulated work up to {percent(timeline.late)} late"
        rows.append(("measured", seconds(timeline.makespan), note))
    elif plan.costed.machine.queued:
        rows.append(("measured", "-", "not run yet"))
    if plan.costed.graph.state and plan.costed.machine.queued:
        rows.append(("weights", *_weights(plan)))
    count = len(plan.transfers)
    rows.append(("moved", size(plan.moved), f"{count} transfer{'' if count == 1 else 's'} in each call"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c}".rstrip() for a, b, c in rows)


def _weights(plan: Plan) -> tuple[str, str]:
    """The bytes of a model's state, and where it lives."""
    graph, home = plan.costed.graph, plan.costed.home
    living: dict[str, dict[str, int]] = {}
    for name in graph.state:
        value = graph.value[name]
        own = living.setdefault(home[name], {})
        own[value.storage] = max(own.get(value.storage, 0), value.bytes)
    total = sum(sum(own.values()) for own in living.values())
    copied = sorted({device for name, device in plan.resident if device != home[name]})
    more = [f"copies on {', '.join(copied)}"] if copied else []
    more += ["brought after each step of the optimizer"] if graph.changing else []
    more += ["brought in each call to who reads them elsewhere"] if graph.streamed else []
    return size(total), "; ".join((f"live on {', '.join(living)}", *more))


def _devices(plan: Plan, timeline: Timeline | None) -> str:
    if timeline and timeline.needs_slow_down:
        timeline = None
    busy = device_busy(plan.timeline())
    real = device_busy(timeline) if timeline else {}
    memory = {item.device: item.peak for item in timeline.memory} if timeline else {}
    rows = [
        (
            "device",
            "busy",
            "measured",
            "runs",
            "gets",
            "sends",
            "peak memory",
            "measured",
            "cap",
            "free at peak",
        )
    ]
    for device in plan.costed.machine.devices:
        name, cap = device.name, device.memory_bytes
        peak = plan.peaks.get(name, 0)
        most = max(peak, memory.get(name, 0))
        rows.append(
            (
                name,
                percent(busy.get(name, 0.0)),
                percent(real[name]) if name in real else "-",
                str(sum(placed.device == name for placed in plan.placed)),
                size(sum(t.bytes for t in plan.transfers if t.dst == name)),
                size(sum(t.bytes for t in plan.transfers if t.src == name)),
                size(peak),
                size(memory[name]) if name in memory else "-",
                "none" if cap is None else size(cap),
                "-" if cap is None else free(1 - most / cap) if cap else "0 %",
            )
        )
    drop = () if timeline else (2, 7)
    kept = [tuple(cell for column, cell in enumerate(row) if column not in drop) for row in rows]
    return table(kept, right=range(1, len(kept[0])))


def _phases(plan: Plan, timeline: Timeline | None) -> str:
    """How the time divides, as predicted and, where the call was measured in time, as measured."""
    real = timeline if timeline and not timeline.needs_slow_down else None
    sides = [("", plan.timeline()), *([(" measured", real)] if real else [])]
    total = {side: each.makespan or 1.0 for side, each in sides}
    rows = [("phase", *(f"{what}{side}" for side, _ in sides for what in _PHASE_COLUMNS))]
    found = {side: {phase.name: phase for phase in phases(plan, each)} for side, each in sides}
    for name in PHASES:
        if not any(name in held for held in found.values()):
            continue
        row = [name]
        for side, held in found.items():
            phase = held.get(name)
            if phase is None:
                row += ["-"] * len(_PHASE_COLUMNS)
                continue
            times = [seconds(when) for when in (phase.start, phase.end, phase.span, phase.adds)]
            row += [*times, percent(phase.adds / total[side])]
        rows.append(tuple(row))
    shares = [
        f"{percent(hidden(plan, each))} as {'measured' if side else 'predicted'}" for side, each in sides
    ]
    lines = [
        "how the time divides; under way: its runs or copies, adds: while none of a phase above are",
        table(rows, right=range(1, len(rows[0]))),
    ]
    if any("reduction" in held for held in found.values()):
        lines.append(
            f"hidden behind the backward: {', '.join(shares)}: the share of the reduction (gradients copied to their "
            "sums, and summed) during which some device works on the backward"
        )
    return "\n".join(lines)


def _candidates(plan: Plan) -> str:
    rows = [("candidate", "split", "predicted", "against chosen", "note")]
    for candidate in best_of_each(plan):
        if candidate.makespan is None:
            rows.append((candidate.policy, candidate.split, "-", "-", candidate.note or "not feasible"))
            continue
        share = candidate.makespan / plan.makespan - 1 if plan.makespan else 0.0
        rows.append(
            (
                candidate.policy,
                candidate.split,
                seconds(candidate.makespan),
                change(share),
                candidate.note,
            )
        )
    if not any(row[1] for row in rows[1:]):
        return table([(name, *rest) for name, _, *rest in rows], right=(1, 2), widest=72)
    return table(rows, right=(2, 3), widest=72)


def _single(plan: Plan) -> str:
    device = plan.placed[0].device
    if len(plan.costed.machine.devices) == 1:
        return f"Everything is on {device}, the only device there is."
    other = alternative(plan)
    if other is None:
        return f"Everything is on {device}; no other candidate was feasible."
    lost = (other.makespan or 0.0) - plan.makespan
    if lost < 0 and other.note:
        taken = seconds(other.makespan or 0.0)
        return f"Everything is on {device}: {other.name} is predicted to take {taken}, but {other.note}."
    if lost <= 1e-6 * plan.makespan:
        return f"Everything is on {device}: no plan over several devices was found that takes less."
    return (
        f"Everything is on {device}: the best plan over several devices ({other.name}) would take "
        f"{seconds(other.makespan or 0.0)}, {seconds(lost)} more ({lost / plan.makespan * 100:+.1f} %), "
        "so splitting does not pay."
    )


def _path(plan: Plan, found: Critical) -> str:
    lines = shares(plan, found)
    parts = stretches(plan, found)
    rows = [("from", "to", "where", "what", "waited for")]
    shown = parts
    if len(parts) > _MOST_STRETCHES:
        longest = sorted(range(len(parts)), key=lambda i: (parts[i].start - parts[i].end, i))[
            :_MOST_STRETCHES
        ]
        shown = [parts[index] for index in sorted(longest)]
    for part in shown:
        why = waited(plan, found, part.steps[0]) if part.steps else ""
        rows.append((seconds(part.start), seconds(part.end), part.where, part.what, why))
    lines.append(table(rows, right=(0, 1), widest=64))
    if len(shown) < len(parts):
        lines.append(f"… the {len(shown)} longest of {len(parts)} stretches")
    return "\n".join(lines)


def _reasons(plan: Plan, found: Critical) -> str:
    big = sorted(plan.placed, key=lambda placed: (placed.start - placed.end, placed.start))
    devices = [device.name for device in plan.costed.machine.devices][:_MOST_DEVICES]
    each = [(placed, plan.reason[placed.run]) for placed in big if placed.run in plan.reason][:_MOST_REASONS]
    weighed = any(len(reason.choices) > 1 for _, reason in each)
    columns = tuple(f"on {device}" for device in devices) if weighed else ()
    rows = [("run", "device", "takes", "slack", "waited for", *columns, "why")]
    for placed, reason in each:
        by = {choice.device: choice for choice in reason.choices}
        own = by[placed.device].end if placed.device in by else None
        ends = [
            "here" if device == placed.device else against(by[device], own) if device in by else "-"
            for device in devices
        ]
        number = found.number[placed.run]
        rows.append(
            (
                plan.words.run(placed.run),
                placed.device,
                seconds(placed.end - placed.start),
                seconds(found.slack[number]),
                waited(plan, found, number),
                *(ends if weighed else ()),
                reason.text,
            )
        )
    if len(rows) == 1:
        return "no reasons were kept"
    head = f"why each run is where it is (the {len(rows) - 1} longest of {len(plan.placed)})"
    if weighed:
        head += "; on …: how much later it would itself end there, the rest of the plan as it is"
    return head + "\n" + table(rows, right=(2, 3, *range(5, 5 + len(columns))), widest=_WIDEST)
