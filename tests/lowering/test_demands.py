"""Waits that are needed far down a lane, and names with the sign of a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from naive import machine, plan, value
from redundant import redundant
from samples import R, graph, op

from autopar.errors import PlanError
from autopar.ir.program import Buffer, Compute, Lane, Program, Record, Step, Wait
from autopar.lowering.lower import lower


@pytest.mark.parametrize("far", [2, 200])
@pytest.mark.parametrize("through", [False, True])
def test_a_wait_that_is_needed_far_behind_it_is_not_redundant(far: int, through: bool) -> None:
    """Steps later in its lane, or in a lane that waits for this one; without that step it is."""
    steps: dict[str, list[Step]] = {
        "a/0": [Compute("first", (), ("x@a",)), Record("done")],
        "a/1": [Wait("done")],
    }
    buffers = [Buffer("x@a", "x", "a", 8, "x@a", "result")]
    for number in range(far):
        name = f"v{number}@a"
        buffers.append(Buffer(name, f"v{number}", "a", 8, name, "result"))
        steps["a/1"].append(Compute(f"t{number}", (), (name,)))
    reader = "a/2" if through else "a/1"
    if through:
        steps["a/1"].append(Record("passed"))
        steps[reader] = [Wait("passed")]
    buffers.append(Buffer("y@a", "y", "a", 8, "y@a", "result"))
    lanes = tuple(Lane(lane, "a", tuple(found)) for lane, found in steps.items())
    idle = Program("idle", lanes, tuple(buffers[:-1]), ())
    assert ("a/1", 0) in redundant(idle)
    steps[reader].append(Compute("last", ("x@a",), ("y@a",)))
    lanes = tuple(Lane(lane, "a", tuple(found)) for lane, found in steps.items())
    assert redundant(Program("busy", lanes, tuple(buffers), ())) == ()


def test_an_error_names_values_as_they_are_also_with_the_sign_of_a_device_in_them() -> None:
    """`value@device` is read from its end."""
    values = [value("x@home", kind="input")]
    made = plan(
        graph("signs", values, [op("f", "aten.sin.default", R("x@home"))], ("f_",)), machine(), ["emulated:0"]
    )
    with pytest.raises(PlanError, match=r"on emulated:0 reads 'x@home', which the plan never brings there"):
        lower(replace(made, transfers=tuple(t for t in made.transfers if t.value != "x@home")))
    with pytest.raises(PlanError, match=r"never brings the result 'f_' to cpu"):
        lower(replace(made, transfers=tuple(t for t in made.transfers if t.value != "f_")))
    moved = tuple(replace(t, src="emulated:1") if t.value == "x@home" else t for t in made.transfers)
    with pytest.raises(
        PlanError, match=r"moves 'x@home' from emulated:1 to emulated:0, but it never is on emulated:1"
    ):
        lower(replace(made, transfers=moved))
