"""The decision whether the first run of a program is compared with eager."""

from __future__ import annotations

import logging

from ..capture import Captured
from ..ir.graph import LOCAL
from ..ir.plan import Plan
from ..system.text import seconds
from .options import Options

log = logging.getLogger("autopar")

LONGEST_S = 10.0
"""Predicted seconds on one device above which the first check does not run eager."""


def wanted(plan: Plan, runs: Plan, captured: Captured, options: Options) -> bool:
    """Return True if a first run can, and by its options should, be compared with eager; else log why not.
    `runs`: the plan that runs for `plan`, such as that of its forward."""
    machine = plan.costed.machine
    alone_s = dict(plan.singles).get(machine.host, 0.0)
    devices = _drawn_elsewhere(runs, str(captured.home))
    if options.batch_norm == "per_part" and plan.costed.graph.split:
        why = 'eager\'s BatchNorm is that of the full batch; batch_norm="full" can be checked'
    elif devices:
        generators = f"the generators of {', '.join(sorted(devices))}"
        why = f"random numbers come from {generators}, in the order of the plan; eager's are those of {captured.home}"
    elif options.check == "always":
        return True
    elif alone_s is None:
        why = f'eager does not fit on {machine.host} alone; check="always" insists'
    elif machine.clock == "real" and alone_s > LONGEST_S:
        why = f'eager would take about {seconds(alone_s)}; check="always" insists'
    else:
        return True
    log.info("check skipped: %s", why)
    return False


def _drawn_elsewhere(plan: Plan, home: str) -> set[str]:
    """Return the torch devices that draw random numbers if these numbers differ from eager's on `home`:
    because of other generators, parts that draw independently, or another order."""
    costed = plan.costed
    drawing = [task.name for task in costed.graph.tasks if task.random == LOCAL]
    order = [name for placed in plan.placed for name in costed.cluster[placed.cluster].tasks]
    place = costed.machine.device
    devices = {place[plan.place[costed.cluster_of[name]].device].torch_device for name in drawing}
    parts = any(costed.graph.task[name].part for name in drawing)
    drawn = set(drawing)
    alike = not parts and devices <= {home} and [name for name in order if name in drawn] == drawing
    return set() if alike else devices
