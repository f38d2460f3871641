"""Pictures of planned graph files: runs of several lanes, names with words in them, bounds far below."""

import random
import re

import pytest
from taskfiles import link, randomly

from autopar import schedule
from autopar.system.text import seconds
from autopar.view.placed.labels import box_labels, free_labels
from autopar.view.placed.layout import lay_out
from autopar.view.timeline import timeline_svg


def wide(lanes=4):
    """Two tasks of all lanes of a CPU around one of an accelerator."""
    return {
        "tasks": [
            {"id": "decode", "seconds": {"cpu": {"1": 8e-3, str(lanes): 3e-3}}},
            {"id": "middle", "seconds": {"gpu": 2e-3}},
            {"id": "beside", "seconds": {"cpu": {"2": 1.5e-3}}},
            {"id": "last", "seconds": {"cpu": {"1": 8e-3, str(lanes): 3e-3}}},
        ],
        "values": [
            {"id": "image", "producer": "decode", "consumers": ["middle", "beside"], "bytes": 1000},
            {"id": "out of middle", "producer": "middle", "consumers": ["last"], "bytes": 1000},
        ],
        "devices": [{"name": "cpu", "lanes": lanes}, {"name": "gpu"}],
        "links": [link("cpu", "gpu"), link("gpu", "cpu")],
    }


def test_a_run_of_several_lanes_is_one_box_over_them():
    layout = lay_out(schedule(wide()))
    lanes = layout.columns["cpu"].lanes
    boxes = {box.card.title: box for box in layout.boxes}
    assert len(boxes) == len(layout.boxes) == 4
    for name in ("decode", "last"):
        assert boxes[name].x == lanes[0][1]
        assert boxes[name].x + boxes[name].w == pytest.approx(lanes[-1][1] + lanes[-1][2])
    assert boxes["beside"].w == pytest.approx(lanes[1][1] + lanes[1][2] - lanes[0][1])
    assert [label.text for label in box_labels(layout, boxes["decode"])] == ["decode", "3.00 ms"]


@pytest.mark.parametrize("seed", range(12))
def test_each_lane_is_covered_by_what_runs_there(seed):
    draw = random.Random(seed)
    times = [
        {"2": draw.uniform(1, 3)} if draw.random() < 0.5 else {"1": draw.uniform(1, 3)} for _ in range(9)
    ]
    tasks = [{"id": f"t{n}", "seconds": {"cpu": ways}} for n, ways in enumerate(times)]
    graph = {"tasks": tasks, "values": [], "devices": [{"name": "cpu", "lanes": 3}], "links": []}
    layout = lay_out(schedule(graph, budget_s=1e-3))
    for lane, x, w in layout.columns["cpu"].lanes:
        over = {box.card.clusters for box in layout.boxes if box.x <= x and x + w <= box.x + box.w + 1e-6}
        assert over == {card.clusters for card in layout.cards[lane]}


def test_what_an_idle_lane_waits_for_keeps_the_words_of_its_name():
    graph = wide()
    graph["values"][1]["id"] = "out of the middle"
    texts = [label.text for label in free_labels(lay_out(schedule(graph))) if label.anchor == "middle"]
    assert "out of the middle" in texts and "out" not in texts


def test_a_name_that_leaves_no_room_beside_it_has_its_time_under_it():
    graph = wide()
    graph["tasks"][0]["seconds"] = {"gpu": 3e-3}
    graph["tasks"][0]["id"] = graph["values"][0]["producer"] = name = "decode all the images of this batch"
    layout = lay_out(schedule(graph))
    box = next(box for box in layout.boxes if box.card.title == name)
    assert [label.text for label in box_labels(layout, box)][1:] == ["3.00 ms"]


def test_a_run_of_several_lanes_counts_once_in_a_timeline():
    plan = schedule(wide())
    assert "6 clusters and copies in 7 lanes." in timeline_svg(plan.timeline())


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
