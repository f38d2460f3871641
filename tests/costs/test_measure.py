"""Timing operations: what is timed, what is left alone, and that nothing is timed twice."""

import io
import json
import logging

import pytest
import torch

from autopar import text as progress
from autopar.costs.detect import detect
from autopar.costs.emulation import MARGIN, SHORTEST_S, slow_down_for, with_slow_down
from autopar.costs.measure import made_up, measure
from autopar.costs.roofline import cost, signature
from autopar.ir.graph import Const, Graph, Ref, Task, Value
from autopar.ir.machine import Machine
from autopar.planner import place

QUICK = {"budget_s": 0.002}


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


def matmul(side, name="t", out="y"):
    return Task(name, "aten.mm.default", (Ref("x"), Ref("x")), outputs=(out,), flops=2 * side**3)


def square(side, *tasks):
    held = [value("x", (side, side), kind="input")]
    return graph(*tasks, values=held + [value(o, (side, side)) for task in tasks for o in task.outputs])


def test_each_distinct_operation_is_timed_once_and_kept(folder, caplog):
    caplog.set_level(logging.INFO, "autopar")
    machine = detect(["cpu"])
    two = square(16, matmul(16), matmul(16, "u", "z"))
    found = measure(two, machine, {}, **QUICK)
    assert list(found) == [(signature(two, two.tasks[0]), "cpu")] and all(s > 0 for s in found.values())
    assert "measured 1 operations" in caplog.text
    caplog.clear()
    assert measure(two, machine, {}, **QUICK) == found
    assert not caplog.text


def test_more_work_is_seen_to_take_longer():
    machine = detect(["cpu"])
    small, large = square(8, matmul(8)), square(512, matmul(512))
    (quick,) = measure(small, machine, {}, **QUICK).values()
    (slow,) = measure(large, machine, {}, **QUICK).values()
    assert slow > quick


def test_what_is_measured_prices_the_graph():
    machine = detect(["cpu", "emulated:0"])
    one = square(64, matmul(64))
    found = measure(one, machine, {}, **QUICK)
    priced = cost(one, machine, homes={}, measured=found)
    key = signature(one, one.tasks[0])
    assert priced.costs[0].seconds == (found[key, "cpu"], found[key, "emulated:0"])
    assert priced.costs[0].how == "measured"


def test_nothing_with_effects_and_no_code_of_the_user_is_called():
    def never(*args):
        raise AssertionError("called")

    held = [value("x", (4,), kind="input"), value("o", (), "object", "input")]
    kinds = {
        "random": {"target": "aten.bernoulli.default", "random": "cpu", "args": (Ref("x"),)},
        "after": {"target": "aten.add.Tensor", "after": ("random",)},
        "view": {"target": "aten.alias.default", "free": True, "args": (Ref("x"),)},
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
    assert "is not measured on cpu" in caplog.text
    (file,) = folder.glob("operations-*.json")
    assert list(json.loads(file.read_text())["entries"].values()) == [None]
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
    ids = made_up(lookup, lookup.tasks[0], torch.device("cpu"))["ids"]
    assert ids.dtype == torch.int64 and 0 <= int(ids.min()) <= int(ids.max()) < 3
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


def test_machines_that_are_not_here_are_not_measured():
    one = square(16, matmul(16))
    assert measure(one, Machine.declare("cpu", "t4"), {}) == {}
    assert measure(one, Machine.emulate("cpu", "t4"), {}) == {}


def test_an_interrupted_measurement_keeps_what_it_has(folder, monkeypatch):
    from autopar.costs import measure as module

    both = square(16, matmul(16), Task("u", "aten.relu.default", (Ref("x"),), outputs=("z",)))
    real, seen = module._seconds, []

    def interrupted(*args):
        seen.append(args)
        if len(seen) > 1:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(module, "_seconds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(both, detect(["cpu"]), {}, **QUICK)
    (file,) = folder.glob("operations-*.json")
    assert len(json.loads(file.read_text())["entries"]) == 1


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_shows_on_a_terminal_and_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", -1)
    out = Terminal()
    assert list(progress.bar(range(5), "measuring", out)) == [0, 1, 2, 3, 4]
    assert "4/5" in out.getvalue() and out.getvalue().endswith(" \r")
    silent = io.StringIO()
    assert list(progress.bar(range(5), "measuring", silent)) == [0, 1, 2, 3, 4] and not silent.getvalue()


def test_short_work_shows_no_bar():
    out = Terminal()
    assert list(progress.bar([1], "measuring", out)) == [1] and not out.getvalue()


def planned(side, machine, policy="heft"):
    # Two products of the same input, so that two lanes have something to do at once.
    return place(cost(square(side, matmul(side), matmul(side, "u", "z")), machine, homes={}), policy)


@pytest.mark.parametrize("policy", ["heft", "round_robin"])
@pytest.mark.parametrize("side", [64, 512, 4096])
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


def test_doctor_prints_devices_chips_and_what_to_type(capsys):
    from autopar.cli.doctor import main

    assert main(["cpu"]) == 0
    text = capsys.readouterr().out
    for word in (
        "measurements are kept in",
        "h100-sxm",
        "datasheet",
        "pcie5",
        'autopar.compile(model, ["cpu"])',
    ):
        assert word in text
    assert main(["--again", "cpu", "emulated:0"]) == 0
    assert "EMULATED" in capsys.readouterr().out
