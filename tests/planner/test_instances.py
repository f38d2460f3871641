"""Graphs made from a seed: what they promise, and that they never change."""

import json
import os
import random
import subprocess
import sys

import pytest
from benchmarks.instances import SHAPES, planted, small

from autopar.planner.formats import read
from autopar.planner.model.instance import Instance


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_edges_go_forward(shape):
    for tasks in (1, 2, 10, 50):
        edges = SHAPES[shape](random.Random(tasks), tasks)
        assert len(edges) == tasks
        assert all(source < task for task, reads in enumerate(edges) for source in reads)


def test_small_graphs_are_what_they_say():
    for seed in range(40):
        graph = small(seed)
        instance = Instance(read(graph))
        assert 10 <= instance.clusters <= 50
        assert 2 <= len(instance.devices) <= 4
    assert len({json.dumps(small(seed)) for seed in range(20)}) == 20


@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
def test_the_ratio_is_that_of_transfers_to_tasks(ratio):
    graph = small(3, tasks=50, devices=4, ratio=ratio)
    each = [sum(task["seconds"].values()) / len(task["seconds"]) for task in graph["tasks"]]
    rate = graph["links"][0]["bytes_per_s"]
    trips = [value["bytes"] / rate for value in graph["values"]]
    assert 0.7 < (sum(trips) / len(trips)) / (sum(each) / len(each)) / ratio < 1.4


def test_a_planted_graph_fills_its_devices():
    graph, length = planted(0, 40, 3, 1.0, speeds=(1.0, 1.0, 2.0), memory=True, groups=3)
    work = sum(task["seconds"]["d0"] for task in graph["tasks"])
    assert work == pytest.approx(4.0 * length)
    assert any("colocate" in task for task in graph["tasks"])
    assert Instance(read(graph)).tight


@pytest.mark.slow
def test_every_process_makes_the_same():
    code = (
        "from benchmarks.instances import *; print(small(7), planted(7, 30, 3, 1.0, memory=True, groups=4))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        for seed in ("0", "1")
    }
    assert len(texts) == 1
