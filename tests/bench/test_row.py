"""Rows of results: what a median is made of, many rows in a few figures, and rows as data."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

from autopar.bench.contest import Row, read, summary
from autopar.costs.blocks import Block


def outcome(name, *times, disturbed=(), **more):
    blocks = (Block(seconds, 3, index in disturbed) for index, seconds in enumerate(times))
    return made(name, {"torch": "2"}, blocks=blocks, **more)


def made(name, versions, reason="", *, blocks=(), built_s=None, error=None, serving=""):
    """An outcome as it is read from a file."""
    data = {"name": name, "versions": versions, "reason": reason, "built_s": built_s, "error": error}
    data |= {"blocks": [asdict(block) for block in blocks], "serving": serving}
    return read({"title": "", "train": False, "outcomes": [data]}).outcomes[0]


def row(title, **times):
    return Row(
        title, False, tuple(outcome(name.replace("_", "-"), seconds) for name, seconds in times.items())
    )


def test_disturbed_blocks_do_not_count():
    found = outcome("a", 1.0, 9.0, 2.0, 9.0, 3.0, disturbed=(1, 3))
    assert found.median == 2.0 and found.quartiles == (1.5, 2.5) and not found.remark()


def test_blocks_that_may_be_disturbed_are_marked():
    found = outcome("a", 1.0, 9.0, 2.0, 9.0, disturbed=(1, 3))
    assert found.median == 5.5 and found.remark().startswith("DISTURBED"), "too few are left"
    found = made("a", {}, blocks=(Block(1.0, 1, None),))
    assert found.median == 1.0 and found.remark().startswith("perhaps disturbed")


def test_what_computed_the_calls_is_in_the_table_and_in_the_file():
    found = outcome("a", 1.0, 2.0, 3.0, serving="onnxruntime, 2 lanes")
    made = Row("first", False, (outcome("eager", 1.0, 2.0, 3.0), found))
    assert str(made).count("onnxruntime, 2 lanes") == 1
    assert read(made.data()) == made
    assert outcome("a", 1.0, disturbed=(0,), serving="eager").remark() == "DISTURBED by other work; eager"


def test_the_summary_holds_autopar_against_the_best_rival_and_eager():
    rows = [
        row("first", eager=4.0, compile=2.0, autopar=3.0),
        row("second", eager=1.0, compile=4.0, autopar=0.5),
        Row("third", False, (outcome("eager", 1.0), made("autopar", {}, "WRONG"))),
    ]
    _, _, first, second, third, largest, mean = (line.split() for line in summary(rows).splitlines())
    assert first == ["first", "compile", "0.500", "0.750", "1.500"]
    assert second == ["second", "eager", "1.000", "0.500", "0.500"]
    assert third == ["third", "eager", "1.000", "-", "-"]
    assert largest == ["largest", "0.750", "1.500"]
    assert mean[-1] == f"{math.sqrt(0.75 * 0.5):.3f}" and mean[-2] == f"{0.5 ** (1 / 3):.3f}"


def test_a_row_is_read_as_it_was_written():
    found = Row(
        "a, batch 1",
        True,
        (
            outcome("eager", 1.0, 2.0, 3.0, 4.0, disturbed=(2,), built_s=0.5, error=0.0),
            made("openvino", {"openvino": ""}, "openvino is not installed"),
        ),
    )
    data = found.data()
    assert read(json.loads(json.dumps(data, allow_nan=False))) == found
    assert data["outcomes"][0]["ratio"] == 1.0 and "ratio" not in data["outcomes"][1]


def test_the_table_names_who_has_no_time():
    found = Row("a", False, (outcome("eager", 1.0), made("openvino", {}, "openvino is not installed")))
    assert str(found).splitlines()[-1].split() == ["openvino", *"-----", "openvino", "is", "not", "installed"]


def test_a_row_without_any_times_is_summarized():
    failed = Row("slow", False, (made("eager", {}, "failed"), made("autopar", {}, "failed")))
    assert "slow" in summary([failed]) and "nan" not in summary([failed])
