"""The CP-SAT model of a problem: device and start of each cluster, and lower bounds on the work."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ortools.sat.python import cp_model

from ..bounds.critical_path import Floats, Paths
from ..model.instance import Instance
from ..model.simulator import Play

SCALE = 1_000
"""Sum of the prices as whole numbers: the solver has no fractions."""

Literal = Any
"""True, False, a Boolean variable or its negation."""


class TimeUnits:
    """Time discretised into units of `unit` seconds; every duration is rounded down.

    With starts rounded down too, a schedule in seconds is one in units, meets every constraint and is no
    longer: floor(s) + floor(p) ≤ floor(s + p). So the optimum in units is a lower bound in seconds.
    """

    def __init__(self, horizon: float, count: int) -> None:
        self.unit = horizon / count
        self.horizon = self.ceil(horizon)

    def floor(self, seconds: float) -> int:
        """Return the whole units in some seconds, with a tolerance for rounding. Limited to the horizon plus 1, since
        the solver's integers are limited."""
        return math.floor(min(seconds / self.unit * (1 + 1e-12), self.horizon + 1))

    def ceil(self, seconds: float) -> int:
        """Return the least number of units that covers some seconds."""
        return math.ceil(seconds / self.unit * (1 - 1e-12))

    def seconds(self, units: int) -> float:
        """Return units in seconds."""
        return units * self.unit


class _Literals:
    """Boolean variables of `cp` with hints."""

    def __init__(self, cp: cp_model.CpModel) -> None:
        self.cp = cp
        self._known: dict[int, bool] = {}
        self._made: dict[tuple[int, ...], Literal] = {}

    def new(self, name: str, hint: bool) -> Literal:
        """Create a variable with the value `hint` in the best known schedule."""
        variable = self.cp.new_bool_var(name)
        self.cp.add_hint(variable, hint)
        self._known[variable.index] = hint
        return variable

    def no(self, literal: Literal) -> Literal:
        """Return the negation."""
        return not literal if isinstance(literal, bool) else ~literal

    def any(self, literals: Iterable[Literal], name: str = "any") -> Literal:
        """Return a literal that is true if any of `literals` is."""
        some: dict[int, Literal] = {}
        for literal in literals:
            if literal is True:
                return True
            if literal is not False:
                some[literal.index] = literal
        if any(-1 - index in some for index in some):
            return True
        if len(some) < 2:
            return next(iter(some.values()), False)
        key = tuple(sorted(some))
        if key not in self._made:
            # The negation of variable i has the index -1 - i.
            found = self.new(name, any(self._known[i] if i >= 0 else not self._known[-1 - i] for i in some))
            self.cp.add_bool_or(*some.values(), ~found)
            for literal in some.values():
                self.cp.add_implication(literal, found)
            self._made[key] = found
        return self._made[key]

    def all(self, literals: Iterable[Literal]) -> Literal:
        """Return a literal that is true if all of `literals` are."""
        return self.no(self.any([self.no(literal) for literal in literals], "all"))


class _Use(NamedTuple):
    """Use of `amount` of a resource from `start` for `size` units if `when` holds; at least `head` units before and
    `tail` units after it."""

    start: Any
    size: int
    when: Literal
    amount: int
    head: int
    tail: int


class Model:
    """Variables of `cp`, in units of time.

    on[r][d]: cluster r is on device d.
    start[r], end[r]: times of cluster r.
    modes[r, d]: (lanes, units, literal) of its modes there.
    uses: uses of each resource.
    sent[v, d]: start of the last hop of value v to device d, if there is one (`transfer`).
    brings[v, d]: (literal, source of the hop or -1, copy queue, units) of its options, one of which holds.
    """

    def __init__(
        self,
        instance: Instance,
        units: TimeUnits,
        best: Play,
        paths: Paths,
        aim: int,
        offered: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Build the model of schedules of at most `aim` units, each cluster on a device `offered` to it (None: all
        allowed).

        Clusters with no offered device are left out. Of a part of the graph, only reads between its clusters
        count.
        """
        self.offered = instance.allowed if offered is None else offered
        self.whole = all(self.offered)
        self.instance, self.units, self.best, self.paths = instance, units, best, paths
        self.cp = cp_model.CpModel()
        self.literals = _Literals(self.cp)
        self.floor = units.floor(paths.length)
        self.horizon, self.aim = units.horizon, aim
        self.makespan = self.cp.new_int_var(min(self.floor, aim), aim, "makespan")
        self.cp.minimize(self.makespan)
        self.uses: dict[tuple[str, int], list[_Use]] = {}
        self.sent: dict[tuple[int, int], Any] = {}
        self.brings: dict[tuple[int, int], list[tuple[Literal, int, int, int]]] = {}
        self.on: list[dict[int, Literal]] = []
        self.modes: dict[tuple[int, int], list[tuple[int, int, Literal]]] = {}
        self.start: list[Any] = [None] * instance.clusters
        self.end: list[Any] = [None] * instance.clusters
        self._place()
        for r, row in enumerate(self.on):
            if row:
                self._time(r)
        for r, before in enumerate(instance.before):
            for p in before:
                if self.on[r] and self.on[p]:
                    self.cp.add(self.start[r] >= self.end[p])

    def _place(self) -> None:
        instance, grouped = self.instance, {}
        for r, offered in enumerate(self.offered):
            g = instance.group[r]
            row: dict[int, Literal] = {}
            if offered and g not in grouped:
                members = [m for m in (instance.members[g] if g >= 0 else [r]) if self.offered[m]]
                able = [d for d in offered if all(d in self.offered[m] and self._may(m, d) for m in members)]
                # If no device is short enough, the solver finds the model infeasible.
                able = able or [*offered[:1]]
                hints = [self.best.device[r] == d for d in able]
                if len(able) == 1:
                    row = {able[0]: True}
                elif len(able) == 2:
                    first = self.literals.new(f"{r} on {able[0]}", hints[0])
                    row = {able[0]: first, able[1]: ~first}
                else:
                    row = {d: self.literals.new(f"{r} on {d}", hint) for d, hint in zip(able, hints)}
                    self.cp.add_exactly_one(row.values())
                if g >= 0:
                    grouped[g] = row
            self.on.append(grouped[g] if offered and g >= 0 else row)

    def _may(self, r: int, d: int) -> bool:
        """Return True if a cluster can be on a device in a schedule no longer than the best known."""
        total = self.paths.head[r][d] + self.instance.seconds[r][d] + self.paths.tail[r][d]
        return total < math.inf and self.units.floor(total) <= self.aim

    def _time(self, r: int) -> None:
        instance, units, row = self.instance, self.units, self.on[r]
        head = {d: units.floor(self.paths.head[r][d]) for d in row}
        tail = {d: units.floor(self.paths.tail[r][d]) for d in row}
        start = self.cp.new_int_var(min(head.values()), self.horizon, f"start {r}")
        self.cp.add_hint(start, units.floor(self.best.start[r]))
        sizes = []
        for d, here in row.items():
            self.modes[r, d] = self._modes_of(r, d, here)
            for lanes, size, when in self.modes[r, d]:
                sizes.append((size, when))
                self.use(("device", d), start, size, when, lanes, head[d], tail[d])
        end = start + total(sizes)
        self.cp.add(start >= total([(head[d], here) for d, here in row.items()]))
        self.cp.add(self.makespan >= end + total([(tail[d], here) for d, here in row.items()]))
        self.start[r], self.end[r] = start, end
        if instance.dispatch[r]:
            size = units.floor(instance.dispatch[r])
            self.use(("host", 0), start, size, True, 1, min(head.values()), min(tail.values()))

    def _modes_of(self, r: int, d: int, here: Literal) -> list[tuple[int, int, Literal]]:
        """Return (lanes, units, when) for each mode of a cluster on a device."""
        modes = self.instance.modes.get((r, d), ())
        if len(modes) < 2:
            lanes = modes[0][0] if modes else 1
            return [(lanes, self.units.floor(self.instance.seconds[r][d]), here)]
        taken = 1 + len(self.best.more.get(r, ())) if self.best.device[r] == d else 0
        found = []
        for lanes, seconds in modes:
            when = self.literals.new(f"{r} on {lanes} of {d}", lanes == taken)
            found.append((lanes, self.units.floor(seconds), when))
        self.cp.add(sum(when for _, _, when in found) == here)
        return found

    def use(
        self,
        resource: tuple[str, int],
        start: Any,
        size: int,
        when: Literal,
        amount: int,
        head: int,
        tail: int,
    ) -> None:
        """Add a use of a resource (`_Use`); `limit` constrains all of them."""
        if size > 0 and when is not False:
            self.uses.setdefault(resource, []).append(_Use(start, size, when, amount, head, tail))

    def enforce(self, constraint: Any, *literals: Literal) -> None:
        """Enforce a constraint if all literals hold."""
        if False not in [literal for literal in literals if isinstance(literal, bool)]:
            self.cp.add(constraint).only_enforce_if(
                [literal for literal in literals if not isinstance(literal, bool)]
            )

    def limit(self) -> None:
        """Constrain each resource to its capacity, and the makespan to at least its work."""
        cp = self.cp
        for (kind, number), uses in self.uses.items():
            capacity = self.instance.widths[number] if kind == "device" else 1
            intervals = [
                cp.new_fixed_size_interval_var(use.start, use.size, "")
                if use.when is True
                else cp.new_optional_fixed_size_interval_var(use.start, use.size, use.when, "")
                for use in uses
            ]
            if capacity == 1:
                cp.add_no_overlap(intervals)
            else:
                cp.add_cumulative(intervals, [use.amount for use in uses], capacity)
            work = total([(use.size * use.amount, use.when) for use in uses])
            cp.add(capacity * self.makespan >= capacity * self.idle((kind, number)) + work)

    def idle(self, resource: tuple[str, int]) -> int:
        """Return the least units before and after all uses of a resource; valid too if a schedule does not use it."""
        uses = self.uses.get(resource, ())
        if not uses:
            return 0
        return min(min(use.head for use in uses) + min(use.tail for use in uses), self.floor)


def total(terms: list[tuple[int, Literal]]) -> Any:
    """Return the sum of the sizes whose literals hold."""
    return sum(size * int(when) if isinstance(when, bool) else size * when for size, when in terms)


def weigh(model: Model, price: Floats) -> None:
    """Let the schedule be at least as long as its work at the device prices (D) of `load`.

    Each cluster costs at least as much as on its cheapest device; another device adds the difference, as reduced
    costs do. So where the load is what makes a schedule long, few clusters have a choice.
    """
    instance = model.instance
    prices = [round(SCALE * own) for own in price.tolist()]
    least, more = 0, []
    for r in range(instance.clusters):
        costs = [
            (prices[d] * lanes * size, when) for d in model.on[r] for lanes, size, when in model.modes[r, d]
        ]
        cheapest = min(cost for cost, _ in costs)
        least += cheapest
        more += [(cost - cheapest, when) for cost, when in costs if cost > cheapest]
    for d, own in enumerate(prices):
        least += own * instance.widths[d] * model.idle(("device", d))
    paid = sum(own * width for own, width in zip(prices, instance.widths))
    if paid:
        model.cp.add(paid * model.makespan >= least + total(more))


def solver(effort: float, until: float) -> cp_model.CpSolver:
    """Return a solver limited to `effort` and to a time of the monotonic clock."""
    own = cp_model.CpSolver()
    parameters = own.parameters
    parameters.random_seed = 0
    parameters.max_deterministic_time = effort
    if until < math.inf:
        parameters.max_time_in_seconds = max(0.0, until - time.monotonic())
    # Clauses learnt from conflicts prove these schedules; the linear relaxation costs more than it tells.
    parameters.num_workers = 1
    parameters.linearization_level = 0
    return own
