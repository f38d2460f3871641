"""How slow a declared clock must run, so that this machine can keep up with the chips it stands in for."""

from __future__ import annotations

from dataclasses import replace

from .cost import CostedGraph
from .machine import Machine
from .roofline import main_dtype, touched

SHORTEST_S = 5e-3
"""The median run should last this long: sleeping to the millisecond is then well within 1 %."""
MARGIN = 1.5
"""How much longer than estimated a real computation may take before it is late."""
NOTICEABLE = 0.01
"""Runs below this share of all the work decide nothing about the clock."""


def slow_down_for(costed: CostedGraph, stand_in: Machine) -> float:
    """The smallest slow-down S, in two digits, at which nothing is expected to be late.

    `stand_in` is the real machine (its first CPU is used); with n lanes computing at once each has 1/n of its
    rate. S is the largest, over runs and devices, of real seconds × `MARGIN` ÷ the chip's seconds, for runs
    of a noticeable share of the work; over copies, of a real copy's seconds ÷ the bus's; and what makes the
    median noticeable run last `SHORTEST_S`.
    """
    graph, machine = costed.graph, costed.machine
    real = stand_in.device[stand_in.host]
    share = max(1, sum(device.lanes for device in machine.devices))
    seconds = {}
    for task in graph.tasks:
        work = max(
            task.flops / real.flops_per_s(main_dtype(graph, task)),
            touched(graph, task) * 1.0 / real.bytes_per_s,
        )
        seconds[task.name] = work * share + real.launch_s + real.dispatch_s * share
    factors = [1.0]
    modelled = [min((s for s in run.seconds if s is not None), default=0.0) for run in costed.runs]
    floor = NOTICEABLE * sum(modelled)
    noticeable = sorted(span for span in modelled if span > 0 and span >= floor)
    for run, fastest in zip(costed.runs, modelled):
        if fastest >= floor and fastest > 0:
            factors.append(MARGIN * sum(seconds[task] for task in run.tasks) / fastest)
    for link in machine.links:
        factors.append(MARGIN * real_copy_share(link.bytes_per_s, real.bytes_per_s, share))
    if noticeable:
        factors.append(SHORTEST_S / noticeable[len(noticeable) // 2])
    return _round_up(max(factors))


def with_slow_down(costed: CostedGraph, stand_in: Machine) -> CostedGraph:
    """The costed graph with its machine's slow-down chosen, unless the user gave one or its clock is real."""
    machine = costed.machine
    if machine.clock != "declared" or machine.slow_down > 0:
        return costed
    return replace(costed, machine=replace(machine, slow_down=slow_down_for(costed, stand_in)))


def real_copy_share(bus: float, memory: float, lanes: int) -> float:
    """How many times longer than on a bus of `bus` bytes per second a copy takes in a memory of `memory`
    bytes per second (read and written) that `lanes` lanes share."""
    return bus / (memory / 2 / lanes)


def _round_up(value: float) -> float:
    digits = 10.0 ** (len(str(int(value))) - 2)
    scaled = value / digits
    return (int(scaled) + (scaled > int(scaled))) * digits
