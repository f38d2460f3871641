"""Why clusters are where they are: what is said of other devices is true, and what one change would bring."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from taskfiles import link, randomly

import autopar
from autopar.planner.what_if import changes
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
    assert plan.reason["b"].text == "Its inputs are here 1.00 s before they could be on gpu."
    assert plan.reason["a"].text == "It can only run on cpu: it cannot run on gpu, or a pin keeps it off."


def test_a_reason_names_the_cause():
    """Faster here, its input is here, that lane was busy."""
    assert autopar.schedule(two({"cpu": 2.0, "gpu": 3.0}, 8)).reason["b"].text == (
        "It runs 1.00 s faster here than on gpu."
    )
    graph = two({"cpu": 1.0, "gpu": 1.0}, 8)
    graph["tasks"] += [{"id": "c", "seconds": {"gpu": 9.0}}]
    assert autopar.schedule(graph).reason["b"].text == "It starts 8.00 s sooner here: gpu is busy then."
    graph["devices"][0]["lanes"] = graph["devices"][1]["lanes"] = 2
    assert "Its inputs are here" in autopar.schedule(graph).reason["b"].text


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
    assert reason.text.startswith(
        "It can only run on cpu: a, with which it shares a device, cannot run on gpu"
    )


def test_a_device_without_room_says_what_it_lacks():
    graph = two({"cpu": 3.0, "gpu": 1.0}, memory_bytes=10)
    choice = autopar.schedule(graph).reason["b"].choices[1]
    assert choice.end is None and "no room on gpu" in choice.why
    assert "no room on gpu" in autopar.schedule(graph).reason["b"].text


@pytest.mark.parametrize("seed", range(6))
def test_a_run_put_where_it_is_said_to_fit_disturbs_nobody(seed):
    plan = many(seed)
    machine = plan.costed.machine
    for reason in plan.reason.values():
        own = plan.place[reason.cluster]
        for choice in reason.choices:
            if choice.end is None or choice.device == own.device:
                continue
            assert choice.arrives <= choice.free <= choice.end
            idle = [
                lane for lane in machine.device[choice.device].compute_lanes
                if all(step.end <= choice.free + 1e-9 or step.start >= choice.end - 1e-9
                       for step in plan.orders[lane])
            ]  # fmt: skip
            assert idle


# ── one change ─────────────────────────────────────────────────────────────────────────────────────


# a and b take all of one lane; only a quicker device helps
def test_the_change_that_helps_most_is_found_and_wires_that_do_not_matter_are_not():
    graph = two({"cpu": 4.0})
    graph["tasks"] += [{"id": f"c{n}", "seconds": {"cpu": 1.0}} for n in range(5)]
    plan = autopar.schedule(graph)
    found = {change.what: change.seconds for change in changes(plan)}
    assert plan.makespan == pytest.approx(10.0)
    assert found == {"cpu twice as fast": pytest.approx(5.0)}
    assert "What would help most: cpu twice as fast" in explain(plan)


def test_a_wire_that_all_waits_for_is_the_change():
    graph = two({"gpu": 0.1}, nbytes=10**8)
    best = changes(autopar.schedule(graph))[0]
    assert best.what == "bus bus twice as fast" and best.seconds == pytest.approx(1.0 + 0.001 + 50 + 0.1)


def test_devices_of_one_kind_become_faster_together():
    """Two share the work evenly: one of them twice as fast would shorten nothing."""
    graph = two({"gpu:0": 2.0, "gpu:1": 2.0}, nbytes=8)
    graph["tasks"] = [{"id": n, "seconds": {"gpu:0": 2.0, "gpu:1": 2.0}} for n in "bc"]
    graph["values"], graph["devices"] = [], [{"name": "gpu:0"}, {"name": "gpu:1"}]
    graph["links"] = [link("gpu:0", "gpu:1"), link("gpu:1", "gpu:0")]
    (best,) = changes(autopar.schedule(graph))
    assert best.what == "all 2 gpu devices twice as fast" and best.seconds == pytest.approx(1.0)


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
    assert explain(autopar.schedule(still)).count("What would help most") == 1


@pytest.mark.parametrize("seed", range(3))
def test_changes_are_ordered_shorter_than_the_plan_and_the_same_again(seed):
    plan = many(seed, 12)
    found = changes(plan)
    assert list(found) == sorted(found, key=lambda change: change.seconds)
    assert all(change.seconds < plan.makespan for change in found)
    assert changes(plan) == found


# ── what it says ───────────────────────────────────────────────────────────────────────────────────


def test_the_path_tells_why_each_step_is_on_it():
    graph = two({"gpu": 1.0})
    graph["tasks"].append({"id": "c", "seconds": {"cpu": 2.0}})
    plan = autopar.schedule(graph)
    found = plan.critical
    for before, after in pairwise(found.path):
        assert found.ready(after) <= found.steps[after].start + 1e-12
        assert found.last[after].step == before
    alone = autopar.schedule(
        {**graph, "values": [], "tasks": [{"id": n, "seconds": {"cpu": 1.0}} for n in "ab"]}
    )
    assert "lane cpu/0, busy with" in alone.explain("b")


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
