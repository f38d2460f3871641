"""Clusters folded into cards: one each if there are few, else equal repeated blocks as one stacked card, and short
clusters merged by module, so that any picture has a bounded number of boxes.

A card keeps true times: it starts with its first cluster, ends with its last, and `busy` is the sum.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median

from ...ir.display_names import CRITERION, common_module
from ...ir.plan import Plan
from ...ir.timeline import Placed
from ..report.reasons import module_of

BUDGET = 150
"""Limit on the boxes of a picture with fewer lanes than that."""
_PLAIN = 60
"""Limit on the boxes of a picture in which each is one cluster."""
_EQUAL, _DENSE = 0.25, 0.75
"""Share by which the work of stacked blocks may differ from the median, and least share of their time that is work."""
_SHORT, _LONG = 0.01, 0.05
"""Shares of the plan below which neighbours merge first, and at most within a block."""
_SUFFIXES = {"reduction": ", sums", "update": ", update"}
"""Ends of titles of several clusters that are all of this phase."""
_NUMBERED = re.compile(r"\d+[a-z]?$")
_END = re.compile(r"^(.*?)(\d+)$")


@dataclass(frozen=True, slots=True)
class Card:
    """A box for `clusters` of one lane between `start` and `end`, of which `busy` seconds are work.

    copies: the repeated blocks of a stack, a card each.
    module: common module of the clusters.
    phase: phase of most of its work.
    block: numbered module of the clusters; empty if they have none or several.
    """

    lane: str
    device: str
    title: str
    module: str
    start: float
    end: float
    busy: float
    clusters: tuple[str, ...]
    copies: tuple[Card, ...] = ()
    phase: str = "forward"
    block: str = ""


def fold(plan: Plan, budget: int = BUDGET) -> dict[str, tuple[Card, ...]]:
    """Return the cards of each compute lane, in order; at most `budget`, or one for each lane."""
    lanes: dict[str, list[Card]] = {}
    for lane, steps in plan.orders.items():
        cards = [_card(plan, step, lane) for step in steps if isinstance(step, Placed)]
        if cards:
            lanes[lane] = _adopted(cards)
    if _count(lanes) > min(_PLAIN, budget):
        lanes = {lane: _stack(cards) for lane, cards in lanes.items()}
        for strict, most, longest in ((True, _PLAIN, _LONG), (False, budget, 2.0)):
            short, single = _SHORT * plan.makespan, lanes
            while _count(lanes) > most and short < longest * plan.makespan:
                lanes = {lane: _merge(cards, short, strict=strict) for lane, cards in single.items()}
                short *= 1.5
        if _count(lanes) > budget:
            lanes = {lane: [_join(cards)] for lane, cards in lanes.items()}
    return {lane: tuple(cards) for lane, cards in lanes.items()}


def _count(lanes: dict[str, list[Card]]) -> int:
    return sum(map(len, lanes.values()))


def _adopted(cards: list[Card]) -> list[Card]:
    """Return the cards with those outside of modules, as sums of gradients in a backward, in the block before them."""
    adopted: list[Card] = []
    for card in cards:
        before = adopted[-1] if adopted else card
        alone = not card.block and card.module in ("", before.block) and card.phase == before.phase
        adopted.append(replace(card, block=before.block) if alone else card)
    return adopted


def titles(plan: Plan) -> list[tuple[str, str]]:
    """Return the title of each card of the placed graph with each of its clusters."""
    cards = [card for row in fold(plan).values() for card in row]
    cards += [copy for card in cards for copy in card.copies]
    return [(card.title, cluster) for card in cards for cluster in card.clusters]


def _card(plan: Plan, placed: Placed, lane: str) -> Card:
    tasks = [plan.costed.graph.task[name] for name in plan.costed.cluster[placed.cluster].tasks]
    # A cluster may reach into the next block; it belongs to the block of most of its tasks.
    blocks = Counter(filter(None, (block_of(task.module) for task in tasks)))
    return Card(
        lane,
        placed.device,
        plan.words.cluster(placed.cluster),
        module_of(plan, placed.cluster),
        placed.start,
        placed.end,
        placed.end - placed.start,
        (placed.cluster,),
        phase=plan.words.phase(placed.cluster),
        block=max(blocks, key=lambda block: blocks[block], default=""),
    )


def _join(cards: list[Card]) -> Card:
    if len(cards) == 1:
        return cards[0]
    first, last = cards[0], cards[-1]
    module = common_module([card.module for card in cards])
    work: dict[str, float] = {}
    for card in cards:
        work[card.phase] = work.get(card.phase, 0.0) + card.busy
    phase = max(work, key=lambda each: work[each])
    title = "loss" if module == CRITERION else _title(cards, module)
    return replace(
        first,
        title=title + _marked(cards, phase) if title else f"{first.title} … {last.title}",
        module=module,
        end=max(card.end for card in cards),
        busy=sum(card.busy for card in cards),
        clusters=tuple(cluster for card in cards for cluster in card.clusters),
        phase=phase,
        block=first.block if all(card.block == first.block for card in cards) else "",
        copies=(),
    )


def _marked(cards: list[Card], phase: str) -> str:
    """Return the suffix of a joined card's title: its phase and its part of the batch, as in the cards' own titles."""
    if phase in _SUFFIXES and len({card.phase for card in cards}) == 1:
        return _SUFFIXES[phase]
    shown = phase == "backward" or any(" forward" in card.title for card in cards)
    parts = {"" if " … " in card.title else card.title.partition(" #")[2] for card in cards}
    part = parts.pop() if len(parts) == 1 else ""
    return (f" {phase}" if shown else "") + (f" #{part}" if part else "")


def _title(cards: list[Card], module: str) -> str:
    """Return the name of the blocks of joined cards, `layers 3 … 5` or `model.layers.3`, else their common module."""
    blocks = list(dict.fromkeys(card.block for card in cards))
    if not all(blocks) or block_of(module):
        return module
    if len(blocks) == 1:
        return blocks[0]
    ends = [_end(block) for block in blocks]
    if len({stem for stem, _ in ends}) > 1:
        return module or f"{blocks[0]} … {blocks[-1]}"
    numbers = sorted({number for _, number in ends}, reverse=ends[0] > ends[-1])
    return f"{ends[0][0].strip('._').rpartition('.')[2]} {numbers[0]} … {numbers[-1]}"


def _merge(cards: list[Card], short: float, *, strict: bool) -> list[Card]:
    """Join neighbours that are each shorter than `short` and no further apart; with `strict`, only within one
    block."""
    groups: list[list[Card]] = []
    for card in cards:
        if groups and _joins(groups[-1], card, short, strict):
            groups[-1].append(card)
        else:
            groups.append([card])
    return list(map(_join, groups))


def _joins(group: list[Card], card: Card, short: float, strict: bool) -> bool:
    first = group[0]
    if card.copies or first.copies or (strict and not _kin(first, card)):
        return False
    longest = max(card.end - card.start, first.end - first.start)
    brief = longest < short and card.start - group[-1].end <= short
    return brief and (card.end - first.start <= 6 * short or (strict and card.block != ""))


def _kin(one: Card, other: Card) -> bool:
    """Return True if two cards are in one numbered block, or outside of blocks in one module."""
    if one.phase != other.phase:
        return False
    if one.block or other.block:
        return one.block == other.block
    return bool(common_module([one.module, other.module]))


def block_of(module: str) -> str:
    """Return the outermost numbered module that holds a module, such as `model.layers.3`, `inception3a` or `layer2.0`;
    empty if none does."""
    parts = module.split(".")
    for at, part in enumerate(parts):
        if part.isdecimal() and at:
            return ".".join(parts[: at + 1])
        if at + 1 < len(parts) and not part.isdecimal() and _NUMBERED.search(part):
            return ".".join(parts[: at + 1 + parts[at + 1].isdecimal()])
    return ""


def _end(block: str) -> tuple[str, int]:
    """Return the name of a block without its number, and the number; -1 if it does not end in one."""
    match = _END.match(block)
    return (match[1], int(match[2])) if match else (block, -1)


def _stack(cards: list[Card]) -> list[Card]:
    """Fold each row of at least three equal successive blocks of this lane into one card."""
    rows: list[list[list[Card]]] = []
    for _, members in groupby(
        cards, key=lambda card: (card.block, card.phase) if card.block else card.clusters
    ):
        group = list(members)
        if rows and _follows(rows[-1][-1][0], group[0]):
            rows[-1].append(group)
        else:
            rows.append([group])
    stacked: list[Card] = []
    for row in rows:
        plain = [card for group in row for card in group]
        dense = sum(card.busy for card in plain) >= _DENSE * (plain[-1].end - plain[0].start)
        stacked += _stack_row(row) if len(row) >= 3 and dense else plain
    return stacked


def _follows(one: Card, other: Card) -> bool:
    """Return True if one block follows the other in the same phase: upwards in a forward, downwards in a backward."""
    (stem, number), (other_stem, other_number) = _end(one.block), _end(other.block)
    return one.phase == other.phase and stem == other_stem and abs(number - other_number) == 1


def _stack_row(row: list[list[Card]]) -> list[Card]:
    """Fold equal blocks of a row into stacks; a block that differs from the middle one stays separate."""
    busy = [sum(card.busy for card in group) for group in row]
    usual = median(busy)
    folded: list[Card] = []
    for alike, pairs in groupby(zip(busy, row), key=lambda pair: abs(pair[0] - usual) <= _EQUAL * usual):
        groups = [group for _, group in pairs]
        if alike and len(groups) > 1:
            folded.append(_stacked(groups))
        else:
            folded += [card for group in groups for card in group]
    return folded


def _stacked(groups: list[list[Card]]) -> Card:
    cards = [card for group in groups for card in group]
    copies = tuple(replace(_join(group), title=_title(group, "")) for group in groups)
    whole = _join(cards)
    title = f"{_title(cards, '')}{_marked(cards, whole.phase)}"
    return replace(whole, title=title, module=copies[0].title.rpartition(".")[0], copies=copies, block="")
