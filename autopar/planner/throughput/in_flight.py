"""What calls in flight keep, and how far apart they must begin for it to fit."""

from __future__ import annotations

from ...ir.plan import Plan

TRIED = 16
"""Periods tried from the shortest to one call after the other, before the first that fits is halved towards."""
HALVES = 8
"""Times that it is."""
TICKS = 10**12
"""Of a period: what ends as another begins, but for rounding, is gone by then."""


def apart(plan: Plan, least: float) -> float:
    """The shortest period found, from `least` to the makespan, in seconds, at which caps hold."""
    if fits(plan, least):
        return least
    short, long = least, plan.makespan
    for step in range(1, TRIED):
        period = least * (plan.makespan / least) ** (step / TRIED)
        if fits(plan, period):
            long = period
            break
        short = period
    for _ in range(HALVES):
        middle = (short + long) / 2
        short, long = (short, middle) if fits(plan, middle) else (middle, long)
    return long


def fits(plan: Plan, period: float) -> bool:
    """Whether caps hold with a call begun every `period` seconds, each as in the plan. O(n log n) for n changes."""
    if period <= 0:
        return True
    for memory in plan.memory:
        if memory.cap is None:
            continue
        base = min((level for _, level in memory.steps), default=0)
        changes: list[tuple[int, int]] = []
        always = base
        for (start, level), (end, _) in zip(memory.steps, (*memory.steps[1:], (plan.makespan, 0))):
            begin = round(start / period * TICKS)
            whole, rest = divmod(max(0, round(end / period * TICKS) - begin), TICKS)
            begin %= TICKS
            always += whole * (level - base)
            if begin + rest > TICKS:
                always += level - base
                changes += [(begin + rest - TICKS, base - level), (begin, level - base)]
            else:
                changes += [(begin, level - base), (begin + rest, base - level)]
        peak = always
        for _, change in sorted(changes):
            always += change
            peak = max(peak, always)
        if peak > memory.cap:
            return False
    return True
