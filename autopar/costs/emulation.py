"""The slow-down of a declared clock: so slow that this machine keeps up with the chips that it stands in for."""

from __future__ import annotations

from dataclasses import replace

from ..ir.device import Device
from ..ir.machine import Machine
from ..ir.plan import Plan
from .detect import detect
from .work import main_dtype, touched

SHORTEST_S = 5e-3
"""The median run should last this long: sleeping to the millisecond is then well within 1 %."""
MARGIN = 2.0
"""Safety factor: real computations may take so many times their estimate. This machine is seldom ours alone."""
NOTICEABLE = 0.001
"""Clusters and copies below this share of the makespan decide nothing about the clock."""


def slow_down_for(plan: Plan, stand_in: Machine) -> float:
    """The smallest slow-down S, at least 1, at which no step of the plan is expected to be late.

    `stand_in` is the real machine, whose host computes for all lanes the plan uses at once. S is the largest
    of real seconds × `MARGIN` ÷ modelled seconds over runs and copies of a noticeable share of the makespan,
    and what makes the median noticeable run last `SHORTEST_S`. Linear in tasks.
    """
    graph, costed, machine = plan.costed.graph, plan.costed, plan.costed.machine
    real = stand_in.device[stand_in.host]
    lanes = len({placed.lane for placed in plan.placed})
    floor = NOTICEABLE * plan.makespan
    factors, lasting = [1.0], []
    for placed in plan.placed:
        modelled = costed.seconds(placed.cluster, placed.device) or 0.0
        if modelled <= 0 or modelled < floor:
            continue
        share = _share(machine.device[placed.device], real, lanes)
        tasks = (graph.task[name] for name in costed.cluster[placed.cluster].tasks)
        spent = sum(
            share
            * max(t.flops / real.flops_per_s(main_dtype(graph, t)), touched(graph, t) / real.bytes_per_s)
            + real.launch_s
            + lanes * real.dispatch_s
            for t in tasks
        )
        factors.append(MARGIN * spent / modelled)
        lasting.append(modelled)
    for transfer in plan.transfers:
        modelled = machine.link[transfer.src, transfer.dst].seconds(transfer.bytes)
        if modelled >= floor and modelled > 0:
            # A copy in memory reads and writes each byte, beside every lane that computes.
            factors.append(MARGIN * 2 * transfer.bytes * (lanes + 1) / real.bytes_per_s / modelled)
    if lasting:
        factors.append(SHORTEST_S / sorted(lasting)[len(lasting) // 2])
    return max(factors)


def with_slow_down(plan: Plan) -> Plan:
    """The plan with its machine's slow-down chosen, unless the user gave one or its clock is real."""
    machine = plan.costed.machine
    if machine.clock != "declared" or machine.slow_down > 0:
        return plan
    return slowed(plan, slow_down_for(plan, detect(["cpu"])))


def slowed(plan: Plan, slow_down: float) -> Plan:
    """The plan on a declared clock that runs `slow_down` times slower than the chips, rounded up to two digits."""
    machine, chosen = plan.costed.machine, _round_up(slow_down)
    if machine.clock != "declared" or machine.slow_down == chosen:
        return plan
    return replace(plan, costed=replace(plan.costed, machine=replace(machine, slow_down=chosen)))


def _share(device: Device, real: Device, lanes: int) -> float:
    """The time of a lane of `device` ÷ that of the whole real device, while `lanes` compute at once."""
    return max(lanes, real.threads * real.lanes / device.threads)


def _round_up(value: float) -> float:
    digits = 10.0 ** (len(str(int(value))) - 2)
    scaled = value / digits
    return (int(scaled) + (scaled > int(scaled))) * digits
