"""Graph files and saved plans that somebody broke: a plan that holds, or one sentence, and never a traceback."""

from __future__ import annotations

import copy
import json
import random
import warnings
from dataclasses import replace
from typing import Any

import networkx
import pytest
from benchmarks.judging import described
from benchmarks.verify import infeasibilities
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from taskfiles import randomly, small
from test_formats import broken
from tiny import tiny

from autopar import Machine
from autopar.__main__ import main
from autopar.errors import AutoparError, BoundWarning, DeviceError, MemoryCapError, PlanError
from autopar.ir.plan import Plan
from autopar.planner import replan, schedule
from autopar.planner.formats import read


def nested(depth: int) -> list[Any]:
    """Lists in lists."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


JUNK: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, -0.0, 0.5, 1.5, 1e308, 1e30, 1e-30, 5e-324, 1e-320, 10**30, 10**31, 10**400,
    float("nan"), float("inf"), float("-inf"), "", "\ud800", "a\x00b", "t0", "d0", "cpu", "x" * 3000, "\n", "{}",
    "\u00e9", "\ufeff", "]]>", '"', "1.5.2", [], {}, [1], {"1": 1.0}, {"0": 1}, {"\u00b2": 1}, {"1": {}},
    {"float": "x"}, {"ref": []}, {"complex": [1]}, nested(50), nested(200),
)  # fmt: skip
"""Values put in the place of others."""


def mutated(data: Any, seed: int) -> Any:
    """A copy of parsed JSON in which one to three things are replaced, left out, copied from elsewhere or renamed."""
    draw = random.Random(seed)
    data = copy.deepcopy(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        spots = _spots(data)
        if not spots:
            break
        inside, key = draw.choice(spots)
        how = draw.random()
        if how < 0.6:
            inside[key] = copy.deepcopy(draw.choice(JUNK))
        elif how < 0.75:
            del inside[key]
        elif how < 0.85:
            other, there = draw.choice(spots)
            inside[key] = copy.deepcopy(other[there])
        elif isinstance(inside, list):
            inside.insert(key, copy.deepcopy(inside[key]))
        else:
            name = draw.choice((f"{key}x", key[:-1], "\ud800", "id", "bytes"))
            inside[name] = inside.pop(key)
    return data


def _spots(data: Any) -> list[tuple[Any, Any]]:
    """Every place in it, as what holds it and the key or position there."""
    found = []
    left = [data]
    while left:
        at = left.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        found += [(at, key) for key in keys]
        left += [at[key] for key in keys]
    return found


HALF = "a\ud800b"
GRAPHS = st.builds(
    lambda seed, kind: (small(), tiny(seed), randomly(random.Random(seed), 6))[kind],
    st.integers(0, 10**6),
    st.integers(0, 2),
)
PICTURES = ("svg", "html")


@pytest.mark.parametrize(
    "graph",
    [
        broken(tasks__0__id=HALF),
        broken(values__0__id=HALF),
        broken(devices__0__name=HALF),
        broken(links__0__wire=HALF),
        broken(tasks__0__colocate=HALF),
        broken(tasks__0__pin=HALF),
        broken(values__1__consumers=[HALF]),
        broken(tasks__0__seconds={HALF: 1.0}),
    ],
    ids=["task", "value", "device", "wire", "group", "pin", "consumer", "seconds"],
)
def test_half_of_a_character_is_no_name(graph, tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph))
    for source in (graph, path):
        with pytest.raises(PlanError, match="half of a character") as caught:
            schedule(source)
        assert str(caught.value).encode()


def test_half_of_a_character_in_a_node_of_another_library_and_in_the_name_of_a_file(tmp_path):
    nodes = networkx.DiGraph(name=HALF, devices=[{"name": "cpu"}])
    nodes.add_node("a", seconds=1.0)
    for name in PICTURES:
        schedule(nodes).draw(tmp_path / f"plan.{name}")
    nodes.add_node(HALF, seconds=1.0)
    with pytest.raises(PlanError, match="half of a character"):
        schedule(nodes)


def test_whole_characters_of_every_kind_go_all_the_way(tmp_path):
    graph = broken(
        tasks__0__id="a\u0000\u001b[31m\n", values__1__producer="a\u0000\u001b[31m\n", values__0__consumers=[]
    )
    graph["values"][0]["id"] = "\U0001f600\ufffe]]>\"'<&\u202e"
    plan = schedule(graph)
    assert infeasibilities(graph, described(plan)) == []
    for name in PICTURES:
        plan.draw(tmp_path / f"plan.{name}")
        assert (tmp_path / f"plan.{name}").read_text(encoding="utf-8")
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").placed == plan.placed


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (json.dumps(small()).replace('"id": "c"', '"id": "c", "id": "d"'), r"'id' twice in tasks\[2\]"),
        (
            json.dumps(small()).replace('"gpu": 0.2', '"gpu": 0.2, "gpu": 1'),
            r"'gpu' twice in tasks\[0\]\.seconds",
        ),
        ('{"tasks": [], ' + json.dumps(small())[1:], r"'tasks' twice in its object"),
        (json.dumps(small()).replace("4096", "9" * 5000), "too many digits"),
        (
            json.dumps(small()).replace("4096", "NaN"),
            "'bytes' of value 'v' is nan; it must be a finite number",
        ),
        ('{"tasks": ' + "[" * 100_000, "nested too deeply"),
        (
            json.dumps(small()).replace("4096", "[" * 900 + "]" * 900),
            r"'bytes' of value 'v' is (\[|a value of)",
        ),
        (json.dumps(small()).encode("utf-16"), "is not text"),
        ("{", "is not JSON"),
        ("", "is empty"),
        ('"tasks"', "must be an object"),
        ("NaN", "must be an object"),
    ],
    ids=range(12),
)
def test_files_that_json_allows_and_a_graph_does_not_are_refused(content, says, tmp_path, capsys):
    path = tmp_path / "graph.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PlanError, match=says) as caught:
        schedule(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert main(["plan", "--graph", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_byte_order_mark_is_none_of_the_graph(tmp_path):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(small()), encoding="utf-8-sig")
    assert described(schedule(path)) == described(schedule(small()))


def test_a_path_that_is_none():
    with pytest.raises(PlanError, match="is not a path"):
        schedule("a\0b.json")


@pytest.mark.slow
def test_data_that_no_file_could_hold():
    for graph, says in (
        (broken(tasks__0__id=nested(100_000)), "too large to show"),
        (broken(values__1__bytes=10**6000), "too large to show"),
        (broken(tasks__0={1: "a"}), "has no 'id'"),
    ):
        with pytest.raises(PlanError, match=says):
            read(graph)


@pytest.mark.slow
def test_a_memory_far_below_a_byte_is_too_small(recwarn):
    refused = 0
    for seed in range(50):
        graph = randomly(random.Random(seed), 6)
        device = graph["devices"][0]
        device["memory_bytes"] = 1e-30
        task = next((task for task in graph["tasks"] if device["name"] in task["seconds"]), {})
        task.update(seconds={device["name"]: 1.0}, state_bytes=100)
        try:
            schedule(graph)
        except MemoryCapError:
            refused += 1
        except PlanError as error:
            assert "pinned" in str(error) or "must share" in str(error)
    assert refused > 40
    assert not [warning for warning in recwarn if warning.category is RuntimeWarning]


def test_a_time_too_small_to_divide_by_is_none(tmp_path):
    graph = small()
    for task in graph["tasks"]:
        task["seconds"] = {"cpu": 1e-320, "gpu": 5e-324}
    plan = schedule(graph)
    plan.draw(tmp_path / "plan.svg")
    assert {placed.end - placed.start for placed in plan.placed} == {0.0}


@pytest.mark.slow
def test_a_transfer_longer_than_any_plan_is_avoided():
    planned = 0
    for seed in range(40):
        graph = tiny(seed)
        for value in graph["values"][:1]:
            value["bytes"] = 10**30
        try:
            plan = schedule(graph)
        except MemoryCapError:
            continue
        planned += 1
        assert infeasibilities(graph, described(plan)) == []
    assert planned > 20


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(GRAPHS, st.integers(0, 10**9))
def test_a_graph_with_something_changed_is_planned_or_refused(tmp_path, graph, seed):
    graph = mutated(graph, seed)
    try:
        plan = schedule(graph)
    except AutoparError as error:
        assert len(str(error)) < 10_000
        return
    assert infeasibilities(graph, described(plan)) == []
    assert str(plan) and (seed % 5 or plan.explain())
    plan.draw(tmp_path / "plan.svg")
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").placed == plan.placed


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 40), st.integers(0, 10**9), st.booleans())
def test_a_saved_plan_with_something_changed_is_read_or_refused(tmp_path, number, seed, deep):
    path = tmp_path / "plan.json"
    try:
        schedule(small() if number == 0 else tiny(number)).save(path)
    except PlanError:
        return
    data = json.loads(path.read_text())
    inside = data["plan"] if deep else data
    for key in inside if deep else ():
        if isinstance(inside[key], (list, dict)) and random.Random(f"{key} {seed}").random() < 1 / 3:
            inside[key] = mutated(inside[key], seed)
    path.write_text(json.dumps(data if deep else mutated(data, seed)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BoundWarning)
        try:
            plan = Plan.load(path)
            assert str(plan) and plan.timeline() and (seed % 5 or plan.explain())
            plan.draw(tmp_path / "plan.svg")
            replan(plan.costed, plan)
        except AutoparError as error:
            assert len(str(error)) < 10_000


@pytest.mark.parametrize("kind", ["plan", "machine"])
def test_saved_nouns_are_read_as_strictly(kind, tmp_path):
    path = tmp_path / "saved.json"
    noun = schedule(small()) if kind == "plan" else Machine.declare("cpu", "t4")
    load, wrong = (Plan.load, PlanError) if kind == "plan" else (Machine.load, DeviceError)
    noun.save(path)
    saved = path.read_text()
    path.write_text("\ufeff" + saved, encoding="utf-8")
    assert load(path) == noun or kind == "plan"
    for content, says in (
        (saved.replace('"format"', '"format": 1, "format"'), "'format' twice in its object"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "too many digits"),
        ("{", "is not JSON"),
        ("{}", "is not an"),
    ):
        path.write_text(content)
        with pytest.raises(wrong, match=says):
            load(path)
    with pytest.raises(wrong, match="cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"placed": [{"run": "a"}]}, r"missing .* required"),
        ({"makespan": 0.1, "lower_bound": 0.0}, "its makespan is 0.1 s, and something in it is at"),
        ({"makespan": {"float": "inf"}}, "the number inf; it must be finite"),
        ({"makespan": {"float": "many"}}, "expected a number"),
        ({"policy": HALF}, "expected text"),
        ({"singles": [["tpu", 1.0]]}, "singles names 'tpu', which is not a device"),
        ({"placed": []}, "placed lacks cluster"),
    ],
)
def test_an_edit_that_makes_it_no_plan_is_named(change, says, tmp_path):
    path = tmp_path / "plan.json"
    schedule(small()).save(path)
    data = json.loads(path.read_text())
    data["plan"] |= change
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match=says):
        Plan.load(path)


def test_a_single_device_in_no_time_can_be_explained():
    plan = schedule(small())
    assert "slower than one device" in replace(plan, singles=(("cpu", 0.0),), candidates=()).explain()
