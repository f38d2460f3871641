"""Graphs of other sources than our own files, as costed graphs: the public sets and networkx."""

import json
from typing import Any

import networkx
import numpy
import pytest
from benchmarks.verify import infeasibilities
from taskfiles import small

from autopar.errors import AutoparError, PlanError
from autopar.planner import schedule
from autopar.planner.formats import described, plain, read, text

STG = """3
0 0 0
1 3 1 0
2 4.5 1 0
3 2 2 1 2
4 0 1 3
# made by hand
"""


def test_standard_task_graphs(tmp_path):
    path = tmp_path / "rand.stg"
    path.write_text(STG)
    assert schedule(path, 1).makespan == 9.5
    assert schedule(path, 2).makespan == 6.5
    name, data = plain(path, 2)
    assert name == "rand"
    assert infeasibilities(data, described(schedule(path, 2))) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "is empty"), ("two\n", "whole number"), ("1\n0 1 1\n", "does not say so"), ("1\n0 1 2 0\n", "does not say"),
     ("1\n0 1\n", "does not say so"), ("1\n0 long 0\n", "the time 'long'"), ("1\n0 1 0\n0 1 0\n", "a second time"),
     ("9\n0 1 0\n", "says that it has 9 tasks and has 1"), ("1\n0 1 1 7\n", "waits for 7"),
     ("1\n0 -1 0\n", "negative"), ("2\n0 1 1 1\n1 1 1 0\n", "circle")],
)  # fmt: skip
def test_standard_task_graphs_that_are_none(tmp_path, content, says):
    path = tmp_path / "bad.stg"
    path.write_text(content)
    with pytest.raises(PlanError, match=says):
        schedule(path, 2)


def test_standard_task_graphs_need_a_number_of_processors(tmp_path):
    path = tmp_path / "rand.stg"
    path.write_text(STG)
    for given in (None, 0, True, read(small()).machine):
        with pytest.raises(AutoparError, match="number of them"):
            schedule(path, given)


def partitioning() -> dict[str, Any]:
    """Three operators of the dnn-partitioning format; the first and the last must share a device."""
    nodes = [
        {
            "id": n,
            "cpuLatency": 100.0,
            "fpgaLatency": 10.0,
            "size": 100.0,
            "supportedOnFpga": n != 2,
            "colorClass": c,
        }
        for n, c in ((1, 7), (2, None), (3, 7))
    ]
    edges = [{"sourceId": a, "destId": b, "cost": 4.0, "size": 1.0} for a, b in ((1, 2), (2, 3))]
    return {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 250.0 + 8e6, "nodes": nodes, "edges": edges}


def test_dnn_partitioning_graphs():
    plan = schedule(partitioning())
    where = {step.cluster: step.device for step in plan.placed}
    assert where["2"] == "cpu"
    assert where["1"] == where["3"] == "accelerator:0"
    # 10 ms, out, 100 ms on the CPU, in, 10 ms.
    assert plan.makespan == pytest.approx(0.128)
    assert infeasibilities(plain(partitioning())[1], described(plan)) == []
    tight = {**partitioning(), "maxSizePerFPGA": 150.0}
    assert {step.device for step in schedule(tight).placed} == {"cpu"}


@pytest.mark.parametrize(("cap", "on"), ((200, "accelerator:0"), (199, "cpu")))
def test_what_nodes_of_the_set_send_takes_no_room_from_them_and_gives_none(cap, on):
    graph = {**partitioning(), "maxFPGAs": 1, "maxSizePerFPGA": cap}
    graph["nodes"] = [{"id": n, "cpuLatency": 1e9, "fpgaLatency": 1.0, "size": 100} for n in (1, 2)]
    graph["edges"] = [{"sourceId": 1, "destId": 2, "cost": 1e7}]
    plan = schedule(graph)
    assert on in {step.device for step in plan.placed}
    assert plan.peaks["accelerator:0"] > 200 or on == "cpu", "the output is there as well"


@pytest.mark.parametrize(
    ("change", "says"),
    [({"nodes": 3}, "'nodes' of the graph is 3"), ({"maxFPGAs": ...}, "no 'maxFPGAs'"), ({"maxCPUs": -1}, "negative"),
     ({"maxCPUs": 1.5}, "'maxCPUs' of the graph is 1.5; it must be a whole number from 0"),
     ({"edges": [{"sourceId": 1, "destId": 9, "cost": 1}]}, r"'destId' of edges\[0\] is '9', which is not a node"),
     ({"edges": [{"sourceId": 1, "destId": 2}]}, "no 'cost'"),
     ({"nodes": [{"id": 1}]}, "node 1 has no 'cpuLatency'")],
)  # fmt: skip
def test_dnn_partitioning_graphs_that_are_none(change, says):
    graph = {key: value for key, value in {**partitioning(), **change}.items() if value is not ...}
    with pytest.raises(PlanError, match=says):
        schedule(graph)


def test_networkx_graphs():
    graph = networkx.DiGraph(name="two")
    graph.add_node("a", seconds={"cpu": 1.0, "gpu": 0.5})
    graph.add_node(2, seconds=1.0, pin="gpu", state_bytes=10)
    graph.add_node(3, seconds=1.0)
    graph.add_edge("a", 2, bytes=100, value="v")
    graph.add_edge("a", 3, bytes=100, value="v")
    graph.add_edge(2, 3)
    on = read(small()).machine
    costed = read(graph, on)
    assert costed.graph.name == "two"
    assert [(v.name, v.bytes) for v in costed.graph.values if v.kind == "made"] == [
        ("a: v", 100),
        ("2 → 3", 0),
    ]
    assert infeasibilities({**small(), **plain(graph, on)[1]}, described(schedule(graph, on))) == []


def test_numbers_may_be_those_of_numpy():
    graph = networkx.DiGraph(devices=[{"name": "p", "lanes": numpy.int64(2)}])
    graph.add_node("a", seconds=numpy.int64(1))
    graph.add_node("b", seconds={"p": numpy.float32(0.5)})
    graph.add_edge("a", "b", bytes=numpy.uint8(7))
    plan = schedule(graph)
    assert plan.makespan == 1.5
    assert json.loads(text(plan))["tasks"][1]["end_s"] == 1.5


def test_edges_of_a_networkx_multigraph_are_values_of_their_own():
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from((1, 2), seconds=1.0)
    graph.add_edge(1, 2, bytes=100)
    graph.add_edge(1, 2, bytes=200)
    costed = read(graph, read(small()).machine)
    assert sorted(v.bytes for v in costed.graph.values if v.kind == "made") == [100, 200]
    assert schedule(costed, pins={"1": "gpu"}).place["1"].device == "gpu"
    assert schedule(costed, pins={1: "gpu"}).place["1"].device == "gpu"


@pytest.mark.parametrize(
    ("devices", "says"),
    [("cpu", "must be a list"), (["cpu"], "must be an object"), ([{"lanes": 2}], "no 'name'")],
    ids=str,
)
def test_devices_of_a_networkx_graph_that_are_none(devices, says):
    graph = networkx.DiGraph(devices=devices)
    graph.add_node("a", seconds=1.0)
    with pytest.raises(PlanError, match=says):
        schedule(graph)


def test_networkx_graphs_that_are_none():
    on = read(small()).machine
    graph = networkx.DiGraph([("a", "b")])
    with pytest.raises(PlanError, match="has no devices"):
        schedule(graph)
    with pytest.raises(PlanError, match=r"node 'a' has no 'seconds'"):
        schedule(graph, on)
    networkx.set_node_attributes(graph, 1.0, "seconds")
    graph.add_edge("b", "a")
    with pytest.raises(PlanError, match="circle"):
        schedule(graph, on)
    with pytest.raises(PlanError, match="directed"):
        schedule(networkx.Graph([("a", "b")]), on)
