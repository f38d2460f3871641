"""Graphs of networkx, as costed graphs."""

import networkx
import numpy
import pytest
from benchmarks.judging import described
from taskfiles import small

from autopar.errors import PlanError
from autopar.planner import schedule
from autopar.planner.formats import read


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
    assert {transfer.value for transfer in schedule(graph, on).transfers} <= {"a: v", "2 → 3"}


def test_numbers_may_be_those_of_numpy():
    graph = networkx.DiGraph(devices=[{"name": "p", "lanes": numpy.int64(2)}])
    graph.add_node("a", seconds=numpy.int64(1))
    graph.add_node("b", seconds={"p": numpy.float32(0.5)})
    graph.add_edge("a", "b", bytes=numpy.uint8(7))
    plan = schedule(graph)
    assert plan.makespan == 1.5
    assert described(plan)["tasks"][1]["end_s"] == 1.5


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
