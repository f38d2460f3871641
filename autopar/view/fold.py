"""Runs as cards: one each while there are few, else equal repeated blocks as one stacked card and short
runs merged into their module, so that a picture of any plan has a bounded number of boxes.

A card keeps the true times of what it holds: it begins with its first run, ends with its last, and
`busy` is the sum.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median

from ..plans import Placed, Plan
from .names import common_module, module_of, run_name

BUDGET = 150
"""The most boxes of one picture, when no more lanes than that are used."""
_PLAIN = 60
_EQUAL = 0.25
_DENSE = 0.75


Block = tuple[str, int]
"""A numbered module: `model.layers.3` is (`model.layers`, 3)."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One of the repeated blocks in a stacked card."""

    name: str
    start: float
    end: float
    busy: float
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Card:
    """A box: the `runs` of one lane between `start` and `end`, at work for `busy` seconds of that.

    `copies` are the repeated blocks when it is a stack; `module` what the runs share; `deep` marks
    backward work.
    """

    lane: str
    device: str
    title: str
    module: str
    start: float
    end: float
    busy: float
    runs: tuple[str, ...]
    copies: tuple[Copy, ...] = ()
    deep: bool = False
    block: Block | None = None


def fold(plan: Plan, budget: int = BUDGET) -> dict[str, tuple[Card, ...]]:
    """The cards of each lane that computes, in order; at most `budget` of them, or one for each such lane."""
    lanes: dict[str, list[Card]] = {}
    for lane, steps in plan.orders.items():
        cards = [_card(plan, step) for step in steps if isinstance(step, Placed)]
        if cards:
            lanes[lane] = cards
    if sum(map(len, lanes.values())) > min(_PLAIN, budget):
        short = plan.makespan * 0.01
        lanes = {lane: _merge(_stack(cards), short, strict=True) for lane, cards in lanes.items()}
        while sum(map(len, lanes.values())) > budget and short < 2 * plan.makespan:
            lanes = {lane: _merge(cards, short, strict=False) for lane, cards in lanes.items()}
            short *= 1.5
        if sum(map(len, lanes.values())) > budget:
            lanes = {lane: [_join(cards)] for lane, cards in lanes.items()}
    return {lane: tuple(cards) for lane, cards in lanes.items()}


def _card(plan: Plan, placed: Placed) -> Card:
    tasks = [plan.costed.graph.task[name] for name in plan.costed.run[placed.run].tasks]
    deep = any("backward" in f"{task.target} {task.origin}" for task in tasks)
    # A run may reach into the next block: it counts as of the block most of its tasks are in.
    blocks = Counter(filter(None, (_block(task.module) for task in tasks)))
    return Card(
        placed.lane,
        placed.device,
        run_name(plan, placed.run),
        module_of(plan, placed.run),
        placed.start,
        placed.end,
        placed.end - placed.start,
        (placed.run,),
        deep=deep,
        block=max(blocks, key=lambda block: blocks[block], default=None),
    )


def _join(cards: list[Card]) -> Card:
    if len(cards) == 1:
        return cards[0]
    module = common_module([card.module for card in cards])
    runs = tuple(run for card in cards for run in card.runs)
    busy = sum(card.busy for card in cards)
    deep = sum(card.busy for card in cards if card.deep) > busy / 2
    first, end = cards[0], max(card.end for card in cards)
    block = first.block if all(card.block == first.block for card in cards) else None
    title = _title(cards, module) or f"{runs[0]} … {runs[-1]}"
    return Card(first.lane, first.device, title, module, first.start, end, busy, runs, deep=deep, block=block)


def _title(cards: list[Card], module: str) -> str:
    """What the blocks of joined cards are called, `layers 3 … 5`, else the module they share."""
    blocks = [card.block for card in cards]
    known = [block for block in blocks if block]
    if len(known) < len(blocks) or len({path for path, _ in known}) != 1 or _block(module):
        return module
    path, low, high = known[0][0], min(index for _, index in known), max(index for _, index in known)
    return f"{path}.{low}" if low == high else f"{path.rpartition('.')[2]} {low} … {high}"


def _merge(cards: list[Card], short: float, *, strict: bool) -> list[Card]:
    """Join neighbours that are each shorter than `short` and not further apart; `strict`: only within
    one block."""
    done: list[Card] = []
    group: list[Card] = []
    for card in cards:
        joins = (
            group
            and max(card.end - card.start, group[0].end - group[0].start) < short
            and card.start - group[-1].end <= short
            and not (card.copies or group[0].copies)
            and (not strict or _kin(group[0], card))
            and (card.end - group[0].start <= 6 * short or (strict and card.block is not None))
        )
        if not joins:
            if group:
                done.append(_join(group))
            group = []
        group.append(card)
    return [*done, _join(group)] if group else done


def _kin(one: Card, other: Card) -> bool:
    """Whether two cards lie in one numbered block, or, outside of such, below one module."""
    if one.block or other.block:
        return one.block == other.block
    return bool(common_module([one.module, other.module]))


def _block(module: str) -> Block | None:
    """The outermost numbered module of a path: `model.layers.3.attn` is in (`model.layers`, 3)."""
    parts = module.split(".")
    for position, part in enumerate(parts):
        if part.isdecimal() and position:
            return ".".join(parts[:position]), int(part)
    return None


def _stack(cards: list[Card]) -> list[Card]:
    """Fold each row of three or more equal numbered blocks that follow one another in this lane into one
    card."""
    groups: list[tuple[Block | None, list[Card]]] = []
    for card in cards:
        block = card.block
        if groups and block and groups[-1][0] == block:
            groups[-1][1].append(card)
        else:
            groups.append((block, [card]))
    done: list[Card] = []
    position = 0
    while position < len(groups):
        end = position + 1
        block = groups[position][0]
        while block and end < len(groups) and _follows(groups[end - 1][0], groups[end][0]):
            end += 1
        row = groups[position:end]
        plain = [card for _, held in row for card in held]
        dense = sum(card.busy for card in plain) >= _DENSE * (plain[-1].end - plain[0].start)
        done += _stack_row(row) if block and len(row) >= 3 and dense else plain
        position = end
    return done


def _follows(one: Block | None, other: Block | None) -> bool:
    return one is not None and other is not None and one[0] == other[0] and abs(one[1] - other[1]) == 1


def _stack_row(row: list[tuple[Block | None, list[Card]]]) -> list[Card]:
    """Equal blocks of a row as stacks; a block unlike the middle one stays open between them."""
    usual = median(sum(card.busy for card in held) for _, held in row)
    done: list[Card] = []
    equal: list[tuple[Block, list[Card]]] = []

    def flush() -> None:
        if len(equal) >= 3 or (len(equal) == 2 and any(card.copies for card in done)):
            done.append(_stacked(equal))
        else:
            done.extend(card for _, held in equal for card in held)
        equal.clear()

    for block, held in row:
        assert block is not None
        if abs(sum(card.busy for card in held) - usual) <= _EQUAL * usual:
            equal.append((block, held))
        else:
            flush()
            done += held
    flush()
    return done


def _stacked(row: list[tuple[Block, list[Card]]]) -> Card:
    copies = []
    for (path, index), held in row:
        whole = _join(held)
        copies.append(Copy(f"{path}.{index}", whole.start, whole.end, whole.busy, whole.runs))
    whole = _join([card for _, held in row for card in held])
    (path, first), (_, last) = row[0][0], row[-1][0]
    title = f"{path.rpartition('.')[2]} {first} … {last}"
    return Card(
        whole.lane,
        whole.device,
        title,
        path,
        whole.start,
        whole.end,
        whole.busy,
        whole.runs,
        tuple(copies),
        whole.deep,
    )
