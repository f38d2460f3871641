"""Timing operations: what is timed, what is left alone, and that nothing is timed twice."""

import json
import logging
import math

import pytest
import torch

from autopar.costs import measure as measuring
from autopar.costs.detect import MARGIN, SHORTEST_S, detect, slow_down_for, with_slow_down
from autopar.costs.measure import measure, measured
from autopar.costs.replay import synthetic
from autopar.costs.roofline import cost, signature
from autopar.costs.scales import operations
from autopar.ir.graph import Const, Graph, Ref, Task, Value
from autopar.ir.machine import Machine
from autopar.planner import place

pytestmark = pytest.mark.slow

QUICK = {"budget_s": 0.05}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    return tmp_path


def value(name, shape, dtype="float32", kind="made"):
    count = torch.Size(shape).numel()
    return Value(name, tuple(shape), dtype, count * 4, name, kind)


def graph(*tasks, values):
    made = [output for task in tasks for output in task.outputs]
    given = tuple(v.name for v in values if v.kind == "input")
    return Graph("g", tuple(values), tuple(tasks), given, (), (made[-1],)).check()


def entries(folder):
    """What is kept of operations, but for those by which the machine was rated."""
    (file,) = folder.glob("operations-*.json")
    probed = probe_labels()
    return {
        label: entry
        for label, entry in json.loads(file.read_text())["entries"].items()
        if label not in probed
    }


def write(folder, changed):
    (file,) = folder.glob("operations-*.json")
    data = json.loads(file.read_text())
    data["entries"].update(changed)
    file.write_text(json.dumps(data))


def probe_labels():
    probed, machine = operations(), detect(["cpu"])
    return {measuring._Book(probed, machine, {}).label(machine.devices[0], key)
            for key in {signature(probed, task) for task in probed.tasks}}  # fmt: skip


def matmul(side, name="t", out="y"):
    return Task(name, "aten.mm.default", (Ref("x"), Ref("x")), outputs=(out,), flops=2 * side**3)


def square(side, *tasks):
    held = [value("x", (side, side), kind="input")]
    return graph(*tasks, values=held + [value(o, (side, side)) for task in tasks for o in task.outputs])


def test_each_distinct_operation_is_timed_once_and_kept(folder, caplog, monkeypatch):
    monkeypatch.setattr(measuring, "FAR", math.inf)
    caplog.set_level(logging.INFO, "autopar")
    machine = detect(["cpu"])
    two = square(16, matmul(16), matmul(16, "u", "z"))
    found = measure(two, machine, {}, **QUICK)
    assert list(found) == [("t", "cpu"), ("u", "cpu")] and found["t", "cpu"] == found["u", "cpu"] > 0
    assert "measured 1 operations" in caplog.text
    caplog.clear()
    assert measure(two, machine, {}, **QUICK) == found
    assert not caplog.text


def test_measurements_price_the_graph(monkeypatch):
    machine = detect(["cpu", "emulated:0"])
    one = square(64, matmul(64))
    found = measure(one, machine, {}, **QUICK)
    # Measured anew, seconds that were far from the roofline would be others.
    monkeypatch.setattr(measuring, "measure", lambda *given: found)
    priced = cost(one, machine, homes={}, ratios=measured(one, machine, {}, {}))
    assert priced.costs[0].seconds == pytest.approx((found["t", "cpu"], found["t", "emulated:0"]))
    assert priced.costs[0].how == "measured"


def test_nothing_with_effects_and_no_code_of_the_user_is_called():
    def never(*args):
        raise AssertionError("called")

    held = [value("x", (4,), kind="input"), value("o", (), "object", "input")]
    kinds = {
        "random": {"target": "aten.bernoulli.default", "random": "cpu", "args": (Ref("x"),)},
        "after": {"target": "aten.add.Tensor", "after": ("random",)},
        "own": {"target": "mine"},
        "object": {"target": "aten.add.Tensor", "args": (Ref("x"), Ref("o"))},
    }
    tasks = [
        Task(name, outputs=(f"{name}_out",), **{"args": (Ref("x"), Ref("x")), **fields})
        for name, fields in kinds.items()
    ]
    outs = [value(f"{name}_out", (4,)) for name in kinds]
    assert measure(graph(*tasks, values=held + outs), detect(["cpu"]), {"mine": never}, **QUICK) == {}


def test_an_operation_that_refuses_made_up_inputs_is_left_to_the_roofline_and_not_tried_again(folder, caplog):
    caplog.set_level(logging.DEBUG, "autopar")
    held = [value("x", (2, 3), kind="input"), value("y", (2, 2))]
    wrong = graph(Task("t", "aten.mm.default", (Ref("x"), Ref("x")), outputs=("y",)), values=held)
    assert measure(wrong, detect(["cpu"]), {}, **QUICK) == {}
    assert "is not measured" in caplog.text
    assert list(entries(folder).values()) == [None]
    caplog.clear()
    assert measure(wrong, detect(["cpu"]), {}, **QUICK) == {}
    assert "is not measured" not in caplog.text


def test_indices_made_up_for_a_lookup_stay_in_range_on_any_axis():
    held = [
        value("table", (50, 3), kind="input"),
        value("ids", (7, 9), "int64", "input"),
        value("y", (7, 9, 3)),
    ]
    lookup = graph(
        Task("t", "aten.embedding.default", (Ref("table"), Ref("ids")), outputs=("y",)), values=held
    )
    ids = synthetic(lookup, lookup.value["ids"], torch.device("cpu"))
    # Of all rows of the table: those of the first few would stay in a cache.
    assert ids.dtype == torch.int64 and int(ids.min()) >= 0 and 3 <= int(ids.max()) < 50
    assert len(measure(lookup, detect(["cpu"]), {}, **QUICK)) == 1


def test_constants_and_keywords_reach_the_operation():
    held = [value("x", (4,), kind="input"), value("y", (2, 2), "float64")]
    keywords = (("dtype", Const("torch.float64")), ("device", Const("device")))
    task = Task("t", "aten.full.default", ((2, 2), 1.5), keywords, ("y",))
    assert len(measure(graph(task, values=held), detect(["cpu"]), {}, **QUICK)) == 1


def test_threads_and_random_state_are_as_before():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    measure(square(32, matmul(32)), detect(["cpu*2", "emulated:0", "emulated:1"]), {}, **QUICK)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_the_autocast_of_the_caller_changes_no_figure(monkeypatch):
    """Rates of float32 that are those of bfloat16 would be kept for all models to come."""
    seen, product = [], torch.mm

    def noting(left, right):
        seen.append(torch.is_autocast_enabled("cpu"))
        return product(left, right)

    monkeypatch.setattr(torch, "mm", noting)
    with torch.autocast("cpu", torch.bfloat16):
        found = measure(square(16, matmul(16)), detect(["cpu"]), {}, **QUICK)
        assert torch.is_autocast_enabled("cpu")
    assert found and len(seen) > 10 and not any(seen)


def test_machines_that_are_not_here_are_not_measured():
    one = square(16, matmul(16))
    assert measure(one, Machine.declare("cpu", "t4"), {}) == {}
    assert measure(one, Machine.emulate("cpu", "t4"), {}) == {}


def test_an_interrupted_measurement_keeps_what_it_has(folder, monkeypatch):
    both = square(16, matmul(16), Task("u", "aten.relu.default", (Ref("x"),), outputs=("z",)))
    machine, real = detect(["cpu"]), measuring._timed

    def interrupted(*args):
        yield next(real(*args))
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "_timed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(both, machine, {}, **QUICK)
    assert len(entries(folder)) == 1


def test_the_longest_operations_are_measured_where_the_budget_is_short():
    many = [Task(f"r{n}", "aten.relu.default", (Ref("x"),), outputs=(f"z{n}",)) for n in range(3)]
    machine, both = detect(["cpu"]), square(512, *many, matmul(512))
    assert {name for name, _ in measure(both, machine, {}, budget_s=1.0)} == {"t", "r0", "r1", "r2"}
    assert measure(square(256, matmul(256)), machine, {}, budget_s=1e-7) == {}


def test_measurements_far_from_the_roofline_are_repeated_a_limited_number_of_times(folder):
    machine, one = detect(["cpu"]), square(64, matmul(64))
    measure(one, machine, {}, **QUICK)
    (label,) = entries(folder)
    for known, timed in (([10.0], 2), ([10.0] * 3, 3)):
        write(folder, {label: {**entries(folder)[label], "seconds": known}})
        found = measure(one, machine, {}, **QUICK)
        assert len(entries(folder)[label]["seconds"]) == timed
        assert found["t", "cpu"] <= 10.0
    assert found == {("t", "cpu"): 10.0}


def test_figures_that_were_measured_otherwise_are_not_read(folder, monkeypatch):
    machine, one = detect(["cpu"]), square(64, matmul(64))
    measure(one, machine, {}, **QUICK)
    (label,) = entries(folder)
    write(folder, {label: {**entries(folder)[label], "seconds": [123.0] * 3}})
    monkeypatch.setattr(measuring.scales, "VERSION", measuring.scales.VERSION + 1)
    assert all(seconds < 123.0 for seconds in measure(one, machine, {}, **QUICK).values())


def test_weights_near_and_far_are_measured_apart(folder):
    machine, small = detect(["cpu"]), square(64, matmul(64))
    heavy = Value("w", (4096, 1024), "float32", 16 << 20, "w", "state")
    large = Graph("g", (*small.values, heavy), small.tasks, small.inputs, ("w",), small.outputs).check()
    measure(small, machine, {}, **QUICK)
    near = set(entries(folder))
    measure(large, machine, {}, **QUICK)
    assert len(near) == 1 and len(entries(folder)) == 2


def planned(side, machine, policy="heft"):
    # Two products of the same input, so that two lanes have something to do at once.
    return place(cost(square(side, matmul(side), matmul(side, "u", "z")), machine, homes={}), policy)


@pytest.mark.parametrize(("side", "policy"), [(64, "heft"), (512, "round_robin"), (4096, "heft")])
def test_a_slow_down_leaves_time_for_the_real_computation_and_makes_tasks_long_enough(side, policy):
    here = detect(["cpu"])
    plan = planned(side, Machine.emulate("cpu", "t4", "t4"), policy)
    factor = slow_down_for(plan, here)
    chosen = with_slow_down(plan)
    slow_down = chosen.costed.machine.slow_down
    assert factor <= slow_down <= 1.1 * factor and f"{slow_down:g}" in chosen.costed.machine.label
    assert chosen.placed == plan.placed
    real = 2 * side**3 / here.devices[0].flops_per_s("float32")
    for placed in plan.placed:
        assert (placed.end - placed.start) * factor >= MARGIN * real
    assert max(placed.end - placed.start for placed in plan.placed) * factor >= SHORTEST_S * 0.999


def test_a_faster_chip_needs_a_larger_slow_down():
    here = detect(["cpu"])
    plans = [planned(4096, Machine.emulate(chip)) for chip in ("t4", "h100-sxm")]
    slow, fast = (slow_down_for(plan, here) for plan in plans)
    assert slow < fast


def test_a_slow_down_that_was_given_and_a_real_clock_stay():
    here = detect(["cpu"])
    for machine in (Machine.emulate("cpu", "t4", slow_down=7), Machine.declare("cpu", "t4"), here):
        plan = planned(64, machine)
        assert with_slow_down(plan) is plan
