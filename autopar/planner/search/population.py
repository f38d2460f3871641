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


@dataclass(frozen=True)
class PopulationParams:
    """How chains are cooled together."""

    stages: tuple[tuple[float, int], ...] = ((0.4, 1), (0.2, 1), (0.2, 1), (0.2, 4))
    """Shares of the cooling, and of how many chains as began one is there in each."""
    quarter: int = 4
    """Of so many chains one goes on from stage to stage."""
    agreed: int = 8
    """Chains that have come to the same makespan after which none goes on: hardly any would come to a shorter one."""
    seed: int = 3_000
    """Of the first chain; the others count from there."""
    cooling: float = 1 / 30
    """What is left of the first heat at last."""


PARAMS = PopulationParams()


@dataclass(frozen=True)
class Effort:
    """About so many steps by so many chains; `hot` is the first heat as a share of the makespan, and `copies` is how
    often runs are copied (`Chain`)."""

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
    params: PopulationParams | None = None,
) -> list[Timed]:
    """The `keep` shortest that any chain found, each placement once, the shortest first.

    After each of `stages` one of `quarter` chains goes on, and others begin from the shortest schedules of these. The
    end is at `until` of the monotonic clock, where a chain is at the bound, or where `agreed` of them agree.
    """
    params, count = params or PARAMS, effort.chains
    pace = effort.steps / sum(share * max(1, count // among) for share, among in params.stages)
    begun: list[Chain] = []
    chains: list[Chain] = []
    cooled = 0.0
    for share, among in params.stages:
        chains = sorted(chains, key=lambda chain: chain.rank)
        if len(chains) >= params.agreed and chains[params.agreed - 1].makespan <= chains[0].makespan * (
            1 + CLOSE
        ):
            break
        chains = chains[: max(1, count // params.quarter)]
        best = [chain.best[0] for chain in chains] or starts[:count]
        for i in range(max(1, count // among) - len(chains)):
            start = best[i % len(best)]
            chains.append(Chain(instance, start, bound, params.seed + len(begun), effort.copies))
            begun.append(chains[-1])
        heats = effort.hot * params.cooling**cooled, effort.hot * params.cooling ** (cooled + share)
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
