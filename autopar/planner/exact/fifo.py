"""Wires that serve whoever comes first, and steps that nothing holds back, as rules of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from .literals import Literal
from .model import Model
from .transfers import Transfers


@dataclass(frozen=True)
class _Sent:
    """A transfer from where its value was made: `ready` when it asks for its queue, `turn` its place among equals."""

    maker: int
    turn: tuple[int, int]
    ready: Any
    start: Any
    size: int
    when: Literal


def first_come(model: Model, transfers: Transfers) -> None:
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


def no_pause(model: Model, transfers: Transfers) -> None:
    """Start everything as soon as what it waits for, or the step before it in its queue, has ended.

    For a model whose runs stay where they are: a wire does not wait for a run that would do well to be late.
    """
    problem, device = model.problem, model.best.device
    for r, d in enumerate(device):
        moments = [0, *(model.end[q] for q in problem.before[r])]
        moments += [model.end[q] for q, other in enumerate(device) if other == d and q != r]
        for v in problem.reads[r]:
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


def elsewhere(tried: Sequence[Sequence[int]]) -> Callable[[Model, Transfers], None]:
    """A rule: not all runs where one of these placements has them."""

    def apart(model: Model, transfers: Transfers) -> None:
        no = model.literals.no
        for devices in tried:
            model.cp.add_bool_or(no(model.on[r].get(d, False)) for r, d in enumerate(devices))

    return apart


def _sent(model: Model, transfers: Transfers) -> dict[int, list[_Sent]]:
    """The transfers of each queue."""
    found: dict[int, list[_Sent]] = {}
    for (v, target), brings in transfers.brings.items():
        maker = model.problem.maker[v]
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
