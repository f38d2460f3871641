"""Plans that compute runs on several devices: which copies are worth what they take depends on where the rest is, and
where the rest had better be on the copies, so that both are searched for together."""

from __future__ import annotations

from ...ir.costed import repeatable
from ..candidates import SHORTER, Entry, Race
from ..model.problem import Problem
from ..native import searches
from ..search.anneal import CHAINS, TOGETHER
from ..search.chain import COPIES, RUINS
from ..search.evaluate import Timed
from ..search.network import MOST, Network
from ..search.population import Effort, winners
from .prune import Place, Places, places, scheduled

EACH, STEPS = 4_500, 225_000
"""Steps of the search for each run, and in all at most; chains take `TOGETHER` times as many (`anneal`)."""
LARGEST = 2_000
"""Runs and transfers of the largest plan for which this is done."""
HOT = 0.07
"""Share by which a plan may become longer at first."""
STEPS_ONE_BY_ONE = 5_000
"""Runs and transfers simulated in all, where memory is short."""
TRIED = 3
"""Plans with copies simulated, of those found."""


def repeated(race: Race, start: Entry) -> Entry:
    """A plan, or a shorter one with runs computed again, searched for as far as there is time for it. What is returned
    has a `Problem` of its own where runs are. Nothing is done for large plans, nor without the native search.

    Duplication heuristics: Ahmad and Kwok, "On exploiting task duplication in parallel program scheduling", IEEE TPDS
    9(9), 1998.
    """
    ended = start.makespan <= race.bound * (1 + SHORTER) or race.late
    large = start.play.problem.runs + len(start.play.moves) > LARGEST
    if ended or large or not _promising(race.problem) or not searches():
        return start
    best = min([start, *_found(race, start)], key=lambda entry: entry.makespan)
    return _one_by_one(race, start) if race.problem.tight and best is start else best


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


def _found(race: Race, start: Entry) -> list[Entry]:
    """Plans that chains come to from one."""
    network = Network(race.problem)
    effort = Effort(
        steps=min(STEPS, EACH * network.runs) * TOGETHER,
        chains=CHAINS,
        hot=HOT,
        ruins=RUINS,
        copies=COPIES,
    )
    found = winners(network, [listed(network, start)], race.bound, effort, race.until, keep=TRIED)
    entries = [scheduled(race.problem, placed(timed)) for timed in found if timed.makespan < start.makespan]
    return [entry for entry in entries if entry and not entry.over]


def _one_by_one(race: Race, start: Entry) -> Entry:
    """A plan with single runs computed again where their results are wanted, as long as that is shorter and fits: the
    chains know nothing of memory."""
    best, left, tried = start, STEPS_ONE_BY_ONE, {*start.play.problem.costed.again}
    while best.makespan > race.bound * (1 + SHORTER) and not race.late:
        play, problem = best.play, best.play.problem
        arrivals = (
            (step, problem.maker[v], hop.dst) for step, (v, hop) in enumerate(play.moves, problem.runs)
        )
        for step, r, d in arrivals:
            key = problem.names[r], problem.devices[d]
            if (
                r < 0
                or key in tried
                or d not in problem.able[r]
                or not repeatable(problem.costed, problem.costed.runs[r])
            ):
                continue
            if left < len(play.end):
                return best
            left -= len(play.end)
            tried.add(key)
            at, end = places(play), play.end[step]
            at[key] = Place(end - problem.seconds[r][d], end, problem.lane_names[d][:1], copy=True)
            found = scheduled(problem, at)
            if found and not found.over and found.makespan < best.makespan * (1 - SHORTER):
                best = found
                break
        else:
            return best
    return best


def listed(network: Network, entry: Entry) -> Timed:
    """The list that leads to a plan, or to one like it."""
    problem = network.problem
    index = {name: d for d, name in enumerate(problem.devices)}
    device, keys = [0] * network.runs, [0.0] * network.runs
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
    return Timed(network, device, keys, eager=True, of=of)


def placed(timed: Timed) -> Places:
    """Where and when a list has its runs and copies."""
    problem, runs = timed.network.problem, timed.network.runs
    found = {}
    for i, r in (*enumerate(range(runs)), *enumerate(timed.of, runs + 1)):
        d = timed.device[i]
        lanes = (problem.lane_names[d][timed.lane[i]],)
        place = Place(timed.start[i], timed.end[i], lanes, copy=i > runs)
        found[problem.names[r], problem.devices[d]] = place
    return found
