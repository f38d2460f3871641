"""Why runs are where they are: what is said of other devices is true of the plan, and what one change would bring."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from benchmarks import instances, scale
from benchmarks.judging import by_direction
from graphs import MS, fork_join, machine
from oracles import needs_native
from taskfiles import link, randomly, small

import autopar
from autopar.planner import portfolio as search
from autopar.planner import what_if as change
from autopar.planner.duplication import once
from autopar.planner.formats import read
from autopar.planner.model.slots import Slots, together
from autopar.planner.what_if import changes, options
from autopar.view import explain, explain_clusters


def two(seconds, nbytes=10**6, **more):
    """A → b on a CPU and a GPU, `seconds` of b on each; a runs on the CPU."""
    return {
        "tasks": [{"id": "a", "seconds": {"cpu": 1.0}}, {"id": "b", "seconds": seconds}],
        "values": [{"id": "v", "producer": "a", "consumers": ["b"], "bytes": nbytes}],
        "devices": [{"name": "cpu"}, {"name": "gpu", **more}],
        "links": [link("cpu", "gpu", wire="bus"), link("gpu", "cpu", wire="bus")],
    }


def many(seed, tasks=25):
    """A plan of some tasks on several devices."""
    return autopar.schedule(randomly(random.Random(seed), tasks, wired=True), budget_s=30)


# ── gaps ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(30))
def test_a_gap_is_the_first_that_is_long_enough(seed):
    draw = random.Random(seed)
    ticks = sorted(draw.sample(range(40), 2 * draw.randint(0, 8)))
    busy = list(zip(ticks[::2], ticks[1::2]))
    slots = Slots(busy)
    for _ in range(10):
        ready, length = draw.randint(0, 40), draw.randint(1, 10)
        first = next(
            t for t in range(ready, 99) if all(end <= t or start >= t + length for start, end in busy)
        )
        assert slots.find(ready, length) == first


def test_several_resources_are_free_together():
    one, other, third = Slots([(0, 2)]), Slots([(3, 5)]), Slots([(0, 9)])
    assert together([one, other], 2, 2, 0) == (5, (0, 1))
    assert together([one, other, third], 2, 1, 0) == (2, (0, 1))
    assert together([], 0, 1, 3) == (3, ())


# ── elsewhere ──────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_would_end_sooner_says_who_would_wait_for_it():
    graph = two({"cpu": 3.0, "gpu": 1.9})
    graph["tasks"].append({"id": "c", "seconds": {"cpu": 1.0}})
    graph["tasks"].append({"id": "d", "seconds": {"gpu": 1.0}})
    graph["tasks"].append({"id": "e", "seconds": {"cpu": 1.0}})
    graph["values"].append({"id": "u", "producer": "b", "consumers": ["e"], "bytes": 2 * 10**5})
    graph["values"].append({"id": "w", "producer": "b", "consumers": ["c"], "bytes": 10**6})
    plan = autopar.schedule(graph)
    # e would have its own 102 ms later.
    assert plan.place["b"].device == "cpu" and plan.place["d"].device == "gpu"
    assert plan.reason["b"].text == (
        "On gpu it would itself end 99.0 ms sooner, but c would have its result 902 ms later."
    )


# a ends at 1 s, the value takes 1.001 s to the GPU
def test_the_end_on_another_device_counts_the_transfer_that_brings_the_input():
    plan = autopar.schedule(two({"cpu": 1.5, "gpu": 1.0}))
    by = {choice.device: choice for choice in plan.reason["b"].choices}
    assert plan.place["b"].device == "cpu"
    assert by["gpu"].arrives == pytest.approx(2.001) and by["gpu"].end == pytest.approx(3.001)
    assert plan.reason["b"].text.startswith("Everything is on cpu")
    assert plan.reason["a"].text.startswith("It can only run on cpu: no other device can run it")


def test_what_a_run_alone_fetches_is_not_in_its_own_way():
    graph = two({"gpu": 1.0, "gpu2": 1.0})
    graph["devices"].append({"name": "gpu2"})
    graph["links"] += [link("cpu", "gpu2", wire="bus"), link("gpu2", "cpu", wire="bus")]
    choices = autopar.schedule(graph).reason["b"].choices
    assert choices[1].end == pytest.approx(choices[2].end) == pytest.approx(3.001)


def test_what_others_fetch_too_and_what_comes_before_on_the_wire_is_waited_for():
    graph = two({"gpu": 0.5, "gpu2": 0.5})
    graph["devices"].append({"name": "gpu2"})
    graph["links"] += [link("cpu", "gpu2", wire="bus"), link("gpu2", "cpu", wire="bus")]
    graph["tasks"].append({"id": "c", "seconds": {"gpu": 1.0}})
    graph["values"][0]["consumers"] = ["b", "c"]
    plan = autopar.schedule(graph)
    assert plan.place["b"].device == "gpu"
    assert plan.reason["b"].choices[2].arrives == pytest.approx(1.0 + 2 * 1.001)
    # Two values of one cluster come one after the other.
    graph = two({"cpu": 1.5, "gpu": 1.0})
    graph["values"].append({"id": "w", "producer": "a", "consumers": ["b"], "bytes": 10**6})
    assert autopar.schedule(graph).reason["b"].choices[1].arrives == pytest.approx(1.0 + 2 * 1.001)


def test_what_links_and_groups_leave_no_other_device_says_so():
    graph = two({"cpu": 2.0, "gpu": 1.0})
    graph["tasks"].append({"id": "c", "seconds": {"cpu": 1.0, "gpu": 0.1}, "colocate": "g"})
    graph["links"] = graph["links"][1:]
    reason = autopar.schedule(graph).reason["b"]
    assert reason.text.startswith("It can only run on cpu: no links bring all its values to and from")
    assert "no links" in reason.choices[1].why
    graph["tasks"][0]["colocate"] = "g"
    reason = autopar.schedule(graph).reason["c"]
    assert reason.text.startswith("It can only run on cpu: it shares a device with a, which leaves no other")
    assert "a, with which it shares a device, cannot run on gpu" in reason.choices[1].why
    assert autopar.schedule(graph).reason["a"].choices[1].why == "it cannot run on gpu"


def test_a_device_without_room_says_what_it_lacks():
    graph = two({"cpu": 3.0, "gpu": 1.0}, memory_bytes=10)
    choice = autopar.schedule(graph).reason["b"].choices[1]
    assert choice.end is None and "no room on gpu" in choice.why
    assert "no room on gpu" in autopar.schedule(graph).reason["b"].text


def test_a_run_of_several_lanes_would_end_elsewhere_as_quickly_as_it_can():
    graph = two({"cpu": {"1": 4.0, "2": 1.5}, "gpu": 1.0})
    graph["devices"][0]["lanes"] = 2
    graph["tasks"][1]["pin"] = "gpu"
    graph["tasks"].append({"id": "c", "seconds": {"gpu": 1.0, "cpu": {"1": 9.0, "2": 6.0}}})
    plan = autopar.schedule(graph)
    choice = next(c for c in plan.reason["c"].choices if c.device == "cpu")
    assert plan.place["c"].device == "gpu"
    assert choice.end == pytest.approx(choice.free + 6.0)
    assert plan.reason["b"].text.startswith("It can only run on gpu")


@pytest.mark.parametrize("seed", range(6))
def test_a_run_put_where_it_is_said_to_fit_disturbs_nobody(seed):
    plan = many(seed)
    machine = plan.costed.machine
    for reason in plan.reasons:
        own = plan.place[reason.cluster]
        for choice in reason.choices:
            if choice.end is None or choice.device == own.device:
                continue
            assert choice.arrives <= choice.free <= choice.end
            ways = plan.costed.cluster[reason.cluster].modes
            wide = [n for d, n, s in ways if machine.devices[d].name == choice.device
                    and s == pytest.approx(choice.end - choice.free)] or [1]  # fmt: skip
            idle = [
                lane for lane in machine.device[choice.device].compute_lanes
                if all(step.end <= choice.free + 1e-9 or step.start >= choice.end - 1e-9
                       for step in plan.orders[lane])
            ]  # fmt: skip
            assert len(idle) >= min(wide)


@pytest.mark.release
@pytest.mark.slow
@needs_native
def test_a_large_plan_that_was_searched_for_names_changes():
    """Each is planned for as thoroughly as the plan itself was, or none would seem to help."""
    plan = autopar.schedule(scale.chains(600))
    assert plan.policy.startswith("search")
    found = changes(plan)
    assert found and found[0].seconds < 0.95 * plan.makespan


def test_a_run_computed_again_says_instead_of_what():
    graph = {
        "tasks": [
            {"id": "a", "seconds": {"d0": 1.0, "d1": 1.0}},
            {"id": "b", "seconds": {"d0": 5.0}},
            {"id": "c", "seconds": {"d1": 5.0}},
        ],
        "values": [{"id": "v", "producer": "a", "consumers": ["b", "c"], "bytes": 10**7}],
        "devices": [{"name": "d0"}, {"name": "d1"}],
        "links": [link("d0", "d1"), link("d1", "d0")],
    }
    plan = autopar.schedule(graph)
    copies = [cluster for cluster in plan.place if cluster in dict(plan.costed.again)]
    assert len(copies) == 1 and plan.makespan == pytest.approx(6.0)
    assert "a computed again" in plan.reason[copies[0]].text
    assert [cluster.name for cluster in once(plan.costed).clusters] == ["a", "b", "c"]
    assert {value for cluster in once(plan.costed).clusters for value in cluster.reads} == {"v"}
    # Both devices are busy to the end: no change of one brings anything.
    assert changes(plan) == () and "No single change of hardware or cap" in explain(plan)


# ── one change ─────────────────────────────────────────────────────────────────────────────────────


# a and b take all of one lane; only another lane, a twin or a quicker device helps
def test_the_change_that_helps_most_is_found_and_wires_that_do_not_matter_are_not():
    graph = two({"cpu": 4.0})
    graph["tasks"] += [{"id": f"c{n}", "seconds": {"cpu": 1.0}} for n in range(5)]
    plan = autopar.schedule(graph)
    found = {change.what: change.seconds for change in changes(plan)}
    assert plan.makespan == pytest.approx(10.0)
    assert found.keys() == {"cpu twice as fast", "one more lane of cpu", "one more device like cpu"}
    assert found["cpu twice as fast"] == pytest.approx(5.0) == pytest.approx(found["one more lane of cpu"])
    assert "The one change that would help most: cpu twice as fast" in explain(plan)


def test_a_wire_that_all_waits_for_is_the_change():
    graph = two({"gpu": 0.1}, nbytes=10**8)
    best = changes(autopar.schedule(graph))[0]
    assert best.what == "bus bus twice as fast" and best.seconds == pytest.approx(1.0 + 0.001 + 50 + 0.1)


def test_a_cap_that_keeps_work_from_a_device_is_the_change():
    graph = two({"cpu": 30.0, "gpu": 1.0}, memory_bytes=10)
    plan = autopar.schedule(graph)
    assert plan.makespan == pytest.approx(31.0)
    found = {change.what: change.seconds for change in changes(plan)}
    assert found["no memory cap on gpu"] == pytest.approx(3.001)
    assert next(iter(found)) == "no memory cap on gpu"


@pytest.mark.parametrize(
    ("graph", "first"),
    [(two({"gpu": 0.1}, nbytes=10**8), "bus bus twice as fast"), (two({"cpu": 3.0}), "cpu twice as fast"),
     (two({"cpu": 30.0, "gpu": 1.0}, memory_bytes=10), "no memory cap on gpu")],
    ids=("wire", "cpu", "cap"),
)  # fmt: skip
def test_where_few_changes_are_tried_the_critical_path_says_which(graph, first):
    assert [option.what for option in change.promising(autopar.schedule(graph), 1)] == [first]


def test_the_hosts_own_part_of_a_run_does_not_get_quicker():
    costed = fork_join(3, machine(1, dispatch_s=0.25 * MS), seconds=MS)
    quick = next(o for o in options(costed) if o.what == "emulated:0 twice as fast").apply(costed)
    for cluster, other in zip(costed.clusters, quick.clusters):
        assert other.seconds[0] == cluster.seconds[0]
        assert other.seconds[1] - cluster.dispatch_s == pytest.approx(
            (cluster.seconds[1] - cluster.dispatch_s) / 2
        )


def test_all_ways_of_a_run_get_quicker_with_its_device():
    costed = read(small())
    quick = next(o for o in options(costed) if o.what == "cpu twice as fast").apply(costed)
    assert quick.cluster["b"].modes == ((0, 1, 0.5), (0, 2, 0.3))
    assert quick.cluster["a"].seconds == (0.5, 0.2)


def test_when_nothing_helps_it_says_so():
    graph = {**two({"cpu": 0.0}), "tasks": [{"id": "a", "seconds": {"cpu": 0.0}}], "values": []}
    assert changes(autopar.schedule(graph)) == ()
    still = {
        "tasks": [{"id": "a", "seconds": {"cpu": 1e-9}}],
        "values": [{"id": "v", "producer": "a", "consumers": [], "bytes": 0, "deliver_to": "gpu"}],
        "devices": [{"name": "cpu"}, {"name": "gpu"}],
        "links": [link("cpu", "gpu", latency_s=1.0, bytes_per_s=1e9)],
    }
    assert [change.what for change in changes(autopar.schedule(still))] == ["cpu → gpu without latency"]
    assert explain(autopar.schedule(still)).count("The one change that would help most") == 1


@pytest.mark.parametrize("seed", range(3))
def test_changes_are_ordered_shorter_than_the_plan_and_the_same_again(seed):
    plan = many(seed, 12)
    found = changes(plan)
    assert list(found) == sorted(found, key=lambda change: change.seconds)
    assert all(change.seconds < plan.makespan for change in found)
    assert {change.what for change in found} <= {option.what for option in options(plan.costed)}
    assert changes(plan) == found


@pytest.mark.slow
def test_what_promises_most_is_searched_for(monkeypatch):
    plan = search.place(read(instances.small(3, tasks=14, devices=3, ratio=1.0)))
    found = changes(plan)
    monkeypatch.setattr(change, "FINAL", 0)
    listed = {one.what: one.seconds for one in changes(plan)}
    assert all(one.seconds <= listed.get(one.what, plan.makespan) for one in found)
    assert found[0].seconds < min(listed.values())


@pytest.mark.slow
def test_changes_of_a_large_graph_are_found_from_the_list_it_was_planned_by(monkeypatch):
    for module in (change, search):
        monkeypatch.setattr(module, "LARGE", 50)
    costed = read(by_direction(instances.planted(0, 120, 4, 1.0)[0]))
    plan = search.place(costed, steps=0)
    assert plan.policy.endswith("lanes kept busy")
    found = changes(plan)
    assert found and found[0].seconds < 0.95 * plan.makespan


def test_a_machine_with_one_device_more_is_one():
    graph = small()
    graph["devices"][1]["name"] = "gpu:0"
    for task in graph["tasks"]:
        task["seconds"] = {"gpu:0" if d == "gpu" else d: s for d, s in task["seconds"].items()}
        task.pop("pin", None)
    graph["links"] = [link("cpu", "gpu:0", wire="bus"), link("gpu:0", "cpu", wire="own")]
    costed = autopar.schedule(graph).costed
    for option in options(costed):
        changed = option.apply(costed)
        changed.machine.check()
        assert all(len(cluster.seconds) == len(changed.machine.devices) for cluster in changed.clusters)
    more = next(o for o in options(costed) if o.what == "one more device like gpu:0").apply(costed)
    assert [device.name for device in more.machine.devices] == ["cpu", "gpu:0", "gpu:1"]
    wires = {(k.src, k.dst): k.wire for k in more.machine.links}
    assert wires["cpu", "gpu:1"] != wires["cpu", "gpu:0"] and ("gpu:0", "gpu:1") not in wires


@pytest.mark.slow
def test_of_throughput_the_period_is_what_changes():
    plan = autopar.schedule(two({"cpu": 3.0, "gpu": 2.0}, nbytes=10), objective="throughput")
    assert plan.period == pytest.approx(2.0)
    assert plan.reason["b"].text == "The period would be 4.00 s on cpu."
    assert changes(plan)[0].seconds == pytest.approx(1.0) and "has a shorter period" in explain(plan)


# ── what it says ───────────────────────────────────────────────────────────────────────────────────


def test_the_path_tells_why_each_step_is_on_it():
    graph = two({"gpu": 1.0})
    graph["tasks"].append({"id": "c", "seconds": {"cpu": 2.0}})
    plan = autopar.schedule(graph)
    found = plan.critical
    assert sum(found.busy_s.values()) == pytest.approx(plan.makespan)
    assert found.busy_s["compute", "data"] + found.busy_s.get(("transfer", "data"), 0) > 0
    for before, after in pairwise(found.path):
        assert found.ready(after) <= found.steps[after].start + 1e-12
        assert found.last[after].step == before
    alone = autopar.schedule(
        {**graph, "values": [], "tasks": [{"id": n, "seconds": {"cpu": 1.0}} for n in "ab"]}
    )
    assert alone.critical.busy_s == {("compute", "lane"): 1.0, ("compute", "data"): 1.0}
    assert "50 % only for keeping a lane busy" in explain(alone)
    assert "lane cpu/0, busy with" in explain(alone)


def test_tasks_are_explained_by_name_and_by_glob():
    plan = many(3)
    name = next(iter(plan.place))
    text = explain_clusters(plan, [name])
    assert "waited for" in text and plan.reason[name].text in text
    for device in plan.costed.machine.device:
        assert device in text
    assert explain_clusters(plan, ["*"]).count("waited for") == len(plan.placed)
    assert plan.explain(name) == text and plan.explain() == explain(plan)
    with pytest.raises(autopar.PlanError, match="is not a task of 'graph'; did you mean"):
        plan.explain(f"{name}x")


def test_reasons_of_an_edited_plan_are_found_by_name():
    plan = many(4)
    some = plan.reasons[:2]
    edited = replace(plan, reasons=some)
    assert list(edited.reason) == [reason.cluster for reason in some] and some[1].cluster in edited.reason
