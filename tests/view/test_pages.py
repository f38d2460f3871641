"""Pages of pictures: whole, self-contained, with the facts of everything that is drawn."""

import html
import re
import xml.etree.ElementTree as ET

import pytest
import view_plans

from autopar.system.text import size
from autopar.view import draw, save_timeline
from autopar.view.pages import WIDTHS, placed_page
from autopar.view.placed.layout import lay_out

plans = pytest.mark.parametrize("make", view_plans.ALL.values(), ids=view_plans.ALL)


@plans
def test_the_page_has_the_facts_of_each_box_and_arrow(make):
    plan = make()
    page, layout = placed_page(plan), lay_out(plan)
    told = re.findall(r'<template id="facts-(\w+)">(.*?)</template>', page, re.S)
    assert [name for name, _ in told] * len(WIDTHS) == re.findall(r'data-facts="(\w+)"', page)
    facts = {name: html.unescape(text) for name, text in told}
    for index, box in enumerate(layout.boxes):
        assert box.card.title in facts[f"b{index}"]
        if len(box.card.clusters) == 1:
            reason = plan.reason[box.card.clusters[0]]
            assert reason.text in facts[f"b{index}"]
            if len(reason.choices) > 1:
                assert facts[f"b{index}"].count("<b>") == len(reason.choices)
    for index, arrow in enumerate(layout.arrows):
        assert size(arrow.transfer.bytes) in facts[f"t{index}"]
    aside = html.unescape(page[page.index("<aside>") : page.index("</aside>")])
    for device in plan.costed.machine.devices:
        assert f"<b>{device.name}</b>" in aside and size(plan.peaks.get(device.name, 0)) in aside
    assert aside.count('<details id="stack-') == sum(bool(box.card.copies) for box in layout.boxes)


@pytest.mark.parametrize("name", ("mlp", "rough200"))
def test_the_page_is_self_contained_and_well_formed(name, tmp_path):
    plan = view_plans.ALL[name]()
    draw(plan, tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    save_timeline(view_plans.measured(plan), tmp_path / "run.html")
    bare = (page + (tmp_path / "run.html").read_text()).replace("http://www.w3.org/2000/svg", "")
    for fetch in ("http://", "https://", "//cdn", "<link", "<img", "<iframe", "@import", "url(", " src="):
        assert fetch not in bare, fetch
    draw(plan, tmp_path / "a.svg")
    ET.fromstring((tmp_path / "a.svg").read_text())
    inner = page[page.index("<svg") : page.index("</svg>") + 6]
    ET.fromstring(inner)
