"""Pictures of planned graph files: names with words in them, bounds far below."""

import random
import re

import pytest
from taskfiles import link, randomly

from autopar import schedule
from autopar.system.text import seconds
from autopar.view.placed.labels import box_labels, free_labels
from autopar.view.placed.layout import lay_out


def around(lanes=4):
    """Three tasks of a CPU around one of an accelerator."""
    return {
        "tasks": [
            {"id": "decode", "seconds": {"cpu": 3e-3}},
            {"id": "middle", "seconds": {"gpu": 2e-3}},
            {"id": "beside", "seconds": {"cpu": 1.5e-3}},
            {"id": "last", "seconds": {"cpu": 3e-3}},
        ],
        "values": [
            {"id": "image", "producer": "decode", "consumers": ["middle", "beside"], "bytes": 1000},
            {"id": "out of middle", "producer": "middle", "consumers": ["last"], "bytes": 1000},
        ],
        "devices": [{"name": "cpu", "lanes": lanes}, {"name": "gpu"}],
        "links": [link("cpu", "gpu"), link("gpu", "cpu")],
    }


def test_what_an_idle_lane_waits_for_keeps_the_words_of_its_name():
    graph = around()
    graph["values"][1]["id"] = "out of the middle"
    texts = [label.text for label in free_labels(lay_out(schedule(graph))) if label.anchor == "middle"]
    assert any("out of the middle" in text for text in texts)


def test_a_name_that_leaves_no_room_beside_it_has_its_time_under_it():
    graph = around()
    graph["tasks"][0]["seconds"] = {"gpu": 3e-3}
    graph["tasks"][0]["id"] = graph["values"][0]["producer"] = name = "decode all the images of this batch"
    layout = lay_out(schedule(graph))
    box = next(box for box in layout.boxes if box.card.title == name)
    assert [label.text for label in box_labels(layout, box)][1:] == ["3.00 ms"]


@pytest.mark.parametrize("value", (9.9949e-3, 9.996e-3, 99.96e-3, 0.99951, 9.9999e-6, 999.6e-9))
def test_a_duration_has_three_digits_however_it_is_rounded(value):
    assert len(re.sub(r"\D", "", seconds(value))) == 3


def at(arrow, x):
    """How far down an arrow is at `x`, None beside it."""
    share = (x - arrow.x1) / (arrow.x2 - arrow.x1)
    return arrow.y1 + share * (arrow.y2 - arrow.y1) if 0 <= share <= 1 else None


def test_no_other_arrow_is_between_the_name_of_a_transfer_and_its_own():
    found = 0
    for seed in (4, 17, 20, 23):
        layout = lay_out(schedule(randomly(random.Random(seed), 25), budget_s=1e-3))
        named = {}
        for arrow in layout.arrows:
            named.setdefault(arrow.transfers[0].value, []).append(arrow)
        for label in free_labels(layout):
            arrows = named.get(label.text, ())
            if len(arrows) != 1 or len(arrows[0].transfers) > 1:
                continue
            x, y = label.rect.x + label.rect.w / 2, label.rect.y + label.rect.h / 2
            own = at(arrows[0], x)
            if own is None:
                continue
            found += 1
            others = [at(other, x) for other in layout.arrows if other is not arrows[0]]
            low, high = sorted((y, own))
            # Nearer than this two arrows look like one.
            assert not [o for o in others if o is not None and low < o < high and abs(o - own) > 6]
    assert found > 10
