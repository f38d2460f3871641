"""What a recorded call says: nested spans, copies, bytes alive, the declared clock and when its figures are
refused.
"""

from __future__ import annotations

import itertools
import re
import time

import pytest
import torch
from runtime_cases import Case, mlp

from autopar.errors import LateError
from autopar.ir.graph import Ref

EMULATED = ("cpu/0", "emulated:0/0", "emulated:1/0")


@torch.no_grad()
def test_spans_are_nested_and_copies_follow_what_they_copy():
    case, x, eager = mlp(*EMULATED)
    executor = case.executor()
    (y,), timeline = executor.run([x])
    assert torch.equal(y, eager(x))
    assert timeline.label.startswith("EMULATED") and timeline.makespan > 0
    tasks = {span.name: span for span in timeline.spans if span.kind == "compute" and span.cluster}
    clusters = {span.name: span for span in timeline.spans if span.kind == "compute" and not span.cluster}
    copies = [span for span in timeline.spans if span.kind == "copy"]
    assert list(tasks) == ["h", "a", "y"]
    for task in tasks.values():
        assert (
            clusters[task.cluster].start
            <= task.start
            <= task.end
            <= clusters[task.cluster].end
            <= timeline.makespan
        )
        assert task.module == f"net.{task.name}" and task.source == "net.py:7"
    assert [(span.name, span.src, span.dst) for span in copies] == [
        ("h", "cpu", "emulated:0"), ("a", "emulated:0", "emulated:1"), ("y", "emulated:1", "cpu"),
    ]  # fmt: skip
    for span in copies:
        assert tasks[span.name].end <= span.ready <= span.start <= span.end
        assert span.bytes == case.graph().value[span.name].bytes
    assert timeline.predicted is not None and timeline.predicted.makespan > 0
    executor.close()


@torch.no_grad()
def test_bytes_alive_are_those_of_the_storages():
    n = 1 << 16
    case = Case(outputs=("c",), values={"x": torch.zeros(n)}, state={"w": torch.zeros(n)})
    case.task("emulated:0/0", "a", "aten.add.Tensor", Ref("x"), Ref("w"))
    case.task("emulated:0/0", "v", "aten.view.default", Ref("a"), (n, 1))
    case.task("emulated:0/0", "b", "aten.sum.default", Ref("v")).task(
        "cpu/0", "c", "aten.neg.default", Ref("b")
    )
    executor = case.executor()
    _, timeline = executor.run([torch.zeros(n)])
    memory = {memory.device: memory for memory in timeline.memory}
    # Input and weight at home; on the accelerator copies of both, their sum (a view adds nothing) and a scalar.
    assert 8 * n <= memory["cpu"].peak < 9 * n
    assert 12 * n <= memory["emulated:0"].peak < 13 * n
    assert memory["emulated:0"].steps[0] == (0.0, 4 * n), "at the start only what resides there"
    assert memory["emulated:0"].steps[-1][1] == 4 * n, "at the end nothing else is left"
    executor.close()


@pytest.mark.parametrize("lanes", [("cpu/0",) * 3, ("cpu/0", "cpu/1", "cpu/0"), EMULATED])
@torch.no_grad()
def test_a_declared_clock_lasts_what_the_model_says(lanes):
    case, x, eager = mlp(*lanes, clock="declared", slow_down=20.0)
    executor = case.executor()
    began = time.perf_counter()
    assert torch.equal(executor([x])[0], eager(x))
    modelled = 3 * case.seconds * case.slow_down
    assert time.perf_counter() - began >= modelled
    (y,), timeline = executor.run([x])
    assert torch.equal(y, eager(x))
    assert timeline.makespan >= modelled
    tasks = [span for span in timeline.spans if span.cluster]
    # Each starts when the one before has ended in the model, so ends never come before their time.
    for number, span in enumerate(sorted(tasks, key=lambda span: span.end), 1):
        assert span.end >= number * case.seconds * case.slow_down
    assert ("declared clock × 20" in timeline.label) == (lanes is EMULATED)
    assert timeline.predicted.makespan == pytest.approx(modelled), "the prediction is in the same clock"
    executor.close()


@pytest.mark.parametrize(
    ("slow_down", "seconds"), [(100.0, 1e-3), pytest.param(1500.0, 1e-5, marks=pytest.mark.slow)]
)
@torch.no_grad()
def test_lanes_overlap_on_a_declared_clock_and_one_wire_carries_one_copy_at_a_time(slow_down, seconds):
    case = Case(outputs=("c",), clock="declared", slow_down=slow_down, seconds=seconds)
    for lane, name in (("emulated:0/0", "a"), ("emulated:1/0", "b")):
        case.task(lane, name, "aten.neg.default", Ref("x"))
    executor = case.task("cpu/0", "c", "aten.add.Tensor", Ref("a"), Ref("b")).executor()
    executor([torch.zeros(4, 4)])
    _, timeline = executor.run([torch.zeros(4, 4)])
    a, b = (next(span for span in timeline.spans if span.cluster == name) for name in "ab")
    if seconds > 1e-4:
        assert max(a.start, b.start) < min(a.end, b.end)
    else:
        copies = sorted((span for span in timeline.spans if span.kind == "copy"), key=lambda span: span.end)
        for earlier, later in itertools.pairwise(copies):
            assert later.end >= earlier.end + 0.5 * 1e-4 * slow_down, "both copies used the bus at once"
    executor.close()


@pytest.mark.slow
@torch.no_grad()
def test_figures_are_refused_when_the_clock_cannot_be_kept():
    case = Case(
        outputs=("b",), calls={"slow": lambda x: time.sleep(0.05) or x + 1}, clock="declared", slow_down=1.0
    )
    case.task("emulated:0/0", "a", "slow", Ref("x")).task("cpu/0", "b", "slow", Ref("a"))
    executor = case.executor()
    _, late = executor.run([torch.zeros(4, 4)])
    assert late.late > 1 and "LATE" in late.label
    with pytest.raises(LateError, match="slow_down=") as caught:
        late.on_time()
    needed = int(re.findall(r"slow_down=(\d+)", str(caught.value))[0])
    assert late.needs_slow_down <= needed < late.needs_slow_down + 1
    executor.close()
    assert late.needs_slow_down >= 0.05 / case.seconds
    case.slow_down = 2 * late.needs_slow_down
    executor = case.executor()
    executor.run([torch.zeros(4, 4)])
    _, timeline = executor.run([torch.zeros(4, 4)])
    assert timeline.late < late.late
    executor.close()
