"""Pins and sizes: what reaches what, which wins, and how errors read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costs.pins import resolve, resolve_sums
from autopar.errors import DeviceError, PlanError
from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.ir.machine import Machine
from autopar.system.text import parse_bytes

MACHINE = Machine.declare("cpu", "t4", "t4")


def model(*tasks, state=()):
    """A graph of tasks given as (name, module, state it reads)."""
    values = [Value("x", (4,), "float32", 16, "x", "input")]
    values += [Value(name, (4,), "float32", 16, name, "state", path) for name, path in state]
    made = []
    for name, module, reads in tasks:
        values.append(Value(f"{name}_out", (4,), "float32", 16, f"{name}_out"))
        args = (Ref("x"), *map(Ref, reads))
        made.append(
            Task(name, "aten.add.Tensor", args, outputs=(f"{name}_out",), module=module, source="m.py:3")
        )
    return Graph(
        "m", tuple(values), tuple(made), ("x",), tuple(name for name, _ in state), (f"{tasks[-1][0]}_out",)
    )


TOWERS = model(
    ("a0", "tower_a.0", ["wa"]), ("a1", "tower_a.1.inner", []), ("b0", "tower_b.0", ["wb"]), ("top", "", []),
    state=[("wa", "tower_a.0.weight"), ("wb", "tower_b.0.weight")],
)  # fmt: skip
TIED = model(("e", "embed", ["w"]), ("mid", "body", []), ("h", "head", ["w"]), state=[("w", "embed.weight")])


def test_a_module_path_pins_everything_below_it():
    assert resolve(TOWERS, {"tower_a": "cuda:1"}, MACHINE) == {"a0": "cuda:1", "a1": "cuda:1"}


@pytest.mark.parametrize("order", [1, -1])
def test_the_longest_path_wins_in_any_order(order):
    pins = dict([("tower_a", "cuda:0"), ("tower_a.1", "cuda:1"), ("*", "cpu")][::order])
    assert resolve(TOWERS, pins, MACHINE)["a1"] == "cuda:1"
    pins = dict([("tower_a", "cuda:0"), ("tower_a.1.inner", "cpu")][::order])
    assert resolve(TOWERS, pins, MACHINE) == {"a0": "cuda:0", "a1": "cpu"}


def test_a_plain_path_goes_before_a_glob_that_reaches_as_deep():
    assert resolve(TOWERS, {"tower_a.0": "cpu", "tower_*.0": "cuda:1"}, MACHINE) == {
        "a0": "cpu",
        "b0": "cuda:1",
    }


def test_a_glob_pins_all_it_matches_and_nothing_else():
    assert resolve(TOWERS, {"tower_?": "cuda:0"}, MACHINE) == dict.fromkeys(("a0", "a1", "b0"), "cuda:0")


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("glob", ["*", "tower_?.0.weight", "tower_[ab].0.weight", "tower_[ab][.]0.weight"])
def test_a_gradient_is_summed_where_the_path_of_its_weight_says_whatever_globs_say(glob, order):
    pins = dict([("tower_a.0.weight", "cuda:1"), (glob, "cuda:0")][::order])
    found = resolve_sums(TOWERS, pins, {"wa": "wa.grad", "wb": "wb.grad"})
    assert found == {"wa.grad": "cuda:1", "wb.grad": "cuda:0"}
    assert resolve(TOWERS, pins, MACHINE)["a0"] == found["wa.grad"]


def test_a_parameter_pins_the_tasks_that_read_it():
    assert resolve(TOWERS, {"tower_b.0.weight": "cuda:1"}, MACHINE) == {"b0": "cuda:1"}
    assert resolve(TOWERS, {"*.weight": "cuda:1"}, MACHINE) == {"a0": "cuda:1", "b0": "cuda:1"}


def test_an_unknown_path_names_what_is_near():
    with pytest.raises(PlanError, match=r"'tower_c' names no module.*near are .*'tower_a'"):
        resolve(TOWERS, {"tower_c": "cpu"}, MACHINE)
    with pytest.raises(PlanError, match="no task of this graph comes from a module"):
        resolve(model(("only", "", [])), {"encoder": "cpu"}, MACHINE)


def test_tied_weights_pinned_apart_are_an_error_naming_weight_and_both_tasks():
    with pytest.raises(
        PlanError, match=r"'embed.weight' is shared by .*'e'.*cuda:0.*'h'.*cuda:1.*tied weights"
    ):
        resolve(TIED, {"embed": "cuda:0", "head": "cuda:1"}, MACHINE)
    assert resolve(TIED, {"embed": "cuda:0", "head": "cuda:0"}, MACHINE) == {"e": "cuda:0", "h": "cuda:0"}
    assert resolve(TIED, {"embed": "cuda:0"}, MACHINE) == {"e": "cuda:0"}


def test_a_constant_of_the_whole_model_is_not_tied():
    graph = model(("a", "left", ["c"]), ("b", "right", ["c"]), state=[("c", "scale")])
    assert resolve(graph, {"left": "cuda:0", "right": "cuda:1"}, MACHINE) == {"a": "cuda:0", "b": "cuda:1"}


def test_the_module_of_a_task_goes_before_what_it_reads():
    graph = model(("a", "left", ["c"]), ("top", "", ["c"]), state=[("c", "scale")])
    for pins in ({"left": "cuda:0", "scale": "cuda:1"}, {"scale": "cuda:1", "left": "cuda:0"}):
        assert resolve(graph, pins, MACHINE) == {"a": "cuda:0", "top": "cuda:1"}


def test_the_empty_path_is_the_whole_model_and_weaker_than_any_other():
    assert resolve(TOWERS, {"": "cpu"}, MACHINE) == dict.fromkeys(("a0", "a1", "b0", "top"), "cpu")
    found = resolve(TOWERS, {"": "cpu", "*": "cuda:0", "tower_b": "cuda:1"}, MACHINE)
    assert found == {"a0": "cuda:0", "a1": "cuda:0", "b0": "cuda:1", "top": "cpu"}


@pytest.mark.parametrize(
    ("text", "size"),
    [("6GiB", 6 << 30), ("500MB", 5e8), ("1.5 g", 1.5e9), ("12", 12), (7, 7), ("0.5KiB", 512), ("3b", 3)],
)
def test_sizes_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "6 gigs", "-1", -1, None, True, "1e9", float("inf"), float("nan"), "6 GB!"]
)
def test_invalid_sizes_are_refused_with_an_example(text):
    with pytest.raises(DeviceError, match="write bytes as a number, or"):
        parse_bytes(text)


@given(st.integers(0, 1 << 50), st.sampled_from(["KB", "KiB", "MB", "MiB", "GB", "GiB", "TB", "TiB"]))
def test_a_binary_unit_is_never_smaller_than_its_decimal_one(count, unit):
    assert parse_bytes(f"{count}{unit}") >= parse_bytes(f"{count}{unit.replace('i', '')}") >= count
