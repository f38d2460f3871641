"""Chains that cool side by side, of which the best go on: in which basin one ends shows long before it is cold.

Go with the winners: Aldous and Vazirani, "Go with the winners algorithms", FOCS 1994.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...system.process import cores
from ..model.instance import Instance
from .core import CLOSE, Chain, Listed, Timed

STAGES = ((0.4, 1), (0.2, 1), (0.2, 1), (0.2, 4))
"""Shares of the cooling, and of how many chains as began one is there in each."""
QUARTER = 4
"""Of so many chains one goes on from stage to stage."""
AGREED = 8
"""Chains that have come to the same makespan after which none goes on: hardly any would come to a shorter one."""
SEED = 3_000
"""Of the first chain; the others count from there."""
COOLING = 1 / 30
"""Final temperature of the annealing as a share of the initial one."""


@dataclass(frozen=True)
class Effort:
    """About so many steps by so many chains; `hot` is the first heat as a share of the makespan, and `copies` is how
    often clusters are copied (`Chain`)."""

    steps: float
    chains: int
    hot: float
    copies: int = 0


def winners(
    instance: Instance,
    starts: Sequence[Listed],
    bound: float,
    effort: Effort,
    until: float,
    keep: int,
) -> list[Timed]:
    """The `keep` shortest that any chain found, each placement once, the shortest first.

    After each of `STAGES` one of `QUARTER` chains goes on, and others begin from the shortest schedules of these. The
    end is at `until` of the monotonic clock, where a chain is at the bound, or where `AGREED` of them agree.
    """
    count = effort.chains
    pace = effort.steps / sum(share * max(1, count // among) for share, among in STAGES)
    begun: list[Chain] = []
    chains: list[Chain] = []
    cooled = 0.0
    for share, among in STAGES:
        chains = sorted(chains, key=lambda chain: chain.rank)
        if len(chains) >= AGREED and chains[AGREED - 1].makespan <= chains[0].makespan * (1 + CLOSE):
            break
        chains = chains[: max(1, count // QUARTER)]
        best = [chain.best[0] for chain in chains] or starts[:count]
        for i in range(max(1, count // among) - len(chains)):
            start = best[i % len(best)]
            chains.append(Chain(instance, start, bound, SEED + len(begun), effort.copies))
            begun.append(chains[-1])
        heats = effort.hot * COOLING**cooled, effort.hot * COOLING ** (cooled + share)
        cooled += share
        chains = _cooled(chains, pace * share, heats, until)
        if _at_bound(chains[-1]):
            begun = chains
            break
    found = {(kept.makespan, *kept.device): kept for chain in begun for kept in chain.best}
    best = sorted(found.values(), key=lambda kept: (kept.over, kept.makespan))[:keep]
    return [Timed(instance, kept.device, kept.keys, eager=kept.eager, of=kept.of) for kept in best]


def _cooled(chains: list[Chain], steps: float, heats: tuple[float, float], until: float) -> list[Chain]:
    """The chains after so many steps of each, up to the first that has come to the bound: where it does, those behind
    it need not go on, and may or may not have, as there are cores."""

    def cool(at: int) -> None:
        if not any(map(_at_bound, chains[: at + 1])):
            chains[at].cool(steps, heats, until)

    numbers = range(len(chains))
    _side_by_side(cool, numbers)
    return chains[: next((at for at in numbers if _at_bound(chains[at])), numbers[-1]) + 1]


def _side_by_side(call: Callable[[int], None], numbers: Sequence[int]) -> None:
    """Have calls made on as many cores as there are: chains leave the interpreter to others."""
    threads = min(len(numbers), cores())
    if threads < 2:
        for number in numbers:
            call(number)
        return
    with ThreadPoolExecutor(threads) as pool:
        # What is raised there is raised here.
        list(pool.map(call, numbers))


def _at_bound(chain: Chain) -> bool:
    return chain.makespan <= chain.bound * (1 + CLOSE)
