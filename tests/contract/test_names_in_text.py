"""Names from a graph file in text: they add no line, no terminal escape and no change of direction to any of it."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autopar
from autopar.__main__ import main
from autopar.errors import PlanError

NASTY = st.one_of(
    st.sampled_from(
        ("a\nlower bound 9 s (gap 0 %)", "\x1b]0;title\x07\x1b[31m", "a\x00", "\u202eevil", "\x9b1m", "\\n")
    ),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
)


def graph_of(task: str, value: str, other: str = "b") -> dict:
    return {
        "tasks": [{"id": task, "seconds": {"cpu": 1.0, "gpu": 2.0}}, {"id": other, "seconds": {"gpu": 1.0}}],
        "values": [{"id": value, "producer": task, "consumers": [other], "bytes": 8}],
        "devices": [{"name": "cpu"}, {"name": "gpu"}],
        "links": [{"src": "cpu", "dst": "gpu", "latency_s": 0.1, "bytes_per_s": 1e3, "wire": value}],
    }


def texts(graph: dict, task: str) -> list[str]:
    plan = autopar.schedule(graph)
    reasons = plan.explain(task)
    return [
        plan.explain(),
        reasons,
        str(plan),
        repr(plan),
        str(plan.costed.graph),
        str(plan.costed.machine),
    ]


def rows(text: str) -> int:
    """Return the number of lines, without those that continue another: they are indented."""
    return len(re.findall(r"^\S", text, re.M))


USUAL = texts(graph_of("a", "v"), "a")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(NASTY, NASTY)
def test_names_cannot_forge_lines_or_send_control_characters(task, value):
    if task in ("b", "[") or "*" in task or "?" in task or "[" in task:
        # Another task, or a glob.
        task = "a\n"
    for text, usual in zip(texts(graph_of(task, value), task), USUAL):
        assert rows(text) <= rows(usual)
        assert all(line.isprintable() for line in text.split("\n"))


def test_different_names_stay_different():
    assert "a\\\\n" in str(autopar.schedule(graph_of("a\n", "v", "a\\n")))


def test_errors_on_the_command_line_are_one_printable_line(tmp_path, capsys):
    path = tmp_path / "graph.json"
    graph = graph_of("\x1b[31m\n", "v")
    graph["tasks"][1]["seconds"] = {}
    graph["tasks"][1]["id"] = "\u202e\x1b[2J\n"
    graph["values"] = []
    path.write_text(json.dumps(graph))
    assert main(["plan", "--graph", str(path)]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and text.strip().isprintable()


def test_errors_that_name_a_device_are_printable():
    graph = graph_of("a", "v")
    graph["devices"][1]["name"] = graph["links"][0]["dst"] = "x\x1b[31m"
    for task in graph["tasks"]:
        task["seconds"] = {"x\x1b[31m": 1.0}
    graph["tasks"][0]["seconds"] = {"cpu": 1.0}
    graph["links"][0] |= {"src": "x\x1b[31m", "dst": "cpu"}
    with pytest.raises(PlanError, match=r"x\\x1b\[31m") as caught:
        autopar.schedule(graph)
    assert str(caught.value).isprintable()


def test_devices_keep_to_their_lines_too():
    graph = graph_of("a", "v")
    graph["devices"][0]["name"] = graph["links"][0]["src"] = "cpu\n\x1b[31m"
    graph["tasks"][0]["seconds"] = {"cpu\n\x1b[31m": 1.0}
    for text, usual in zip(texts(graph, "a"), USUAL):
        assert rows(text) <= rows(usual)
        assert all(line.isprintable() for line in text.split("\n"))
