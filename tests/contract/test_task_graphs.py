"""Task graphs of networkx on equal processors, devices without links, and options that are of the wrong kind."""

from __future__ import annotations

import logging
import math

import networkx
import pytest

import autopar

GRAPH = {
    "tasks": [{"id": "a", "seconds": {"cpu": 1.0}}, {"id": "b", "seconds": {"cpu": 2.0}}],
    "values": [{"id": "v", "producer": "a", "consumers": ["b"], "bytes": 8}],
    "devices": [{"name": "cpu"}],
}  # fmt: skip


def diamond(seconds=1.0, **attributes):
    """A task, two that need it, and one that needs these."""
    graph = networkx.DiGraph([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")], **attributes)
    for node in graph:
        graph.nodes[node]["seconds"] = seconds
    return graph


@pytest.mark.parametrize(("processors", "makespan"), [(1, 4.0), (2, 3.0), (8, 3.0)])
def test_a_networkx_graph_is_planned_on_equal_processors(processors, makespan):
    graph = diamond()
    networkx.set_edge_attributes(graph, 1e9, "bytes")
    plan = autopar.schedule(graph, processors)
    assert plan.makespan == pytest.approx(makespan) and plan.gap == pytest.approx(0)
    assert len({step.lane for step in plan.placed}) == min(processors, 2)
    assert "devices" not in graph.graph  # the user's graph is as it was


@pytest.mark.parametrize("processors", [0, -1, True, 2.5])
def test_no_number_of_processors(processors):
    with pytest.raises(autopar.DeviceError):
        autopar.schedule(diamond(), processors)


def test_equal_processors_have_one_time_for_each_task():
    with pytest.raises(autopar.PlanError, match="all alike"):
        autopar.schedule(diamond({"p0": 1.0}), 2)
    with pytest.raises(autopar.DeviceError, match="networkx"):
        autopar.schedule(GRAPH, 2)


def test_devices_without_links_are_said(caplog):
    devices = [{"name": "p0"}, {"name": "p1"}]
    link = {"latency_s": 0.0, "bytes_per_s": 1e9}
    links = [{"src": "p0", "dst": "p1", **link}, {"src": "p1", "dst": "p0", **link}]
    for there, said in (([], "p0, p1"), (links, "")):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "autopar"):
            autopar.schedule(diamond(devices=devices, links=there))
        assert said in caplog.text and bool(caplog.text) == bool(said)
    caplog.clear()
    alone = networkx.DiGraph(devices=devices, links=[])
    alone.add_nodes_from("ab", seconds=1.0)
    assert autopar.schedule(alone).makespan == pytest.approx(1.0) and not caplog.text


WRONG = (
    0, -1, True, 1.5, "x", b"x", ["cpu"], {"a": ["cpu"]}, {"a": None}, {"a": 1}, {"a": {"cpu"}}, {"cpu": [1]},
    {"cpu": "x"}, {"cpu": math.nan}, {("a",): "cpu"}, {None: None}, object(), math.nan,
)  # fmt: skip


@pytest.mark.parametrize("option", ["pins", "memory", "budget_s", "machine"])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_options_of_the_wrong_kind_are_refused_in_a_sentence(option, wrong):
    try:
        autopar.schedule(GRAPH, **{option: wrong})
    except autopar.AutoparError as error:
        assert "\n" not in str(error)
    else:
        assert option == "budget_s" and (wrong is True or wrong == 1.5)
