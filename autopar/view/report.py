"""`explain`: a plan, and what came of it, in words and tables."""

from __future__ import annotations

from collections.abc import Sequence

from ..plans import Placed, Plan, Reason
from ..reduction import PHASES
from ..tables import counted, percent, seconds, size, table
from ..timeline import Timeline
from .critical import Critical, critical
from .facts import device_busy
from .names import alternative, baseline, change, faster, slow_down, stretches
from .reduction import hidden, phases

_MOST_REASONS = 12
_PHASE_COLUMNS = ("from", "to", "under way", "adds", "of all")
_MOST_STRETCHES = 12


def explain(
    plan: Plan,
    timeline: Timeline | None = None,
    measured_single: float | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The report on a plan: baseline, bound, prediction, measurement, bytes moved, devices, candidates,
    path, reasons.

    `timeline` is a measured call; `measured_single` the measured seconds of the best single device;
    `notes` are sentences of the caller's own, put under the head.
    """
    costed, machine = plan.costed, plan.costed.machine
    found = critical(plan)
    split = costed.graph.split or "batch not split"
    count = f"{counted(len(costed.graph.tasks), 'task')} in {counted(len(plan.placed), 'run')}"
    head = f"{costed.graph.name}: {count}, placed by {plan.policy}, {split}"
    blocks = [
        "\n".join([head, *([f"[{machine.label}]"] if machine.label else []), *notes]),
        _numbers(plan, timeline, measured_single),
        _devices(plan, timeline),
        *([_phases(plan, timeline)] if plan.words.training else []),
        *([_candidates(plan)] if plan.candidates else []),
        *([_single(plan)] if len({placed.device for placed in plan.placed}) == 1 else []),
        _path(plan, found),
        *([_reasons(plan, found)] if plan.reasons else []),
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
        rows.append(
            ("lower bound", seconds(plan.lower_bound), "no plan of this graph on this machine is shorter")
        )
    if plan.bound_once > plan.lower_bound:
        rows.append(
            ("each task once", seconds(plan.bound_once), "no plan that computes each task once is shorter")
        )
    gap = f"gap to the bound {percent(plan.gap)}" if plan.lower_bound else ""
    gain = faster(single[1] / plan.makespan) if single and plan.makespan else ""
    rows.append(("predicted", seconds(plan.makespan), "; ".join(filter(None, (gap, gain)))))
    if timeline and timeline.needs_slow_down:
        note = f"emulated work was {percent(timeline.late)} late: needs slow_down ≥ {timeline.needs_slow_down:.3g}"
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
    else:
        rows.append(("measured", "-", "not run yet"))
    count = len(plan.transfers)
    rows.append(("moved", size(plan.moved), f"{count} transfer{'' if count == 1 else 's'} in each call"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c}".rstrip() for a, b, c in rows)


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
                "-" if cap is None else _free(1 - most / cap) if cap else "0 %",
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


def _free(share: float) -> str:
    """A share that is free, which is all of it where nothing is held alone."""
    return "> 99 %" if 0.995 <= share < 1 else percent(share)


def _candidates(plan: Plan) -> str:
    rows = [("candidate", "split", "predicted", "against chosen", "note")]
    order = sorted(plan.candidates, key=lambda c: (c.makespan is None, c.makespan or 0.0))
    for candidate in order:
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
    total = plan.makespan or 1.0
    waits = max(0.0, plan.makespan - found.compute_s - found.transfer_s)
    shares = f"{percent(found.compute_s / total)} compute, {percent(found.transfer_s / total)} transfer"
    lines = [
        f"critical path: {shares}, {percent(waits / total)} waiting; "
        "nothing on it can be late without the end being late"
    ]
    parts = stretches(plan, found)
    rows = [("from", "to", "where", "what")]
    shown = parts
    if len(parts) > _MOST_STRETCHES:
        longest = sorted(range(len(parts)), key=lambda i: (parts[i].start - parts[i].end, i))[
            :_MOST_STRETCHES
        ]
        shown = [parts[index] for index in sorted(longest)]
    for part in shown:
        rows.append((seconds(part.start), seconds(part.end), part.where, part.what))
    lines.append(table(rows, right=(0, 1), widest=64))
    if len(shown) < len(parts):
        lines.append(f"… the {len(shown)} longest of {len(parts)} stretches")
    return "\n".join(lines)


def _reasons(plan: Plan, found: Critical) -> str:
    slack = {step.run: found.slack[i] for i, step in enumerate(found.steps) if isinstance(step, Placed)}
    big = sorted(plan.placed, key=lambda placed: (placed.start - placed.end, placed.start))
    rows = [("run", "device", "takes", "slack", "why", "next best")]
    for placed in [placed for placed in big if placed.run in plan.reason][:_MOST_REASONS]:
        reason = plan.reason[placed.run]
        rows.append(
            (
                plan.words.run(placed.run),
                placed.device,
                seconds(placed.end - placed.start),
                seconds(slack[placed.run]),
                reason.text,
                _next_best(placed, reason),
            )
        )
    if len(rows) == 1:
        return "no reasons were kept"
    more = f"why each run is where it is (the {len(rows) - 1} longest of {len(plan.placed)})"
    return more + "\n" + table(rows, right=(2, 3), widest=96)


def _next_best(placed: Placed, reason: Reason) -> str:
    own = next((c.end for c in reason.choices if c.device == placed.device), None)
    others = [(c.end, c.device) for c in reason.choices if c.device != placed.device and c.end is not None]
    if not others:
        refused = next((c for c in reason.choices if c.device != placed.device and c.why), None)
        return f"{refused.device}: {refused.why}" if refused else ""
    end, device = min(others)
    if own is None:
        return f"{device} {seconds(end)}"
    return (
        f"{device}, {seconds(end - own)} later" if end >= own else f"{device}, {seconds(own - end)} earlier"
    )
