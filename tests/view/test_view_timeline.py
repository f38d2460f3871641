"""Traces and timeline pictures: strictly nested, complete, legible, the same bytes every time."""

import gzip
import json
import random
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
import view_plans
from hypothesis import given, settings
from hypothesis import strategies as st
from test_view_placed import overlapping, texts

from autopar.ir.timeline import Memory, Placed, Span, Timeline
from autopar.view import save_timeline
from autopar.view.report import statistics
from autopar.view.timeline import corners, timeline_svg
from autopar.view.trace import trace

plans = pytest.mark.parametrize("make", view_plans.ALL.values(), ids=view_plans.ALL)


def nested(events):
    """Whether the spans of each thread are strictly nested, in the order a viewer sorts them."""
    threads = {}
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            threads.setdefault((event["pid"], event["tid"]), []).append(
                (start, start + round(event["dur"] * 1000))
            )
    for spans in threads.values():
        stack = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            if stack and end > stack[-1]:
                return False
            stack.append(end)
    return True


@plans
def test_spans_are_strictly_nested_and_all_there(make):
    timeline = view_plans.measured(make())
    events = trace(timeline)["traceEvents"]
    assert nested(events)
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(timeline.spans) + len(timeline.predicted.spans)
    assert sum(e["dur"] for e in spans) == pytest.approx(
        sum(s.seconds for side in (timeline, timeline.predicted) for s in side.spans) * 1e6,
        rel=1e-3,
        abs=len(spans) * 1e-3,
    )


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_any_spans_of_a_lane_are_nested(seed):
    draw = random.Random(seed)
    spans = []
    for index in range(draw.randrange(25)):
        start = draw.choice((0.0, 1e-6, draw.random()))
        end = start + draw.choice((0.0, 1e-9, draw.random()))
        spans.append(Span("cpu/0", "cpu", "compute", f"r{index}", start, end))
        if draw.random() < 0.5:
            late = end + draw.choice((0, 1e-7))
            spans.append(Span("cpu/0", "cpu", "compute", f"t{index}", start, late, cluster=f"r{index}"))
    events = trace(Timeline("t", ("cpu/0",), tuple(spans), 3.0))["traceEvents"]
    assert nested(events)
    assert sum(event["ph"] == "X" for event in events) == len(spans)


def test_devices_are_processes_and_lanes_are_threads():
    timeline = view_plans.measured(view_plans.mlp())
    data = trace(timeline)
    assert data["distributedInfo"] == {"rank": 0, "world_size": 1} and data["displayTimeUnit"] == "ms"
    assert data["otherData"]["label"] == timeline.label
    names = {e["pid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"}
    assert len(names) == 6 and all("EMULATED" in name for name in names.values())
    assert (
        sum("predicted" in name for name in names.values())
        == sum("measured" in name for name in names.values())
        == 3
    )
    order = {
        e["pid"]: e["args"]["sort_index"] for e in data["traceEvents"] if e["name"] == "process_sort_index"
    }
    assert len(set(order.values())) == 6
    threads = [(e["pid"], e["tid"]) for e in data["traceEvents"] if e["name"] == "thread_name"]
    assert len(threads) == len(set(threads)) == 2 * len(timeline.lanes)
    used = {(e["pid"], e["tid"]) for e in data["traceEvents"] if e["ph"] == "X"}
    assert used <= set(threads)


def test_saved_traces_are_the_same_bytes_and_the_same_trace(tmp_path):
    timeline = view_plans.measured(view_plans.mlp())
    for name in ("a.json", "a.json.gz", "b.json.gz"):
        timeline.save(tmp_path / name)
    packed = (tmp_path / "a.json.gz").read_bytes()
    assert packed == (tmp_path / "b.json.gz").read_bytes()
    assert packed[4:8] == b"\0\0\0\0", "a clock time in the gzip header"
    assert gzip.decompress(packed) == (tmp_path / "a.json").read_bytes()
    assert json.loads((tmp_path / "a.json").read_text()) == trace(timeline)


@plans
@pytest.mark.parametrize("side", ["predicted", "both"])
def test_no_texts_of_a_timeline_picture_overlap(make, side):
    plan = make()
    timeline = plan.timeline() if side == "predicted" else view_plans.measured(plan)
    svg = timeline_svg(timeline)
    ET.fromstring(svg)
    assert overlapping(svg) == []
    assert len(texts(svg)) > 10
    assert svg == timeline_svg(timeline)
    assert ("EMULATED" in svg) == bool(timeline.label)


@pytest.mark.slow
def test_hundreds_of_spans_stay_a_small_file(tmp_path):
    timeline = view_plans.measured(view_plans.rough(800))
    save_timeline(timeline, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size < 1_000_000
    assert overlapping((tmp_path / "a.svg").read_text()) == []


def test_an_empty_timeline_and_one_of_no_length_can_be_drawn(tmp_path):
    nothing = Timeline("nothing", ("cpu/0",), (), 0.0)
    instant = Timeline(
        "instant",
        ("cpu/0",),
        (Span("cpu/0", "cpu", "compute", "a", 0.0, 0.0),),
        0.0,
        (Memory("cpu", ((0.0, 5), (0.0, 0))),),
    )
    for timeline in (nothing, instant):
        for suffix in ("json", "json.gz", "svg", "html"):
            save_timeline(timeline, tmp_path / f"a.{suffix}")
        ET.fromstring((tmp_path / "a.svg").read_text())


@plans
def test_overlap_and_busy_are_shares_that_agree_with_sampling(make):
    timeline = make().timeline()
    busy, overlap = statistics.busy_shares(timeline), statistics.overlaps(timeline)
    draw = random.Random(0)
    moments = [draw.random() * timeline.makespan for _ in range(3000)]
    at_work = {
        lane: [any(s.start <= t < s.end for s in spans) for t in moments]
        for lane, spans in statistics.top_spans(timeline).items()
    }
    compute = [lane for lane in timeline.lanes if lane.rsplit("/", 1)[1] not in ("in", "out")]
    for lane in timeline.lanes:
        assert busy[lane] == pytest.approx(sum(at_work[lane]) / len(moments), abs=0.04)
        if overlap[lane] is None:
            assert not any(at_work[lane])
        elif sum(at_work[lane]) > 300:
            others = [other for other in compute if other != lane]
            both = sum(a and any(at_work[o][i] for o in others) for i, a in enumerate(at_work[lane]))
            assert overlap[lane] == pytest.approx(both / sum(at_work[lane]), abs=0.08)


@plans
def test_the_path_of_a_planned_timeline_is_that_of_the_plan(make):
    plan = make()
    steps = [plan.critical.steps[number] for number in plan.critical.path]
    names = {(step.cluster if isinstance(step, Placed) else step.value, step.start) for step in steps}
    timeline = plan.timeline()
    assert {(timeline.spans[n].name, timeline.spans[n].start) for n in timeline.path} == names


def test_a_memory_curve_of_many_steps_keeps_its_peak():
    steps = tuple((index * 1e-4, 5 if index != 4321 else 900) for index in range(10_000))
    memory = Memory("cpu", steps, 1000)
    points = corners(memory, lambda when: when * 1000, float, 1000.0)
    assert len(points) < 4_100
    assert max(level for _, level in points) == 900 and points[-1][1] == 5
    assert all(one[0] <= other[0] for one, other in pairwise(points))
