"""Plans that compute runs on several devices: which copies are worth what they take depends on where the rest is, and
where the rest had better be on the copies, so that both are searched for together."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.costed import repeatable
from ..candidates import SHORTER, Entry, Race
from ..model.problem import Problem
from ..native import searches
from ..search.anneal import PARAMS as ANNEALING
from ..search.core import COPIES, MOST, Timed
from ..search.population import Effort, winners
from .prune import Place, Places, places, scheduled


@dataclass(frozen=True)
class DuplicateParams:
    """How long it is searched for plans that compute runs again, and which are too large for it."""

    each: int = 4_500
    steps: int = 225_000
    """Steps of the search for each run, and in all at most; chains take `together` times as many (`anneal`)."""
    largest: int = 2_000
    """Runs and transfers of the largest plan for which this is done."""
    hot: float = 0.07
    """Share by which a plan may become longer at first."""
    simulated: int = 5_000
    """Runs and transfers simulated in all, where memory is short."""
    tried: int = 3
    """Plans with copies simulated, of those found."""


PARAMS = DuplicateParams()


def repeated(race: Race, start: Entry, params: DuplicateParams = PARAMS) -> Entry:
    """A plan, or a shorter one with runs computed again, searched for as far as there is time for it. What is returned
    has a `Problem` of its own where runs are. Nothing is done for large plans, nor without the native search.

    Duplication heuristics: Ahmad and Kwok, "On exploiting task duplication in parallel program scheduling", IEEE TPDS
    9(9), 1998.
    """
    ended = start.makespan <= race.bound * (1 + SHORTER) or race.late
    large = start.play.problem.runs + len(start.play.moves) > params.largest
    if ended or large or not _promising(race.problem) or not searches():
        return start
    best = min([start, *_found(race, start, params)], key=lambda entry: entry.makespan)
    return _one_by_one(race, start, params) if race.problem.tight and best is start else best


def _promising(problem: Problem) -> bool:
    """Whether there are lists of the graph (`anneal`), and a run in it that may be computed again and of which it takes
    time to move what it makes."""
    costed = problem.costed
    return not problem.modes and any(
        repeatable(costed, run)
        and any(
            problem.travel(v, s, d) for v in problem.makes[r] if problem.readers[v] for s in own for d in own
        )
        for r, (run, own) in enumerate(zip(costed.runs, problem.able))
    )


def _found(race: Race, start: Entry, params: DuplicateParams) -> list[Entry]:
    """Plans that chains come to from one."""
    problem = race.problem
    effort = Effort(
        steps=min(params.steps, params.each * problem.runs) * ANNEALING.together,
        chains=ANNEALING.chains,
        hot=params.hot,
        copies=COPIES,
    )
    found = winners(problem, [listed(problem, start)], race.bound, effort, race.until, keep=params.tried)
    entries = [scheduled(problem, placed(timed)) for timed in found if timed.makespan < start.makespan]
    return [entry for entry in entries if entry and not entry.over]


def _one_by_one(race: Race, start: Entry, params: DuplicateParams) -> Entry:
    """A plan with single runs computed again where their results are wanted, as long as that fits and is no longer: the
    chains know nothing of memory."""
    best, left, tried = start, params.simulated, {*start.play.problem.costed.again}
    current: Entry | None = start
    while current:
        play, problem, at = current.play, current.play.problem, current
        current = None
        for step, (v, hop) in enumerate(play.moves, problem.runs):
            r, d = problem.maker[v], hop.dst
            key = problem.names[r], problem.devices[d]
            if r < 0 or key in tried or d not in problem.able[r]:
                continue
            if not repeatable(problem.costed, problem.costed.runs[r]):
                continue
            left -= len(play.end)
            if left < 0 or race.late or best.makespan <= race.bound * (1 + SHORTER):
                return best
            tried.add(key)
            copy = Place(
                play.end[step] - problem.seconds[r][d], play.end[step], problem.lane_names[d][:1], copy=True
            )
            found = scheduled(problem, {**places(play), key: copy})
            if found and not found.over and found.makespan <= at.makespan * (1 + SHORTER):
                current = found
                break
        if current and current.makespan < best.makespan * (1 - SHORTER):
            best = current
    return best


def listed(problem: Problem, entry: Entry) -> Timed:
    """The list that leads to a plan, or to one like it."""
    index = {name: d for d, name in enumerate(problem.devices)}
    device, keys = [0] * problem.runs, [0.0] * problem.runs
    copies = []
    for (name, where), place in places(entry.play).items():
        r, d = problem.number[name], index[where]
        if place.copy:
            copies.append((r, d, place.start))
        else:
            device[r], keys[r] = d, place.start
    of = [r for r, _, _ in copies[:MOST]]
    if of:
        device += [-1, *(d for _, d, _ in copies[:MOST])]
        keys += [0.0, *(start for *_, start in copies[:MOST])]
    return Timed(problem, device, keys, eager=True, of=of)


def placed(timed: Timed) -> Places:
    """Where and when a list has its runs and copies."""
    problem, runs = timed.problem, timed.problem.runs
    found = {}
    for i, r in (*enumerate(range(runs)), *enumerate(timed.of, runs + 1)):
        d = timed.device[i]
        lanes = (problem.lane_names[d][timed.lane[i]],)
        place = Place(timed.start[i], timed.end[i], lanes, copy=i > runs)
        found[problem.names[r], problem.devices[d]] = place
    return found
