"""Pictures of a model of blocks with branches, as GoogLeNet: blocks fold, and no two names are cut to the same."""

import re
import xml.etree.ElementTree as ET
from collections import Counter

import view_plans

from autopar.view.placed import placed_svg
from autopar.view.placed.fold import fold
from autopar.view.timeline import timeline_svg

BLOCKS = ("inception3a", "inception3b", "inception4a", "inception4b", "inception5a", "inception5b")
BRANCHES = {"branch1": 1, "branch2.0": 1, "branch2.1": 4, "branch3.0": 1, "branch3.1": 1, "branch4.1": 1}


def inception():
    """Two halves of the batch on two accelerators, in blocks whose longest branch is on its own; the CPU joins each."""
    jobs, before = [], ("x", "x")
    for block in BLOCKS:
        ends = ([], [])
        for branch, long in BRANCHES.items():
            for half in (0, 1):
                last = before[half]
                for op in ("conv", "bn", "relu"):
                    name = f"{block}.{branch}.{op}#{half}"
                    module = f"{block}.{branch}" + ("" if op == "relu" else f".{op}")
                    seconds = 1e-4 * (long if op == "conv" else 0.1)
                    jobs.append(view_plans.Job(name, f"emulated:{half}/0", seconds, (last,), 10_000, module))
                    last = name
                ends[half].append(last)
        before = tuple(f"{block}.cat#{half}" for half in (0, 1))
        jobs += [
            view_plans.Job(name, "cpu/0", 1e-5, tuple(ends[half]), 40_000, block)
            for half, name in enumerate(before)
        ]
    return view_plans.build("Inception", jobs, view_plans.machine(2, rate=1e9))


def words(svg):
    return [
        "".join(each.itertext())
        for each in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
        if each.text
    ]


def test_branches_fold_into_their_block():
    cards = [card for lane in fold(inception()).values() for card in lane]
    assert len(cards) <= 60
    for card in cards:
        assert len({re.match(r"inception\d\w", cluster)[0] for cluster in card.clusters}) == 1
        assert re.match(r"inception\d\w", card.title)


def test_names_keep_what_tells_them_apart():
    for width in (992, 1248, 1488):
        plan = inception()
        shown = [word for word in words(placed_svg(plan, width=width)) if "inc" in word]
        assert len(shown) > 20
        assert not [word for word in shown if not re.search(r"inc(eption)?\d[ab]", word)], shown


def test_a_timeline_has_bars_of_blocks_with_their_names():
    svg = timeline_svg(inception().timeline(), 992)
    bars = re.findall(r'data-facts="s\d+"', svg)
    assert len(bars) <= 16 * len(BLOCKS)
    named = Counter(re.findall(r"inc(?:eption)?(\d[ab])", " ".join(words(svg))))
    assert set(named) == {block.removeprefix("inception") for block in BLOCKS}
