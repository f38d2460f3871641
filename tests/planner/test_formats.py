"""Graph files and other sources as costed graphs: what they mean, and one sentence for what is wrong."""

import copy
import json
import random
from typing import Any

import pytest
from benchmarks.judging import described
from benchmarks.verify import infeasibilities
from taskfiles import link, randomly, small

from autopar import Machine
from autopar.errors import DeviceError, MemoryCapError, PlanError
from autopar.ir.device import Device, Link
from autopar.planner import schedule
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance


def test_a_file_means_what_it_says():
    costed = read(small())
    assert [cluster.name for cluster in costed.clusters] == ["a", "b", "c"]
    assert costed.cluster["a"].seconds == (1.0, 0.2)
    assert costed.cluster["b"].seconds == (1.0, None)
    assert costed.cluster["c"].seconds == (None, 0.5)
    assert Instance(costed).before == [(), (0,), (0, 1)]
    assert costed.home["x"] == "cpu"
    assert costed.deliver == (("y", "cpu"),)
    assert [(d.name, d.lanes, d.memory_bytes) for d in costed.machine.devices] == [
        ("cpu", 2, None),
        ("gpu", 1, 100_000),
    ]


def test_wires_are_as_the_file_says():
    graph = small()
    graph["devices"].append({"name": "tpu"})
    graph["links"] += [link("cpu", "tpu"), link("tpu", "cpu"), link("gpu", "tpu", wire=None)]
    instance = Instance(read(graph))
    hop = {(s, d): instance.route[s][d] for s in range(3) for d in range(3)}
    bus = hop[0, 1][0].lane
    graph["links"][-1]["wire"] = "cpu → tpu"
    assert read(graph).machine.link["cpu", "tpu"].wire != "cpu → tpu"
    assert bus == hop[1, 0][0].lane >= 0
    assert len({bus, hop[0, 2][0].lane, hop[2, 0][0].lane}) == 3
    assert hop[1, 2][0].lane == -1
    assert [(h.src, h.dst) for h in hop[2, 1]] == [(2, 0), (0, 1)]
    assert instance.wires == 0


def test_transfers_without_a_wire_run_side_by_side_and_others_do_not():
    def last_end(**wire: Any) -> float:
        graph = {
            "tasks": [{"id": "a", "seconds": {"p": 1.0}}, {"id": "b", "seconds": {"q": 1.0}}],
            "values": [
                {"id": f"v{n}", "producer": "a", "consumers": ["b"], "bytes": 999_000} for n in range(5)
            ],
            "devices": [{"name": "p"}, {"name": "q"}],
            "links": [link("p", "q", **wire)],
        }
        return schedule(graph).makespan

    assert last_end(wire=None) == pytest.approx(3.0)
    assert last_end() == last_end(wire="w") == pytest.approx(7.0)


def test_values_go_through_a_third_device_as_two_transfers():
    graph = {
        "tasks": [{"id": "a", "seconds": {"p": 1.0}}, {"id": "b", "seconds": {"q": 1.0}}],
        "values": [{"id": "v", "producer": "a", "consumers": ["b"], "bytes": 1000}],
        "devices": [{"name": "p"}, {"name": "q"}, {"name": "r"}],
        "links": [link("p", "r"), link("r", "q")],
    }
    plan = schedule(graph)
    assert [(t.src, t.dst) for t in plan.transfers] == [("p", "r"), ("r", "q")]
    assert infeasibilities(graph, described(plan)) == []


@pytest.mark.parametrize(("nbytes", "through"), [(1, "r"), (10**7, "s")])
def test_the_third_device_is_the_one_that_is_quickest_for_what_is_sent(nbytes, through):
    quick, fast = {"latency_s": 1e-6, "bytes_per_s": 1e6}, {"latency_s": 1e-2, "bytes_per_s": 1e9}
    graph = {
        "tasks": [{"id": "a", "seconds": {"p": 1.0}}, {"id": "b", "seconds": {"q": 1.0}}],
        "values": [{"id": "v", "producer": "a", "consumers": ["b"], "bytes": nbytes}],
        "devices": [{"name": name} for name in "pqrs"],
        "links": [
            {"src": a, "dst": b, **how}
            for ways, how in (("pr rq", quick), ("ps sq", fast))
            for a, b in ways.split()
        ],
    }
    assert [t.dst for t in schedule(graph).transfers] == [through, "q"]


def test_tasks_may_come_in_any_order():
    graph = small()
    graph["tasks"].reverse()
    assert [cluster.name for cluster in read(graph).clusters] == ["a", "b", "c"]


def test_a_file_and_its_data_give_the_same_plan(tmp_path):
    graph = randomly(random.Random(3))
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph))
    assert described(schedule(path)) == described(schedule(str(path))) == described(schedule(graph))


def test_unknown_fields_are_ignored():
    graph = small()
    graph["comment"] = graph["tasks"][0]["comment"] = "for people"
    assert described(schedule(graph)) == described(schedule(small()))


def test_lanes_that_no_task_is_there_for_are_left_out():
    graph = small()
    graph["devices"][0]["lanes"] = 1_000_000
    assert [device.lanes for device in read(graph).machine.devices] == [3, 1]
    graph["devices"][0]["lanes"] = 2
    assert [device.lanes for device in read(graph).machine.devices] == [2, 1]


def test_nothing_to_do_takes_no_time():
    graph = {**small(), "tasks": [], "values": []}
    plan = described(schedule(graph))
    assert plan == {"makespan_s": 0.0, "lower_bound_s": 0.0, "tasks": [], "transfers": []}


def broken(**change: Any) -> dict[str, Any]:
    """The small graph with one field of one entry changed: `tasks_0_id="b"`; `...` takes it out."""
    graph = copy.deepcopy(small())
    for path, value in change.items():
        *way, last = [int(step) if step.isdigit() else step for step in path.split("__")]
        at: Any = graph
        for step in way:
            at = at[step]
        if value is ...:
            del at[last]
        else:
            at[last] = value
    return graph


NAN, INFINITE = float("nan"), float("inf")
WRONG = [
    (broken(values__0__consumers=["a"], values__0__producer="c"), r"in a circle: .*'a'.*'c'"),
    (broken(values__1__consumers=["a"]), r"in a circle: 'a' → 'a'"),
    (broken(tasks__1__id="a"), r"two tasks have the id 'a'"),
    (broken(values__1__id="x"), r"two values have the id 'x'"),
    (broken(devices__1__name="cpu"), r"two devices are called 'cpu'"),
    (broken(values__1__consumers=["b", "z"]), r"a consumer of value 'v' is 'z', which is not a task"),
    (broken(values__1__consumers=[3]), r"a consumer of value 'v' is 3"),
    (broken(values__1__consumers="b"), r"'consumers' of value 'v' is 'b'; it must be a list"),
    (broken(values__1__producer="z"), r"'producer' of value 'v' is 'z'"),
    (broken(values__0__home="tpu"), r"'home' of value 'x' is 'tpu', which is not a device"),
    (broken(values__0__home=...), r"value 'x', which has no producer, has no 'home'"),
    (broken(values__3__deliver_to="tpu"), r"'deliver_to' of value 'y' is 'tpu'"),
    (broken(values__1__bytes=...), r"value 'v' has no 'bytes'"),
    (broken(values__1__bytes=-1), r"'bytes' of value 'v' is -1; it must not be negative"),
    (broken(values__1__bytes="4 kB"), r"'bytes' of value 'v' is '4 kB'; it must be a number"),
    (broken(tasks__0__seconds__cpu=-1.0), r"the time of task 'a' on 'cpu' is -1.0; it must not be negative"),
    (broken(tasks__0__seconds__cpu=NAN), r"the time of task 'a' on 'cpu' is nan; it must be a finite number"),
    (broken(tasks__0__seconds__cpu=INFINITE), r"it must be a finite number"),
    (broken(tasks__0__seconds__cpu=True), r"the time of task 'a' on 'cpu' is True; it must be a number"),
    (broken(tasks__0__seconds__cpu=None), r"the time of task 'a' on 'cpu' is None"),
    (
        broken(tasks__0__seconds__cpu=10**400),
        r"the time of task 'a' on 'cpu' is 1000.*1e\+30 is the largest value allowed",
    ),
    (broken(values__1__bytes=10**400), r"'bytes' of value 'v' is 1000.*1e\+30 is the largest value allowed"),
    (broken(values__1__consumers=[["b"], "c"]), r"a consumer of value 'v' is \['b'\]; it must be a name"),
    (broken(tasks__0__seconds__tpu=1.0), r"'seconds' of task 'a' is 'tpu', which is not a device"),
    (broken(tasks__0__seconds=1.0), r"'seconds' of task 'a' is 1.0; it must be an object"),
    (broken(tasks__0__seconds={}), r"no device can run task 'a'"),
    (broken(tasks__1__seconds__cpu={"2": 1.0}), r"the time of task 'b' on 'cpu' is .*; it must be a number"),
    (broken(tasks__0__state_byte=9, tasks__0__state_bytes=...), r"'state_byte', .*; write 'state_bytes'"),
    (broken(tasks__0__workspace=9), r"task 'a' has 'workspace', .*; write 'workspace_bytes'"),
    (broken(values__3__deliver="cpu", values__3__deliver_to=...), r"value 'y' has 'deliver'"),
    (broken(devices__0__memory=9, devices__0__memory_bytes=...), r"device 'cpu' has 'memory'"),
    (broken(links__0__wires="bus", links__0__wire=...), r"the link cpu → gpu has 'wires'"),
    (broken(tasks__0__seconds=...), r"task 'a' has no 'seconds'"),
    (broken(tasks__0__id=...), r"tasks\[0\] has no 'id'"),
    (broken(tasks__0__id=7), r"'id' of tasks\[0\] is 7; it must be a name"),
    (broken(tasks__0=["a"]), r"tasks\[0\] is \['a'\]; it must be an object"),
    (broken(tasks__0__state_bytes=-5), r"'state_bytes' of task 'a' is -5"),
    (broken(tasks__0__pin="tpu"), r"'pin' of task 'a' is 'tpu', which is not a device"),
    (broken(tasks__1__pin="gpu"), r"task 'b' is pinned to 'gpu', which cannot run it"),
    (
        broken(tasks__1__colocate="g", tasks__2__colocate="g"),
        r"'b' and 'c' must share a device \(group 'g'\) but can only run on cpu and gpu",
    ),
    (broken(devices__0__lanes=0), r"'lanes' of device 'cpu' is 0; it must be a whole number"),
    (broken(devices__0__lanes=1.5), r"it must be a whole number from 1 to"),
    (
        broken(devices__0__lanes=10**9),
        r"'lanes' of device 'cpu' is 1000000000; it must be a whole number from 1",
    ),
    (broken(devices__1__memory_bytes="1GB"), r"'memory_bytes' of device 'gpu' is '1GB'"),
    (broken(devices=[]), r'"devices" is empty'),
    (broken(links__0__dst="tpu"), r"'dst' of links\[0\] is 'tpu', which is not a device"),
    (broken(links__0__bytes_per_s=0), r"'bytes_per_s' of the link cpu → gpu is 0"),
    (broken(links__0__latency_s=-1), r"'latency_s' of the link cpu → gpu is -1"),
    (broken(links__0__wire=5), r"'wire' of the link cpu → gpu is 5"),
    (broken(links__1__src="cpu", links__1__dst="gpu"), r"two links lead from 'cpu' to 'gpu'"),
    (broken(links=[]), r"no link, nor two in a row, brings 'w' to or from 'c' on gpu"),
    (broken(tasks=...), r'no "tasks"'),
    (broken(values=...), r'no "values"'),
    (broken(devices=...), r'no "devices"'),
    (broken(links=...), r'no "links"'),
    (broken(tasks={"a": 1}), r"'tasks' of the graph is \{'a': 1\}; it must be a list"),
    ([1, 2], r"the graph is \[1, 2\]; it must be an object"),
    (broken(devices__1__memory_bytes=100), r"fits in memory"),
]


def test_a_home_that_is_not_heeded_is_told_of(caplog):
    graph = broken(values__0__producer="a", values__0__consumers=["b"])
    plan = schedule(graph)
    assert "value 'x': 'home' is not heeded" in caplog.text
    assert (
        plan.makespan
        == schedule(
            broken(values__0__producer="a", values__0__consumers=["b"], values__0__home=None)
        ).makespan
    )


@pytest.mark.parametrize(("graph", "says"), WRONG, ids=[says for _, says in WRONG])
def test_errors_of_graph_files_are_one_line(graph, says):
    with pytest.raises(PlanError, match=says) as caught:
        schedule(graph)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path):
    for path in (tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(PlanError, match="cannot be read"):
            schedule(path)


def test_a_long_circle_is_not_printed_in_full():
    names = [f"t{n}" for n in range(5000)]
    graph = {
        "tasks": [{"id": name, "seconds": {"cpu": 1.0}} for name in names],
        "values": [
            {"id": f"{a}>{b}", "producer": a, "consumers": [b], "bytes": 0}
            for a, b in zip(names, [*names[1:], names[0]])
        ],
        "devices": [{"name": "cpu"}],
    }
    with pytest.raises(PlanError, match="circle") as caught:
        schedule(graph)
    assert len(str(caught.value)) < 300


def test_memory_and_pins_are_taken_from_the_call():
    graph = small()
    assert schedule(graph, pins={"a": "gpu"}).place["a"].device == "gpu"
    assert schedule(graph, pins={"*": "cpu", "c": "gpu"}).place["a"].device == "cpu"
    free = {**graph, "tasks": [{"id": "a", "seconds": {"cpu": 1.0, "gpu": 1.0}}], "values": []}
    # A name goes before any glob, and the longer of two globs before the shorter.
    for pins in ({"a": "gpu", "[a]": "cpu"}, {"[a]*": "gpu", "a*": "cpu"}):
        assert schedule(free, pins=pins).place["a"].device == "gpu"
    with pytest.raises(PlanError, match=r"names no task of 'graph'"):
        schedule(graph, pins={"z": "cpu"})
    with pytest.raises(PlanError, match=r"task 'b' is pinned to gpu, which cannot run it; it can run on cpu"):
        schedule(graph, pins={"b": "gpu"})
    with pytest.raises(DeviceError, match="no device 'tpu'"):
        schedule(graph, pins={"a": "tpu"})
    with pytest.raises(MemoryCapError):
        schedule(graph, memory={"gpu": "1 kB"})


@pytest.mark.parametrize(
    ("given", "says"),
    [({"budget_s": 0}, "budget_s=0 leaves no time"), ({"budget_s": NAN}, "budget_s=nan leaves no time"),
     ({"budget_s": "5"}, "budget_s='5'"), ({"memory": ["gpu"]}, r"memory=\['gpu'\] is not a mapping"),
     ({"pins": "a"}, "pins='a' is not a mapping"), ({"pins": {7: "cpu"}}, "names no task of 'graph'")],
    ids=str,
)  # fmt: skip
def test_words_of_the_call_that_mean_nothing_get_a_sentence(given, says):
    with pytest.raises(PlanError, match=says):
        schedule(small(), **given)


def test_a_plan_says_that_its_search_was_cut_short():
    graph = randomly(random.Random(1), 60)
    assert described(schedule(graph, budget_s=1e-9)).get("stopped") == "time"
    assert "stopped" not in described(schedule(graph))


def test_a_machine_takes_the_place_of_the_files():
    devices = (Device("cpu", "cpu", lanes=2), Device("gpu", "cuda", memory_bytes=10**9))
    slow = tuple(Link(a, b, 100.0, 1.0, None) for a, b in (("cpu", "gpu"), ("gpu", "cpu")))
    graph = small()
    assert schedule(graph, Machine(devices, slow)).makespan > 100
    assert schedule(read(graph), read(graph).machine).makespan < 100
    with pytest.raises(DeviceError, match="cost it again"):
        schedule(read(graph), Machine((Device("tpu", "cpu"),)))
    with pytest.raises(DeviceError, match=r"goes with networkx graphs alone"):
        schedule(graph, 4)


def test_pins_that_leave_a_group_no_device_get_a_sentence():
    graph = small()
    graph["devices"].append({"name": "tpu"})
    graph["tasks"] = [
        {"id": name, "seconds": dict.fromkeys(able, 1.0), "colocate": "g"}
        for name, able in (
            ("a", ("cpu", "gpu")),
            ("b", ("gpu", "tpu", "cpu")),
            ("c", ("cpu", "tpu", "gpu")),
        )
    ]
    graph["values"] = []
    assert len({step["device"] for step in described(schedule(graph))["tasks"]}) == 1
    with pytest.raises(PlanError, match=r"'a' and 'b' must share a device .* cpu or gpu and tpu"):
        schedule(graph, pins={"b": "tpu"})
    del graph["tasks"][1]["seconds"]["cpu"]
    with pytest.raises(PlanError, match=r"'b' and 'c' must share a device .* gpu and cpu"):
        schedule(graph, pins={"c": "cpu"})


def test_a_graph_that_only_delivers_takes_as_long_as_the_transfer():
    graph = {
        "tasks": [],
        "values": [
            {"id": "x", "producer": None, "home": "p", "consumers": [], "bytes": 10**6, "deliver_to": "q"}
        ],
        "devices": [{"name": "p"}, {"name": "q"}],
        "links": [link("p", "q")],
    }
    plan = schedule(graph)
    assert plan.lower_bound == pytest.approx(plan.makespan) and plan.makespan > 0
