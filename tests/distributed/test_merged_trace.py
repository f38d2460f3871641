"""Timelines of all ranks on one clock: measured against a clock that all processes of a machine share."""

from __future__ import annotations

import itertools
import json
import socket
import time
import types

import pytest
from helpers.ranks import ranks

pytestmark = pytest.mark.slow

SKEW = 5.0
"""Seconds by which the clocks of ranks are wrong, times their rank."""


def _skewed(rank: int) -> None:
    """Let this rank read a clock that is wrong, as that of another host would be."""
    import autopar.distributed.merged_trace as merged_trace

    clock = types.SimpleNamespace(perf_counter=lambda: time.perf_counter() + SKEW * rank)
    merged_trace.time = clock


def _offset(rank: int) -> tuple[float, float]:
    from autopar.distributed.merged_trace import clock_offset

    _skewed(rank)
    time.sleep(0.05 * rank)
    return clock_offset()


def test_clock_offsets_are_within_their_reported_error():
    first, *others = ranks(3, _offset)
    assert first == (0.0, 0.0)
    for rank, (offset, error) in enumerate(others, 1):
        assert abs(offset + SKEW * rank) <= error < 0.1


def _turns(rank: int, path: str) -> list | None:
    """Each rank works in turn, one after the other has ended; rank 0 gives the spans as merged, by their start."""
    import torch.distributed as dist

    from autopar.distributed import merged
    from autopar.ir.timeline import Memory, Span, Timeline

    _skewed(rank)
    began, spans = time.perf_counter(), []
    for turn in range(6):
        dist.barrier()
        if turn % 2 == rank:
            start = time.perf_counter() - began
            time.sleep(0.02)
            spans.append(Span("cpu/0", "cpu", "compute", f"turn {turn}", start, time.perf_counter() - began))
        dist.barrier()
    makespan = time.perf_counter() - began
    timeline = Timeline(
        "turns", ("cpu/0", "cpu/in"), tuple(spans), makespan, (Memory("cpu", ((0.0, 8), (0.01, 16))),),
        began=began + SKEW * rank,
    )  # fmt: skip
    found = merged([timeline])
    if found is None:
        return None
    found.save(path)
    return [
        found.title,
        *(
            (span.name, span.device, span.start, span.end)
            for span in sorted(found.spans, key=lambda s: s.start)
        ),
    ]


def test_work_done_in_turns_is_shown_in_turns(tmp_path):
    path = tmp_path / "trace.json"
    (title, *spans), nothing = ranks(2, _turns, str(path))
    assert nothing is None and title.startswith("turns on 2 ranks, whose clocks agree within ")
    host = socket.gethostname()
    assert [name for name, *_ in spans] == [f"turn {turn}" for turn in range(6)]
    assert [device for _, device, *_ in spans] == [f"rank {turn % 2} ({host})/cpu" for turn in range(6)]
    # None begins before the one before it has ended, but for what clocks may be apart.
    assert all(before[3] <= after[2] + 0.01 for before, after in itertools.pairwise(spans))
    data = json.loads(path.read_text())
    assert data["distributedInfo"] == {"rank": 0, "world_size": 2}
    events = data["traceEvents"]
    rows = {e["args"]["name"]: e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert list(rows) == [f"rank 0 ({host})", f"rank 1 ({host})"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == 6
    for event in slices:
        assert {"name", "cat", "pid", "tid", "ts", "dur", "args"} <= event.keys()
        assert event["ts"] >= 0 and event["dur"] >= 20_000 * 0.9
        assert event["pid"] == rows[f"rank {int(event['name'][-1]) % 2} ({host})"]
        assert threads[event["pid"], event["tid"]] == "cpu compute 0"
    assert {(e["pid"], e["name"]) for e in events if e["ph"] == "C"} == {
        (pid, "memory cpu") for pid in rows.values()
    }


def _recorded(rank: int) -> tuple | None:
    import torch

    import autopar
    from autopar.distributed.merged_trace import merged

    torch.manual_seed(0)
    fast = autopar.compile(torch.nn.Linear(4, 4), ["cpu"], check="never", measure=False)
    x = torch.ones(2, 4)
    with torch.no_grad(), fast.record() as recording:
        fast(x)
        fast(x)
    try:
        merged([fast.plan.timeline()])
    except autopar.RunError as error:
        said = str(error)
    found = merged(recording.calls)
    fast.close()
    if found is None:
        return None
    return said, found.ranks, len(found.spans), found.makespan, len({span.device for span in found.spans})


def test_recorded_calls_of_compiled_models_are_merged():
    (said, count, spans, makespan, devices), nothing = ranks(2, _recorded)
    assert nothing is None and "rank 0 gave a predicted timeline" in said
    assert (count, devices) == (2, 2) and spans >= 4 and 0 < makespan < 60


def test_one_process_merges_its_own(tmp_path):
    import pytest

    from autopar import RunError, Timeline
    from autopar.distributed.merged_trace import merged

    alone = merged(
        [Timeline("t", ("cpu/0",), (), 1.0, began=3.0), Timeline("t", ("cpu/0",), (), 1.0, began=5.0)]
    )
    assert alone is not None and alone.makespan == 3.0 and alone.ranks == 1
    with pytest.raises(RunError, match="no rank has recorded a call"):
        merged([])
