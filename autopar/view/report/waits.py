"""What a step waited for, in words."""

from __future__ import annotations

from ...ir.critical_path import Critical
from ...ir.plan import Plan
from ...ir.steps import Placed, Transfer
from ...text.tables import percent, seconds


def waited(plan: Plan, found: Critical, number: int) -> str:
    """What ended last of all that a step waited for, and how long it was ready before: `v0 from cpu`, `t3`, `lane
    cuda:0/0, busy with t2, 1.2 ms`; empty for what begins at once."""
    wait, step = found.last[number], found.steps[number]
    if wait is None:
        return ""
    before = found.steps[wait.step]
    late = step.start - found.ready(number)
    if wait.kind in ("data", "order") or late <= 1e-9 * plan.makespan:
        return _named(plan, before)
    if wait.kind == "wire" and isinstance(step, Transfer):
        wire = plan.costed.machine.link[step.src, step.dst].wire or ""
        # A link that shares its wire with none is called by its ends.
        held = "the link" if " → " in wire else f"wire {wire}"
    else:
        held = f"lane {step.lane}"
    return f"{held}, busy with {_named(plan, before)}, {seconds(late)}"


def _named(plan: Plan, step: Placed | Transfer) -> str:
    if isinstance(step, Placed):
        return plan.words.run(step.run)
    return f"{plan.words.value(step.value)} from {step.src}"


def shares(plan: Plan, found: Critical) -> list[str]:
    """How the time of the critical path divides, a sentence a line."""
    total = plan.makespan or 1.0
    busy = found.busy_s
    waits = max(0.0, plan.makespan - found.compute_s - found.transfer_s)
    lines = [
        f"critical path: {percent(found.compute_s / total)} compute, {percent(found.transfer_s / total)} transfer, "
        f"{percent(waits / total)} waiting; nothing on it can be late without the end being late"
    ]
    held = {
        "lane": busy.get(("compute", "lane"), 0.0),
        "wire": busy.get(("transfer", "wire"), 0.0),
        "queue": busy.get(("transfer", "lane"), 0.0),
    }
    parts = [
        f"{percent(time / total)} only for keeping a {what} busy" for what, time in held.items()
        if time > 0.005 * total
    ]  # fmt: skip
    return [*lines, f"{', '.join(parts)} that the next step needed"] if parts else lines
