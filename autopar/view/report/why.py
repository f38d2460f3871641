"""Why single runs are where they are, at length; and what one change would bring."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.plan import Choice, Plan, Reason
from ...planner.what_if import changes
from ...text.tables import meant, percent, seconds, table
from .waits import waited

_MOST_CHANGES = 6


def explain_runs(plan: Plan, names: Iterable[str]) -> str:
    """For each run that a name or a glob of names means: where and when it is, what it waited for, when it would end on
    each device with the rest of the plan as it is, and why it is here.

    Raises PlanError for a name that no run has.
    """
    found = plan.critical
    chosen: dict[str, None] = {}
    for name in names:
        complaint = f"{name!r} is no task of {plan.costed.graph.name!r}"
        chosen |= dict.fromkeys(meant(name, plan.place, complaint))
    blocks = []
    for run in sorted(chosen, key=lambda run: found.number[run]):
        step, number = plan.place[run], found.number[run]
        slack = found.slack[number]
        late = "on the critical path" if number in found.on_path else f"slack {seconds(slack)}"
        lanes = ", ".join(step.lanes)
        head = f"{plan.words.run(run)} on {lanes}: {seconds(step.start)} → {seconds(step.end)}, {late}"
        lines = [head, f"  waited for {waited(plan, found, number) or 'nothing'}"]
        reason = plan.reason.get(run)
        if reason:
            lines += [f"  {line}" for line in _choices(step.device, reason)] + [f"  {reason.text}"]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _choices(device: str, reason: Reason) -> list[str]:
    if len(reason.choices) < 2:
        return []
    rows = [("device", "inputs there", "starts", "ends", "")]
    own = next((choice.end for choice in reason.choices if choice.device == device), None)
    for choice in sorted(reason.choices, key=lambda c: (c.device != device, c.end is None, c.end or 0.0)):
        if choice.end is None:
            rows.append((choice.device, "-", "-", "-", choice.why))
        else:
            starts = seconds(max(choice.arrives, choice.free))
            late = "chosen" if choice.device == device else against(choice, own)
            rows.append((choice.device, seconds(choice.arrives), starts, seconds(choice.end), late))
    return table(rows, right=(1, 2, 3), widest=72).splitlines()


def against(choice: Choice, own: float | None) -> str:
    """When a run would end on a device against when it does: `+1.2 ms`, `−0.3 ms`."""
    if choice.end is None or own is None:
        return "-"
    late = choice.end - own
    return (
        "0 s"
        if abs(late) <= 1e-9 * max(choice.end, own)
        else f"{'+' if late > 0 else '−'}{seconds(abs(late))}"
    )


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
