"""Saved plans: `Plan.load` reads back what `Plan.save` wrote, for any numbers that a graph file may have, and with the
names that people read."""

import json
import random
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from taskfiles import randomly
from torch import nn

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


@pytest.fixture(scope="module")
def split_plan():
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    machine = autopar.Machine.declare("cpu", "t4", "t4")
    return autopar.plan(model, machine, example_inputs=[torch.randn(8, 16)], split=2)


def displayed(plan):
    graph = plan.costed.graph
    return {task.name: task.label for task in graph.tasks}, {v.name: (v.part, v.label) for v in graph.values}


def test_a_saved_plan_keeps_the_labels_and_parts_of_tasks_and_values(split_plan, tmp_path):
    split_plan.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    tasks, values = displayed(split_plan)
    assert any(tasks.values()) and all(map(any, zip(*values.values())))
    assert displayed(loaded) == (tasks, values)
    assert loaded == split_plan and str(loaded) == str(split_plan)


def test_a_file_without_labels_and_parts_is_the_same_plan_with_plainer_names(split_plan, tmp_path):
    split_plan.save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    graph = data["plan"]["costed"]["graph"]
    for task in graph["tasks"]:
        task.pop("label", None)
    for value in graph["values"]:
        value.pop("label", None), value.pop("part", None)
    (tmp_path / "old.json").write_text(json.dumps(data))
    loaded = autopar.Plan.load(tmp_path / "old.json")
    assert loaded == split_plan and loaded.explain("all")
    assert not any(task.label for task in loaded.costed.graph.tasks)


def test_a_file_of_a_plan_has_an_entry_on_one_line(split_plan, tmp_path):
    split_plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    lines = text.splitlines()
    assert 4 * len(lines) < len(json.dumps(json.loads(text), indent=1).splitlines())
    assert max(map(len, lines)) < 1000
