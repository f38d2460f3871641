"""Timelines put one after the other: nothing but the origin of time changes."""

from __future__ import annotations

import random

import pytest

from autopar.ir.timeline import Memory, Span, Timeline

LANES = ("cpu/0", "gpu/0", "gpu/in")


def timeline(seed: int, *, predicted: bool = True) -> Timeline:
    rng = random.Random(seed)
    spans, free = [], dict.fromkeys(LANES, 0.0)
    for number in range(12):
        lane = rng.choice(LANES)
        ready = free[lane] + rng.random() * 1e-3
        start = ready + rng.random() * 1e-3
        free[lane] = end = start + rng.random() * 1e-3
        device = lane.split("/")[0]
        copy = {"src": "cpu", "dst": "gpu", "bytes": 8, "ready": ready} if lane == "gpu/in" else {}
        kind = "copy" if copy else "compute"
        spans.append(Span(lane, device, kind, f"s{number}", start, end, **copy))
    memory = (Memory("gpu", ((0.0, 0), (1e-3, 64), (2e-3, 0)), 128),)
    other = timeline(seed + 1000, predicted=False) if predicted else None
    return Timeline(
        "t", LANES, tuple(spans), max(free.values()), memory, "", rng.random(), other, rng.random(), (0, 3, 5)
    )


def queued(span: Span) -> float | None:
    return None if span.ready is None else span.start - span.ready


def test_what_comes_after_is_moved_as_a_whole():
    first, second = timeline(0), timeline(50)
    both = first.then(second)
    assert both.spans[: len(first.spans)] == first.spans
    assert both.makespan == pytest.approx(first.makespan + second.makespan)
    for before, after in zip(second.spans, both.spans[len(first.spans) :], strict=True):
        assert after.start == pytest.approx(before.start + first.makespan)
        assert after.seconds == pytest.approx(before.seconds)
        assert queued(after) == pytest.approx(queued(before))
        assert after.start >= max(span.end for span in first.spans)
    names = [both.spans[number].name for number in both.path]
    assert names == [t.spans[number].name for t in (first, second) for number in t.path]
    assert both.late == max(first.late, second.late)
    assert both.needs_slow_down == max(first.needs_slow_down, second.needs_slow_down)
    (memory,) = both.memory
    assert [at for at, _ in memory.steps] == sorted(at for at, _ in memory.steps)
    assert memory.peak == max(m.peak for t in (first, second) for m in t.memory) and memory.cap == 128
    assert both.predicted is not None
    assert both.predicted.makespan == pytest.approx(first.predicted.makespan + second.predicted.makespan)
    assert all(both.busy(lane) == pytest.approx(first.busy(lane) + second.busy(lane)) for lane in LANES)
