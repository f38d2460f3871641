"""The shortest schedule that wires keep when they serve first come, first served: rules of a model, and a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from ..bounds.critical_path import ways
from ..bounds.load import load
from ..model.instance import Instance
from ..model.simulator import Play, Schedule
from .model import Literal, Model, Units, solver
from .proof import built, read
from .result import Params
from .transfers import Transfers
from .windows import joined

UNITS = 100_000
"""Units that the best known schedule is long: one pass, as nothing is proven by it."""
CLOSE = 2e-3
"""Share above what was promised at which a schedule is taken to keep it."""


def sought(
    instance: Instance, start: Schedule, below: float, bound: float, params: Params, until: float
) -> Iterator[Schedule]:
    """Schedules of less than `below` seconds where wires serve first come, first served, sought near `start`.

    The first may have runs that wait for the sake of a wire, which they would not do; then one follows that has none
    and the same placement. `bound` is one on all schedules; `until` a time of the monotonic clock.
    """
    around = joined(instance, ways(instance, once=True))
    around = replace(around, length=max(around.length, bound))
    prices, left = load(instance, around), params.effort

    def ask(best: Play, placed: bool) -> Schedule | None:
        nonlocal left
        units, known, offered = Units(best.makespan, UNITS), around, None
        if placed:
            # Heads and tails in whole units may be a unit longer than the steps that make them, which leaves a pause.
            none = np.where(np.isfinite(around.seconds), 0.0, np.inf)
            known, offered = replace(around, head=none, tail=none, length=0.0), [(d,) for d in best.device]
        aim = units.floor(below / (1 + params.tolerance))
        model, transfers = built(instance, units, best, known, prices, aim, offered)
        _first_come(model, transfers)
        if placed:
            _no_pause(model, transfers)
        own = solver(left / 2, until)
        status = own.solve(model.cp)
        left -= own.response_proto.deterministic_time
        return read(model, transfers, own) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None

    first = ask(_served(instance, start), placed=False)
    if first:
        yield first
        best = _served(instance, first)
        if best.makespan > Play(instance, first).makespan * (1 + CLOSE):
            second = ask(best, placed=True)
            if second:
                yield second


def _served(instance: Instance, schedule: Schedule) -> Play:
    """A schedule whose wires serve first come, first served."""
    return Play(instance, replace(schedule, first_come=True))


@dataclass(frozen=True)
class _Sent:
    """A transfer from where its value was made: `ready` when it asks for its queue, `turn` its place among equals."""

    maker: int
    turn: tuple[int, int]
    ready: Any
    start: Any
    size: int
    when: Literal


def _first_come(model: Model, transfers: Transfers) -> None:
    """Let each queue take transfers in the order in which their values were made.

    Those that go on from a third device are left out. All transfers of two makers share one choice, so that there
    are fewer orders than without this rule.
    """
    earlier: dict[tuple[int, int], Literal] = {}
    for own in _sent(model, transfers).values():
        for one, other in combinations(sorted(own, key=lambda sent: (sent.maker, sent.turn)), 2):
            key = one.maker, other.maker
            if one.maker == other.maker or one.maker < 0:
                before: Literal = True
            elif key in earlier:
                before = earlier[key]
            else:
                before = model.literals.new(
                    f"{key[0]} before {key[1]}", model.best.end[key[0]] <= model.best.end[key[1]]
                )
                earlier[key] = before
                transfers.enforce(one.ready <= other.ready, before)
                transfers.enforce(other.ready <= one.ready, ~before)
            transfers.enforce(other.start >= one.start + one.size, before, one.when, other.when)
            if before is not True:
                transfers.enforce(one.start >= other.start + other.size, ~before, one.when, other.when)


def _no_pause(model: Model, transfers: Transfers) -> None:
    """Start everything as soon as what it waits for, or the step before it in its queue, has ended.

    For a model whose clusters stay where they are: a wire does not wait for a cluster that would do well to be late.
    """
    instance, device = model.instance, model.best.device
    for r, d in enumerate(device):
        moments = [0, *(model.end[q] for q in instance.before[r])]
        moments += [model.end[q] for q, other in enumerate(device) if other == d and q != r]
        for v in instance.reads[r]:
            for when, _, _, size in transfers.brings.get((v, d), ()):
                if when is True:
                    moments.append(transfers.start[v, d] + size)
        _one_of(model, model.start[r], moments)
    for own in _sent(model, transfers).values():
        for sent in own:
            if sent.when is True:
                others = [
                    other.start + other.size for other in own if other is not sent and other.when is True
                ]
                _one_of(model, sent.start, [sent.ready, *others])


def _sent(model: Model, transfers: Transfers) -> dict[int, list[_Sent]]:
    """The transfers of each queue."""
    found: dict[int, list[_Sent]] = {}
    for (v, target), brings in transfers.brings.items():
        maker = model.instance.maker[v]
        for when, via, queue, size in brings:
            if via < 0 <= queue and when is not False:
                ready = model.end[maker] if maker >= 0 else 0
                sent = _Sent(maker, (v, target), ready, transfers.start[v, target], size, when)
                found.setdefault(queue, []).append(sent)
    return found


def _one_of(model: Model, time: Any, moments: Sequence[Any]) -> None:
    causes = []
    for moment in moments:
        cause = model.cp.new_bool_var("")
        model.cp.add(time == moment).only_enforce_if(cause)
        causes.append(cause)
    model.cp.add_bool_or(causes)
