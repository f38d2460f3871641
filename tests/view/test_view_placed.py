"""The placed graph: honest, bounded, legible, self-contained, the same bytes every time."""

import builtins
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
import view_plans
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autopar.errors import AutoparError
from autopar.ir.timeline import Placed, Transfer
from autopar.system.text import size
from autopar.view import draw
from autopar.view.drawing import design
from autopar.view.drawing.free_space import Rect
from autopar.view.placed import placed_svg
from autopar.view.placed.fold import BUDGET, fold
from autopar.view.placed.labels import box_labels, free_labels
from autopar.view.placed.layout import lay_out

NAMESPACE = "{http://www.w3.org/2000/svg}"
plans = pytest.mark.parametrize("make", view_plans.ALL.values(), ids=view_plans.ALL)


def texts(svg):
    """The rectangle and words of each text of a picture, by the fonts' own widths."""
    found, root = [], ET.fromstring(svg)
    moved = [group for group in root if group.get("transform")]
    down = {
        text: float(re.search(r" ([\d.]+)", group.get("transform"))[1])
        for group in moved
        for text in group.iter()
    }
    for element in root.iter(f"{NAMESPACE}text"):
        if element.get("aria-hidden"):
            continue
        size, bold = float(element.get("font-size")), element.get("font-weight") == "bold"
        wide = design.width(element.text or "", size, bold)
        wide += sum(5 + design.width(inner.text, float(inner.get("font-size"))) for inner in element)
        x = float(element.get("x")) - {"end": wide, "middle": wide / 2}.get(element.get("text-anchor"), 0)
        y = float(element.get("y")) + down.get(element, 0.0)
        found.append(
            (Rect(x + 0.5, y - size * 0.72, wide - 1, size * 0.72 - 0.5), "".join(element.itertext()))
        )
    return found


def overlapping(svg):
    """Pairs of texts that touch, and texts that leave the picture."""
    root = ET.fromstring(svg)
    found = texts(svg)
    clashes = [
        (one, other) for index, (a, one) in enumerate(found) for b, other in found[index + 1 :] if a.meets(b)
    ]
    wide, high = float(root.get("width")), float(root.get("height"))
    return clashes + [
        (text, "the edge") for r, text in found if r.x < 0 or r.y < 0 or r.x + r.w > wide or r.y + r.h > high
    ]


@plans
def test_labels_are_inside_their_boxes_and_clear_of_lines_or_else_hide_them(make):
    layout = lay_out(make())
    lines = [line for _, points in layout.pieces for line in pairwise(points)]
    lines += [(arrow.start, arrow.end) for arrow in layout.arrows]
    for box in layout.boxes:
        assert bool(box_labels(layout, box)) == box.named
        for label in box_labels(layout, box):
            r = label.rect
            assert label.ground or not any(r.crosses(*line) for line in lines)
            assert box.x <= r.x and r.x + r.w <= box.x + box.w
            assert box.y <= r.y + 1.5 and r.y + r.h <= box.y + box.h + 2.5
    for label in free_labels(layout):
        assert not any(label.rect.crosses(*line) for line in lines), label
        assert not any(label.rect.meets(Rect(b.x, b.y, b.w, b.h)) for b in layout.boxes), label


@plans
def test_all_is_drawn_to_scale_with_its_name_and_the_use_of_each_device(make):
    plan = make()
    layout, svg = lay_out(plan), placed_svg(plan)
    assert overlapping(svg) == []
    drawn = [cluster for box in layout.boxes for cluster in box.card.clusters]
    assert sorted(drawn) == sorted(placed.cluster for placed in plan.placed)
    moved = {id(arrow.transfer) for arrow in layout.arrows}
    assert len(moved) == len(layout.arrows) and moved <= set(map(id, plan.transfers))
    groups = [group for group in ET.fromstring(svg).iter(f"{NAMESPACE}g") if group.get("data-facts")]
    titles = {group.get("data-facts"): group.find(f"{NAMESPACE}title").text for group in groups}
    assert len(titles) == len(groups) == len(layout.boxes) + len(layout.arrows)
    for index, box in enumerate(layout.boxes):
        assert (box.y, box.y + box.h) == pytest.approx((layout.y(box.card.start), layout.y(box.card.end)))
        assert titles[f"b{index}"].startswith(box.card.title)
    for index, arrow in enumerate(layout.arrows):
        step = arrow.transfer
        assert (arrow.start[1], arrow.end[1]) == pytest.approx((layout.y(step.start), layout.y(step.end)))
        assert size(step.bytes) in titles[f"t{index}"]
    for column, other in pairwise(sorted(layout.columns.values(), key=lambda c: c.x)):
        assert column.right < other.x
    assert ("EMULATED" in svg) == bool(plan.costed.machine.label)
    words = [text for _, text in texts(svg)]
    for column in layout.columns.values():
        peak = plan.peaks.get(column.device, 0)
        assert not (column.lanes or peak) or any(text.startswith(f"peak {size(peak)}") for text in words)
    used = [column for column in layout.columns.values() if column.lanes]
    assert sum(text.startswith("busy ") for text in words) >= len(used)
    assert "critical path" in words and ("transfer, slope = its time" in words) == bool(layout.arrows)


def check_fold(plan, budget=BUDGET):
    cards = fold(plan, budget)
    assert sum(map(len, cards.values())) <= max(budget, len(cards))
    for lane, held in cards.items():
        for one, other in pairwise(held):
            assert one.end <= other.start + 1e-12
        steps = [step for step in plan.orders[lane] if isinstance(step, Placed)]
        assert [cluster for card in held for cluster in card.clusters] == [step.cluster for step in steps]
        for card in held:
            clusters = [plan.place[cluster] for cluster in card.clusters]
            assert card.start == clusters[0].start and card.end == max(cluster.end for cluster in clusters)
            assert card.busy == pytest.approx(sum(cluster.end - cluster.start for cluster in clusters))
            if card.copies:
                assert tuple(cluster for copy in card.copies for cluster in copy.clusters) == card.clusters
                assert sum(copy.busy for copy in card.copies) == pytest.approx(card.busy)


@given(st.integers(1, 400), st.integers(0, 50), st.integers(1, 4), st.integers(1, 3), st.integers(1, 150))
@example(52, 4, 1, 1, 1)
@settings(max_examples=15, deadline=None)
def test_folding_keeps_times_and_order(clusters, seed, accelerators, cpu_lanes, budget):
    check_fold(view_plans.rough(clusters, seed, accelerators, cpu_lanes), budget)


@pytest.mark.slow
def test_large_plans_have_few_boxes_and_no_overlaps():
    plan = view_plans.rough(2000, 1)
    layout = lay_out(plan)
    assert len(layout.boxes) <= 150 and len(layout.arrows) <= 160
    svg = placed_svg(plan)
    assert overlapping(svg) == []
    assert f"{len(layout.arrows):,} of {len(plan.transfers):,} transfers drawn" in svg
    for critical in (True, False):
        drawn = [arrow.transfer for arrow in layout.arrows if arrow.critical == critical]
        others = [
            step
            for number, step in enumerate(plan.steps)
            if isinstance(step, Transfer) and (number in plan.critical.path) == critical and step not in drawn
        ]
        assert max((each.bytes for each in others), default=0) <= min(each.bytes for each in drawn)


def test_equal_blocks_fold_and_the_slowest_stays_open():
    cards = [card for held in fold(view_plans.transformer()).values() for card in held]
    stacks = [card for card in cards if card.copies]
    names = [copy.title for card in stacks for copy in card.copies]
    assert "model.layers.3" not in names and len(names) == len(set(names)) == 11
    assert all(card.start < card.end for card in stacks)
    open_clusters = {cluster for card in cards if not card.copies for cluster in card.clusters}
    assert "mlp_up_3" in open_clusters


@plans
def test_the_critical_path_is_a_chain_of_waits_to_the_end(make):
    plan = make()
    found = plan.critical
    steps = found.steps
    assert steps[found.path[-1]].end == pytest.approx(plan.makespan)
    for before, after in pairwise(found.path):
        assert before in {wait.step for wait in found.waits[after]}
        assert steps[before].end <= steps[after].start + 1e-12
    for index in found.path:
        assert found.slack[index] == pytest.approx(0, abs=1e-9 * plan.makespan + 1e-15)
    assert found.compute_s + found.transfer_s <= plan.makespan * (1 + 1e-9)
    assert min(found.slack) >= 0


@given(st.integers(2, 60), st.integers(0, 30), st.data())
@settings(max_examples=20, deadline=None)
def test_a_step_may_be_late_by_its_slack(clusters, seed, data):
    plan = view_plans.rough(clusters, seed)
    found = plan.critical
    late = data.draw(st.integers(0, len(found.steps) - 1))
    for share, longer in ((0.999, False), (1.5, True)):
        extra = found.slack[late] * share + (1e-3 if longer else 0)
        ends = {}
        for index in sorted(
            range(len(found.steps)), key=lambda i: (found.steps[i].start, found.steps[i].end)
        ):
            step = found.steps[index]
            shift = max((ends.get(w.step, found.steps[w.step].end) for w in found.waits[index]), default=0.0)
            start = max(step.start, shift)
            ends[index] = start + (step.end - step.start) + (extra if index == late else 0)
        assert (max(ends.values()) > plan.makespan * (1 + 1e-9)) == longer


@plans
def test_the_thread_is_unbroken(make):
    layout = lay_out(make())
    for (_, one), (_, other) in pairwise(layout.pieces):
        assert one[-1] == pytest.approx(other[0])
    last = layout.plan.critical.steps[layout.plan.critical.path[-1]]
    assert layout.pieces[-1][1][-1][1] == pytest.approx(layout.y(last.end))


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_the_cpu_stands_where_transfers_skip_the_fewest_columns(name):
    layout = lay_out(view_plans.ALL[name]())
    at = {device: index for index, device in enumerate(layout.columns)}
    assert sum(abs(at[t.src] - at[t.dst]) - 1 for t in layout.plan.transfers) <= (name != "mlp")


@pytest.mark.slow
def test_pictures_are_the_same_bytes_under_any_hash_seed_and_load_no_torch(tmp_path):
    code = (
        "import view_plans, sys; from autopar.view import draw; "
        "[draw(view_plans.rough(90, 4), f'{sys.argv[1]}/a.{s}') for s in ('html', 'svg')]; "
        "print('torch' in sys.modules)"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])])
    env = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path}
    call = [sys.executable, "-c", code, str(tmp_path)]
    assert "False" in subprocess.run(call, env=env, capture_output=True, text=True, check=True).stdout
    for suffix in ("html", "svg"):
        draw(view_plans.rough(90, 4), tmp_path / f"b.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_an_empty_plan_and_one_without_time_can_be_drawn(tmp_path):
    on = view_plans.machine(1)
    nothing = view_plans.build("nothing", [], on, outputs=("x",))
    instant = view_plans.build("instant", [view_plans.Job("a", "cpu/0", 0.0, ("x",))], on)
    for plan in (nothing, instant):
        for suffix in ("html", "svg"):
            draw(plan, tmp_path / f"a.{suffix}")
        ET.fromstring((tmp_path / "a.svg").read_text())


def test_another_suffix_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(AutoparError, match=r"\.html, \.svg, \.png, \.pdf"):
        draw(view_plans.lone(), tmp_path / "a.gif")


def test_a_picture_for_a_paper_has_its_width_theme_and_fonts(tmp_path):
    pytest.importorskip("cairosvg")
    plan = view_plans.mlp()
    plan.draw(tmp_path / "a.svg", width=1500, theme="dark")
    root = ET.fromstring((tmp_path / "a.svg").read_text())
    assert float(root.get("width")) == 1500 and "#FFFFFF" not in ET.tostring(root, "unicode")
    plan.draw(tmp_path / "a.png", width=1000)
    assert int.from_bytes((tmp_path / "a.png").read_bytes()[16:20], "big") == 2000
    plan.draw(tmp_path / "a.pdf")
    view_plans.measured(plan).save(tmp_path / "run.pdf", width=1000, theme="dark")
    for name in ("a.pdf", "run.pdf"):
        written = (tmp_path / name).read_bytes()
        assert written.startswith(b"%PDF") and b"/FontFile" in written
    for more in ({"theme": "blue"}, {"width": -1}, {"width": "wide"}):
        with pytest.raises(AutoparError, match=next(iter(more))):
            plan.draw(tmp_path / "a.svg", **more)
    with pytest.raises(AutoparError, match=r"\.svg, \.png, \.pdf"):
        plan.draw(tmp_path / "a.html", theme="dark")


def test_png_needs_cairosvg_and_says_how_to_get_it(tmp_path, monkeypatch):
    real = builtins.__import__
    for raised, wanted in (
        (ImportError("no"), r"pip install 'autopar\[png\]'"),
        (OSError("no cairo"), "cairo library"),
    ):

        def fake(name, *rest, raised=raised, **more):
            if name == "cairosvg":
                raise raised
            return real(name, *rest, **more)

        monkeypatch.setattr(builtins, "__import__", fake)
        with pytest.raises(AutoparError, match=wanted):
            draw(view_plans.lone(), tmp_path / "a.png")


def test_a_wait_for_the_bus_is_drawn_from_ready_to_start():
    plan = view_plans.mlp()
    layout = lay_out(plan)
    queued = {
        t.value
        for t in plan.transfers
        if isinstance(t, Transfer) and t.start - t.ready > 0.05 * plan.makespan
    }
    shown = {arrow.transfer.value for arrow in layout.arrows if arrow.ready_y is not None}
    assert queued and queued <= shown
