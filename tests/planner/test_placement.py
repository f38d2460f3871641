"""Which plan wins, drawn small: relations and bounds, never golden numbers."""

from dataclasses import replace
from pathlib import Path

import pytest
from feasible import problems
from graphs import MS, build, chain, diamond, fork_join, machine, parts_of_mlp, random_dag, two_towers

from autopar.errors import DeviceError, MemoryCapError, PlanError
from autopar.ir.plan import Plan
from autopar.ir.timeline import Placed
from autopar.planner import Schedule, place, replan
from autopar.planner import portfolio as search

US = 1e-6
SLOW_CPU = (10 * MS, MS, MS)
"""Seconds of a task that wants an accelerator."""


def devices(plan: Plan) -> set[str]:
    return {step.device for step in plan.placed}


def overlap(plan: Plan, one: str, other: str) -> float:
    """Seconds during which two devices are both at work."""
    spans = {name: [(p.start, p.end) for p in plan.placed if p.device == name] for name in (one, other)}
    return sum(max(0.0, min(b, d) - max(a, c)) for a, b in spans[one] for c, d in spans[other])


def test_a_short_ceiling_leaves_time_for_more_than_one_device(monkeypatch):
    """A clock that each plan on one device puts a second forward: all three would leave nothing of two seconds."""
    clock = [0.0]

    def slow(instance, d):
        clock[0] += 1.0
        return single(instance, d)

    single = search.single
    monkeypatch.setattr(search, "single", slow)
    monkeypatch.setattr(search.time, "monotonic", lambda: clock[0])
    plan = place(two_towers(4, seconds=SLOW_CPU), budget_s=2.0)
    assert {"heft", "heft+lookahead"} <= {candidate.policy for candidate in plan.candidates}
    assert plan.best_single is not None and plan.best_single[0] != "cpu" and not plan.stopped


# a0 ─▶ a1 ─▶ a2 ─▶ a3 ─┐
#                        ├─▶ sum
# b0 ─▶ b1 ─▶ b2 ─▶ b3 ─┘
def test_two_chains_run_side_by_side():
    plan = place(two_towers(4, seconds=SLOW_CPU))
    assert problems(plan) == []
    assert {"emulated:0", "emulated:1"} <= devices(plan)
    assert overlap(plan, "emulated:0", "emulated:1") >= 3 * MS
    assert plan.makespan <= 0.75 * plan.best_single[1]


# t0 ─▶ t1 ─▶ … ─▶ t9: nothing to gain
@pytest.mark.parametrize("mbytes", [0.001, 100])
def test_a_chain_stays_on_one_device(mbytes):
    plan = place(chain(10, nbytes=int(mbytes * 1e6)))
    assert len(devices(plan)) == 1
    assert plan.makespan == plan.best_single[1]


# fork ─▶ 8 × w ─▶ join, with values so large that moving one takes longer than all the work
def test_dear_transfers_keep_wide_work_together():
    dear = place(fork_join(8, nbytes=10**9))
    cheap = place(fork_join(8, nbytes=10**3))
    assert len(devices(dear)) == 1 and dear.moved == 0
    assert len(devices(cheap)) == 3
    assert "Its inputs are here" in dear.reason[dear.placed[4].cluster].text


def test_each_task_goes_where_it_is_fast():
    tasks = {"a": (["x"], (MS, 50 * MS, 50 * MS)), "b": (["a"], (50 * MS, MS, 50 * MS))}
    plan = place(build(tasks, machine()))
    assert (plan.place["a"].device, plan.place["b"].device) == ("cpu", "emulated:0")
    assert plan.reason["b"].text == "It runs 49.0 ms faster here than on cpu."


# t0 ─▶ t1 ─▶ t2 ─▶ t3, each with 4 MB of state, on accelerators of 10 MB
def test_a_cap_makes_two_devices_necessary():
    state = {f"w{i}": (4_000_000, [f"t{i}"]) for i in range(4)}
    caps = {"emulated:0": 10_000_000, "emulated:1": 10_000_000}
    free = place(chain(4, machine(), SLOW_CPU, state=state))
    capped = place(chain(4, machine(memory=caps), SLOW_CPU, state=state))
    assert devices(free) == {"emulated:0"} or devices(free) == {"emulated:1"}
    assert devices(capped) == {"emulated:0", "emulated:1"}
    assert problems(capped) == []
    assert dict(capped.singles)["emulated:0"] is None
    assert all(peak <= caps.get(device, peak) for device, peak in capped.peaks.items())
    refused = [c for c in capped.candidates if c.makespan is None]
    assert any("emulated:0 would need" in c.note for c in refused)


def test_a_cap_that_is_too_small_says_what_would_fit():
    state = {"w": (8_000_000, ["t0"])}
    costed = chain(2, machine(1, memory={"cpu": 5_000_000, "emulated:0": 5_000_000}), state=state)
    with pytest.raises(MemoryCapError) as caught:
        place(costed)
    text = str(caught.value)
    assert "cpu would need 8.00 MB but is capped at 5.00 MB" in text
    assert "w 8.00 MB" in text
    needs = eval(text.split("memory=")[1].split(" would fit")[0])
    enough = {"emulated:0": 5_000_000} | needs
    assert problems(place(chain(2, machine(1, memory=enough), state=state))) == []


def test_a_run_that_can_run_on_one_device_runs_there_and_says_so():
    costed = build({"a": (["x"], MS), "b": (["a"], (None, None, MS)), "c": (["b"], MS)}, machine())
    plan = place(costed)
    assert plan.place["b"].device == "emulated:1"
    assert plan.reason["b"].text.startswith("It can only run on emulated:1")
    assert [choice.end is None for choice in plan.reason["b"].choices] == [True, True, False]
    assert all(time is None for device, time in plan.singles if device != "emulated:1")


# a ─▶ c and b ─▶ c, a and b of one group though each has a device where it is quicker
def test_runs_of_one_group_share_a_device():
    tasks = {"a": (["x"], (MS, 5 * MS, 5 * MS)), "b": (["x"], (5 * MS, MS, 5 * MS)), "c": (["a", "b"], MS)}
    for policy in ("auto", "heft", "heft+lookahead", "round_robin"):
        plan = place(build(tasks, machine(), colocate={"a": "g", "b": "g"}), policy)
        assert plan.place["a"].device == plan.place["b"].device
    apart = {"a": (["x"], (MS, None)), "b": (["x"], (None, MS))}
    with pytest.raises(PlanError, match=r"'a' and 'b' must share a device .* only run on cpu and emulated:0"):
        place(build(apart, machine(1), colocate={"a": "g", "b": "g"}))


def test_round_robin_uses_every_queue_and_moves_much():
    plan = place(chain(9, machine(2, cpu_lanes=2)), "round_robin")
    assert {step.lane for step in plan.placed} == {"cpu/0", "cpu/1", "emulated:0/0", "emulated:1/0"}
    assert plan.moved > place(chain(9, machine(2, cpu_lanes=2))).moved
    assert problems(plan) == []


def test_tiny_tasks_on_two_cpu_queues_promise_no_more_than_the_host_can_dispatch():
    on = machine(0, cpu_lanes=2, dispatch_s=50 * US)
    costed = build({f"a{i}": (["x"], 50 * US) for i in range(10)}, on)
    plan = place(costed)
    assert plan.makespan >= 10 * 50 * US * (1 - 1e-9)
    assert plan.lower_bound >= 10 * 50 * US * (1 - 1e-9)


# ── what can be asked for ──────────────────────────────────────────────────────────────────────────


def test_policies_by_name():
    costed = two_towers(3)
    assert place(costed, "single").makespan == place(costed).best_single[1]
    assert devices(place(costed, "single emulated:1")) == {"emulated:1"}
    with pytest.raises(
        PlanError, match=r"policy='best' is not known; give one of auto, single, single cpu, .*heft"
    ):
        place(costed, "best")


def test_a_policy_of_ones_own():
    costed = diamond()
    plan = place(costed, lambda c: {"a": "emulated:0", "b": "emulated:1"})
    assert (plan.place["a"].device, plan.place["b"].device) == ("emulated:0", "emulated:1")
    order = Schedule("mine", {"cpu/0": ("a", "c", "b", "d")})
    plan = place(costed, lambda c: order)
    assert plan.policy == "mine" and [step.cluster for step in plan.placed] == ["a", "c", "b", "d"]
    with pytest.raises(PlanError, match="places 'z', which is not a cluster or task"):
        place(costed, lambda c: {"z": "cpu"})
    with pytest.raises(DeviceError, match="no device 'cuda:0'"):
        place(costed, lambda c: {"a": "cuda:0"})
    fused = diamond(seconds=US, shortest_s=50 * US)
    with pytest.raises(PlanError, match="executed together"):
        place(fused, lambda c: {"a": "cpu", "b": "emulated:0"})


def test_an_edited_plan_gets_new_times():
    plan = place(two_towers(3))
    assert replan(plan.costed, plan).makespan <= plan.makespan * (1 + 1e-9)
    moved = tuple(
        replace(step, device="emulated:1", lane="emulated:1/0") if step.cluster == "b1" else step
        for step in plan.placed
    )
    edited = replan(plan.costed, replace(plan, placed=moved))
    assert edited.policy == "the plan given" and edited.place["b1"].device == "emulated:1"
    assert problems(edited) == []
    assert edited.makespan > plan.makespan


@pytest.mark.parametrize(
    "cluster, device, lane, error, text",
    [
        ("b1", "cuda:7", "cuda:7/0", DeviceError, "no device 'cuda:7' in this machine; it has cpu"),
        ("b1", "cpu", "cpu/9", PlanError, "lane 'cpu/9' of cpu; its compute lanes are cpu/0"),
        ("b9", "cpu", "cpu/0", PlanError, "'b9', which is not a cluster"),
    ],
)
def test_an_edited_plan_that_is_none_is_an_error(cluster, device, lane, error, text):
    plan = place(two_towers(3))
    placed = (*(p for p in plan.placed if p.cluster != "b1"), Placed(cluster, device, lane, 0.0, 1.0))
    with pytest.raises(error, match=text):
        replan(plan.costed, replace(plan, placed=placed))


def test_a_circular_edit_is_an_error():
    plan = place(chain(3))
    turned = tuple(replace(step, start=-step.start, end=-step.end) for step in plan.placed)
    with pytest.raises(PlanError, match="wait for each other"):
        replan(plan.costed, replace(plan, placed=turned))


# ── what a plan says ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", ["auto", "heft", "round_robin"])
def test_reasons_are_true_of_the_plan(policy):
    plan = place(random_dag(7, 20, 3, 1.0), policy)
    assert list(plan.reason) == [cluster.name for cluster in plan.costed.clusters]
    for reason in plan.reason.values():
        own = plan.place[reason.cluster]
        by = {choice.device: choice for choice in reason.choices}
        assert list(by) == list(plan.costed.machine.device)
        assert (by[own.device].free, by[own.device].end) == (own.start, own.end)
        for choice in reason.choices:
            if choice.end is not None:
                assert choice.arrives <= choice.free + 1e-12
                assert choice.end == pytest.approx(
                    choice.free + plan.costed.seconds(reason.cluster, choice.device)
                )
            else:
                assert choice.why
        here, *rivals = sorted(
            (c for c in reason.choices if c.end is not None), key=lambda c: (c.device != own.device, c.end)
        )
        assert ("sooner, but" in reason.text or "has it on" in reason.text) == any(
            rival.end < here.end - 1e-9 for rival in rivals
        )
        if "faster here" in reason.text:
            assert rivals[0].end - rivals[0].free > here.end - here.free
        if "inputs are here" in reason.text:
            assert rivals[0].arrives > here.arrives


def test_a_plan_survives_the_disk(tmp_path: Path):
    for plan in (place(parts_of_mlp(3)), place(random_dag(3, 20, 3)), place(chain(3), "round_robin")):
        plan.save(tmp_path / "plan.json")
        loaded = Plan.load(tmp_path / "plan.json")
        assert loaded == plan
        again = replan(loaded.costed, loaded)
        assert (again.placed, again.transfers, again.makespan) == (plan.placed, plan.transfers, plan.makespan)


def test_renaming_tasks_changes_no_time():
    tasks = {"a": (["x"], MS), "b": (["a"], 2 * MS), "c": (["a"], 3 * MS), "d": (["b", "c"], MS)}
    names = {"x": "input", "a": "zz", "b": "b", "c": "aa", "d": "m"}
    renamed = {names[n]: ([names[r] for r in reads], s) for n, (reads, s) in tasks.items()}
    one, two = place(build(tasks, machine())), place(build(renamed, machine()))
    assert [(p.lane, p.start, p.end) for p in one.placed] == [(p.lane, p.start, p.end) for p in two.placed]


@pytest.mark.slow
def test_ten_thousand_tasks_in_a_row():
    for policy in ("auto", "follow"):
        plan = place(chain(10_000), policy)
        assert len(plan.placed) == 10_000
        assert plan.gap <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_hardly_any_room_is_found_when_there_is_some(seed):
    free = random_dag(seed, 6, 3, 0.3, on=machine(2))
    state = sum(value.bytes for value in free.graph.values if value.kind == "state")
    peaks = place(free, "heft").peaks
    caps = {name: int(max(peaks[name], state)) for name in ("emulated:0", "emulated:1")}
    assert problems(place(replace(free, machine=free.machine.with_memory(caps)))) == []


def test_state_that_just_fits_is_spread_over_all_devices():
    state = {f"w{i}": (3_000_000, [f"t{i}"]) for i in range(9)}
    three = machine(3, memory={f"emulated:{i}": 9_100_000 for i in range(3)})
    plan = place(chain(9, three, (None, MS, MS, MS), nbytes=10_000, state=state))
    assert len(devices(plan)) == 3 and problems(plan) == []


@pytest.mark.slow
def test_caps_that_a_list_keeps_by_itself_cost_a_large_graph_nothing():
    """Many of its values have a reader that is placed last, so that by the order of placing they would not fit."""
    free = random_dag(3, 600, 3, 1.0, on=machine(2))
    heft = place(free, "heft")
    caps = {name: peak for name, peak in heft.peaks.items() if name != "cpu"}
    capped = replace(free, machine=free.machine.with_memory(caps))
    assert place(capped, "heft").makespan > 1.1 * heft.makespan
    plan = place(capped)
    assert problems(plan) == []
    assert plan.makespan <= heft.makespan * (1 + 1e-9)
