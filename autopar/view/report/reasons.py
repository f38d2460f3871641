"""Why single clusters are where they are, what they waited for, and what one change would bring."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.critical_path import Critical
from ...ir.plan import Choice, Plan, Reason
from ...ir.steps import Placed, Transfer
from ...planner.what_if import changes
from ...text.tables import meant, percent, seconds, table

_MOST_CHANGES = 6


def explain_clusters(plan: Plan, names: Iterable[str]) -> str:
    """For each cluster that a name or a glob of names means: where and when it is, what it waited for, when it would
    end on each device with the rest of the plan as it is, and why it is here.

    Raises PlanError for a name that no cluster has.
    """
    found = plan.critical
    chosen: dict[str, None] = {}
    for name in names:
        complaint = f"{name!r} is no task of {plan.costed.graph.name!r}"
        chosen |= dict.fromkeys(meant(name, plan.place, complaint))
    blocks = []
    for cluster in sorted(chosen, key=lambda cluster: found.number[cluster]):
        step, number = plan.place[cluster], found.number[cluster]
        late = "on the critical path" if number in found.on_path else f"slack {seconds(found.slack[number])}"
        lanes, span = ", ".join(step.lanes), f"{seconds(step.start)} → {seconds(step.end)}"
        lines = [f"{plan.words.cluster(cluster)} on {lanes}: {span}, {late}"]
        lines.append(f"  waited for {waited(plan, found, number) or 'nothing'}")
        reason = plan.reason.get(cluster)
        if reason:
            lines += [f"  {line}" for line in (*_choices(step.device, reason), reason.text)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


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
    return table(rows, right=(1, 2, 3), widest=72).splitlines()


def choices(device: str, reason: Reason) -> list[tuple[Choice, str]]:
    """The choices that a cluster on `device` had, its own first, then by end; with how much later it would end
    there."""
    order = sorted(reason.choices, key=lambda c: (c.device != device, c.end is None, c.end or 0.0))
    own = next((choice.end for choice in order if choice.device == device), None)
    return [(choice, "chosen" if choice.device == device else against(choice, own)) for choice in order]


def against(choice: Choice, own: float | None) -> str:
    """When a cluster would end on a device against when it does: `+1.2 ms`, `−0.3 ms`."""
    if choice.end is None or own is None:
        return "-"
    late = choice.end - own
    if abs(late) <= 1e-9 * max(choice.end, own):
        return "0 s"
    return f"{'+' if late > 0 else '−'}{seconds(abs(late))}"


def helps(plan: Plan) -> str:
    """The one change of hardware or cap that would shorten the plan most, what came next, and the predictions."""
    found = changes(plan)
    what = "makespan" if plan.period is None else "period"
    reached = plan.makespan if plan.period is None else plan.period
    if not found:
        return f"No single change of hardware or cap that was tried would shorten the {what}."
    rows = [("change", what, "against now")]
    for change in found[:_MOST_CHANGES]:
        rows.append((change.what, seconds(change.seconds), f"−{percent(1 - change.seconds / reached)}"))
    best = found[0]
    return (
        f"The one change that would help most: {best.what}, from {seconds(reached)} to {seconds(best.seconds)} or less "
        f"(planned again, each alone)\n{table(rows, right=(1, 2), widest=64)}"
    )


def waited(plan: Plan, found: Critical, number: int) -> str:
    """What ended last of all that a step waited for, and how long it was ready before: `v0 from cpu`, `t3`, `lane
    cuda:0/0, busy with t2, 1.2 ms`; empty for what begins at once."""
    wait, step = found.last[number], found.steps[number]
    if wait is None:
        return ""
    before = found.steps[wait.step]
    if isinstance(before, Placed):
        named = plan.words.cluster(before.cluster)
    else:
        named = f"{plan.words.value(before.value)} from {before.src}"
    late = step.start - found.ready(number)
    if wait.kind in ("data", "order") or late <= 1e-9 * plan.makespan:
        return named
    held = f"lane {step.lane}"
    if wait.kind == "wire" and isinstance(step, Transfer):
        wire = plan.costed.machine.link[step.src, step.dst].wire or ""
        # A link that shares its wire with none is called by its ends.
        held = "the link" if " → " in wire else f"wire {wire}"
    return f"{held}, busy with {named}, {seconds(late)}"


def path_shares(plan: Plan, found: Critical) -> list[str]:
    """How the time of the critical path divides, a sentence a line."""
    total = plan.makespan or 1.0
    waits = max(0.0, plan.makespan - found.compute_s - found.transfer_s)
    compute, transfer, waiting = (percent(s / total) for s in (found.compute_s, found.transfer_s, waits))
    line = f"critical path: {compute} compute, {transfer} transfer, {waiting} waiting; "
    line += "nothing on it can be late without the end being late"
    held = {
        "lane": found.busy_s.get(("compute", "lane"), 0.0) / total,
        "wire": found.busy_s.get(("transfer", "wire"), 0.0) / total,
        "queue": found.busy_s.get(("transfer", "lane"), 0.0) / total,
    }
    kept = {what: share for what, share in held.items() if share > 0.005}
    parts = [f"{percent(share)} only for keeping a {what} busy" for what, share in kept.items()]
    return [line, f"{', '.join(parts)} that the next step needed"] if parts else [line]
