"""Plans of task graphs whose seconds and bytes are any numbers that a graph file may have: `Plan.load` reads back what
`Plan.save` wrote."""

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from taskfiles import randomly

import autopar

FRACTIONS = st.one_of(
    st.sampled_from((0, 0.1, 0.7, 1 / 3, 1, 2**53 + 1)),
    st.floats(0, 10),
    st.floats(1e-9, 1e12),
    st.floats(0, 1e30, allow_subnormal=True),
    st.integers(0, 10**30),
)
SECONDS = st.one_of(st.floats(0, 2), st.floats(0, 1e30, allow_subnormal=True))


@st.composite
def graphs(draw: st.DrawFn) -> dict:
    """A graph file with any bytes and seconds."""
    graph = randomly(random.Random(draw(st.integers(0, 10**6))), 7)
    for entry in (*graph["values"], *graph["tasks"]):
        for key in ("bytes", "workspace_bytes", "state_bytes"):
            if key in entry:
                entry[key] = draw(FRACTIONS)
    for task in graph["tasks"]:
        task["seconds"] = {device: draw(SECONDS) for device in task["seconds"]}
    for link in graph["links"]:
        link["latency_s"] = draw(SECONDS)
        link["bytes_per_s"] = draw(st.floats(1e-3, 1e30))
    return graph


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(graphs())
def test_a_plan_of_any_numbers_survives_its_file(graph):
    plan = autopar.schedule(graph)
    assert all(count >= 0 for memory in plan.memory for _, count in memory.steps)
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder, "plan.json"))
        loaded = autopar.Plan.load(Path(folder, "plan.json"))
    assert (loaded.placed, loaded.transfers, loaded.memory) == (plan.placed, plan.transfers, plan.memory)


def test_a_device_that_has_freed_all_fractions_of_bytes_holds_nothing(tmp_path):
    graph = {
        "tasks": [{"id": task, "seconds": {"cpu": 1.0}} for task in "abcd"],
        "values": [
            {"id": "v", "producer": "a", "consumers": ["b", "d"], "bytes": 0.1},
            {"id": "w", "producer": "b", "consumers": ["c"], "bytes": 0.7},
            {"id": "x", "producer": "c", "consumers": ["d"], "bytes": 0},
        ],
        "devices": [{"name": "cpu"}],
    }
    plan = autopar.schedule(graph)
    assert plan.peaks == {"cpu": pytest.approx(0.8)}
    assert plan.memory[0].steps[-1][1] == 0
    plan.save(tmp_path / "plan.json")
    assert autopar.Plan.load(tmp_path / "plan.json").memory == plan.memory
