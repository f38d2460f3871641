"""Runs computed on several devices and the places of all, in turns: which copies are worth what they take depends on
where the rest is, and where the rest had better be on the copies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice

from . import native
from .anneal import refine
from .duplicate import duplicate, repeats, with_copies, worthwhile
from .needed import places, scheduled
from .race import SHORTER, Entry, Race
from .spread import spread

LISTED = 200
"""Runs of the plans in which copies are looked for beside the best."""
TRIES, TRIED = 48, 1_200
"""Plans with copies whose runs are placed anew, and runs of all of them, at most."""
EACH, FEWEST = 120, 5_000
"""Steps of that for each run, and for a tiny graph."""
WIDE = 5
"""Plans that copies are put into each time."""
ROUNDS = 5
WORSE = 1.15
"""Times as long as without them that a plan may take at first with copies."""
LAST = 3
"""Times as many for the best at last."""


def repeated(race: Race, starts: list[Entry], bound: float, until: float) -> Entry:
    """The shortest of some plans, and of others as far as there is time for them, with runs computed again: what is
    longer than the first without may become shorter. What is returned has a `Problem` of its own where runs are."""
    if starts[0].makespan <= bound * (1 + SHORTER) or time.monotonic() > until:
        return min(starts, key=_length)
    fitting = sorted((entry for entry in race.entries if not entry.over), key=_length)
    runs = max(1, race.problem.runs)
    distinct = {id(start): start for start in (*starts, *fitting[: LISTED // runs])}.values()
    found = [duplicate(start, bound) for start in distinct]
    counted = spread(race) if repeats(starts[0]) else None
    others = [*fitting[:WIDE], *([duplicate(counted, bound)] if counted else [])]
    best = min([*found, *others], key=_length)
    plans = {id(plan): plan for plan in (best, *others)}.values()
    return best if race.problem.modes else _Turns(bound, until, runs).taken([*plans])


class _Turns:
    """What is left of the tries."""

    def __init__(self, bound: float, until: float, runs: int) -> None:
        self.bound, self.until, self.runs = bound, until, runs
        self.tries = min(TRIES, TRIED // runs)

    def taken(self, plans: list[Entry]) -> Entry:
        """The best of some plans, or a shorter one that comes of them; the first of them is the shortest."""
        best = plans[0]
        for _ in range(ROUNDS):
            if self._over(best):
                break
            begun = [*islice(chain.from_iterable(map(_begun, plans)), self.tries)]
            self.tries -= len(begun)
            found = native.side_by_side(partial(self._placed, times=1), begun)
            plans = sorted(found, key=_length)[:WIDE]
            if not plans or plans[0].makespan >= best.makespan * (1 - SHORTER):
                break
            best = plans[0]
        if best.play.problem.costed.again and not self._over(best):
            best = min(best, self._placed(best, LAST), key=_length)
        return best

    def _over(self, best: Entry) -> bool:
        return not self.tries or best.makespan <= self.bound * (1 + SHORTER) or time.monotonic() > self.until

    def _placed(self, entry: Entry, times: int) -> Entry:
        """The entry, or a shorter one whose runs are elsewhere and whose copies are those needed there."""
        play, runs = entry.play, entry.play.problem.runs
        steps = times * max(FEWEST, EACH * self.runs)
        schedules = refine(
            play.problem, self.bound, play.device, play.start[:runs], steps, self.until, keep=1
        )
        found = [entry]
        for schedule in schedules:
            moved = Race(play.problem).trial(schedule)
            if moved:
                again = scheduled(play.problem, places(moved.play))
                found += [again] if again and not again.over else []
        return min(found, key=_length)


def _begun(plan: Entry) -> Iterator[Entry]:
    """A plan with the copies it has, and with ever fewer of those that promise anything."""
    if plan.play.problem.costed.again:
        yield plan
    promising = worthwhile(plan.play)
    while promising:
        tried = with_copies(plan.play, promising)
        if tried and not tried.over and tried.makespan <= plan.makespan * WORSE:
            yield tried
        promising = promising[: len(promising) // 2]


def _length(entry: Entry) -> float:
    return entry.makespan
