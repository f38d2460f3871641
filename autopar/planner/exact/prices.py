"""What the work on all devices together takes, with a price for a second on each."""

from __future__ import annotations

from ..bounds.load import Load
from .model import Model, total

SCALE = 1000
"""Whole prices add up to about this: the solver has no fractions."""


def price(model: Model, load: Load) -> None:
    """Keep the schedule as long as its work at the prices that prove most (`load`).

    The cheapest device of each run is what must be paid; a dearer one takes of what is left, as reduced costs do, so
    that where the load is what makes a schedule long few runs have a choice.
    """
    problem = model.problem
    prices = [round(SCALE * own) for own in load.price.tolist()]
    lanes = [len(names) for names in problem.lane_names]
    least, more = 0, []
    for r in range(problem.runs):
        costs = [
            (prices[d] * lanes_taken * size, when)
            for d in model.on[r]
            for lanes_taken, size, when in model.modes[r, d]
        ]
        cheapest = min(cost for cost, _ in costs)
        least += cheapest
        more += [(cost - cheapest, when) for cost, when in costs if cost > cheapest]
    for d, own in enumerate(prices):
        least += own * lanes[d] * model.around(("device", d))
    paid = sum(own * count for own, count in zip(prices, lanes))
    if paid:
        model.cp.add(paid * model.makespan >= least + total(more))
