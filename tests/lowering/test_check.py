"""Every way in which a program can be wrong has its sentence, and right programs pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from naive import machine, plan, value
from program_text import parse
from redundant import redundant
from samples import R, diamond, graph, op, orders

from autopar.errors import ProgramError
from autopar.ir.program import Buffer, Compute, Free, Lane, Program, Record, Wait
from autopar.lowering.check import check
from autopar.lowering.lower import lower
from autopar.lowering.memory_bound import footprint
from autopar.lowering.vector_clocks import History

# x is copied to the accelerator, worked on there by f, brought back as the result.
RIGHT = """autopar program 1 small
output y@cpu
buffer x@cpu x cpu given 64
buffer x@gpu x gpu made 64
buffer y@gpu y gpu made 64
buffer y@cpu y cpu result 64

lane gpu/0 gpu
  wait e1
  compute f : x@gpu -> y@gpu
  record e2
  wait e3
  free y@gpu

lane gpu/in gpu
  copy x@cpu -> x@gpu
  record e1
  wait e2
  free x@gpu

lane gpu/out gpu
  wait e2
  copy y@gpu -> y@cpu
  record e3
"""


def test_the_right_program_passes() -> None:
    program = parse(RIGHT)
    assert redundant(program) == ()
    assert {peak.device: peak.bytes for peak in check(program)} == {"cpu": 128, "gpu": 128}


WRONG = {
    "read before write": (
        [("  wait e1\n", "")],
        r"step 0 of lane gpu/0 \(task 'f'\) reads x@gpu, but nothing makes it follow step 0 of lane gpu/in "
        r"\(copy x@cpu -> x@gpu\); record an event in lane gpu/in",
    ),
    "freed before read": (
        [("  wait e3\n", "")],
        r"step 3 of lane gpu/0 \(free y@gpu\) frees y@gpu, but nothing makes it follow step 1 of lane gpu/o",
    ),
    "freed too early in its own lane": (
        [
            ("  compute f : x@gpu -> y@gpu\n", "  free y@gpu\n  compute f : x@gpu -> y@gpu\n"),
            ("  wait e3\n  free y@gpu\n", ""),
        ],
        r"\(free y@gpu\) frees y@gpu, but runs before step 2 of lane gpu/0 \(task 'f'\)",
    ),
    "double free": (
        [("  free x@gpu\n", "  free x@gpu\n  free x@gpu\n")],
        "x@gpu is freed twice; step 3 of lane gpu/in",
    ),
    "leak": ([("  free x@gpu\n", "")], "buffer x@gpu, made by step 0 of lane gpu/in, is never freed"),
    "freed elsewhere": (
        [("  free x@gpu\n", ""), ("  free y@gpu\n", "  free y@gpu\n  free x@gpu\n")],
        "frees buffer x@gpu, which lane gpu/in made; free it there",
    ),
    "frees the caller's": (
        [("  free x@gpu\n", "  free x@cpu\n")],
        "x@cpu is given, which a program never frees",
    ),
    "frees a result": (
        [("record e3\n", "record e3\n  free y@cpu\n")],
        "y@cpu is result, which a program never frees",
    ),
    "deadlock": (
        [("  copy x@cpu -> x@gpu\n", "  wait e2\n  copy x@cpu -> x@gpu\n")],
        r"can never end.*: step 0 of lane gpu/0 \(wait e1\), then step 0 of lane gpu/in \(wait e2\)",
    ),
    "waits for itself": (
        [("  wait e1\n", "  wait e2\n")],
        r"can never end.*step 0 of lane gpu/0 \(wait e2\)",
    ),
    "no such event": (
        [("  record e1\n", "")],
        r"step 0 of lane gpu/0 \(wait e1\) waits for an event that no lane",
    ),
    "recorded twice": ([("record e3\n", "record e3\n  record e1\n")], "event 'e1' is recorded twice"),
    "no copy": (
        [("  copy x@cpu -> x@gpu\n", "")],
        r"\(task 'f'\): it reads buffer x@gpu, which no step makes; a copy",
    ),
    "wrong device": (
        [("f : x@gpu", "f : x@cpu")],
        "it runs on gpu, but buffer x@cpu is on cpu; copy it first",
    ),
    "wrong lane": (
        [("lane gpu/in gpu", "lane gpu/1 gpu")],
        "copy x@cpu -> x@gpu belongs in lane gpu/in or cpu/out",
    ),
    "copy within a device": ([("copy x@cpu -> x@gpu", "copy y@gpu -> x@gpu")], "are on one device"),
    "copy of another": ([("copy x@cpu -> x@gpu", "copy y@cpu -> x@gpu")], "a copy of 'y' cannot be 'x'"),
    "made twice": (
        [("  record e1\n", "  copy x@cpu -> x@gpu\n  record e1\n")],
        "x@gpu is made twice; step 0 of lane gpu/in",
    ),
    "run twice": (
        [("  record e2\n", "  compute f : x@gpu ->\n  record e2\n")],
        "task 'f' has run before; each runs once",
    ),
    "writes the caller's": (
        [("copy y@gpu -> y@cpu", "copy x@gpu -> x@cpu")],
        "x@cpu is given: it is there before",
    ),
    "result not made": (
        [("  copy y@gpu -> y@cpu\n", "")],
        "no step makes buffer y@cpu of kind result",
    ),
    "result is freed": ([("output y@cpu", "output y@gpu")], "the result y@gpu is of kind made"),
    "no such result": ([("output y@cpu", "output z@cpu")], "the result 'z@cpu' is not a buffer"),
    "no such buffer": ([("f : x@gpu", "f : z@gpu")], "'z@gpu' is not a buffer of the program"),
    "cap before": (
        [("output", "cap host 10\nbuffer w@host w host given 64\noutput")],
        "host may hold 64 B before anything runs, 54 B over its cap of 10 B",
    ),
    "cap": (
        [("output", "cap gpu 127\noutput")],
        r"gpu may hold 128 B when step 1 of lane gpu/0 \(task 'f'\) runs.*or the cap be 128",
    ),
    "scratch": ([("output", "cap gpu 130\nworkspace f 8\noutput")], "gpu may hold 136 B"),
    "storage of nobody": ([("y@gpu y gpu made 64", "y@gpu y gpu made 64 in z@gpu")], "which is not a buffer"),
    "storage elsewhere": (
        [("y@gpu y gpu made 64", "y@gpu y gpu made 64 in x@cpu")],
        "cannot share storage with x@cpu",
    ),
    "copy of a view": (
        [("x@gpu x gpu made 64", "x@gpu x gpu made 64 in y@gpu")],
        "x@gpu is a copy, so it cannot share",
    ),
    "two of a name": ([("buffer x@gpu", "buffer x@cpu")], "two buffers share a name"),
}


@pytest.mark.parametrize(("edits", "message"), WRONG.values(), ids=WRONG)
def test_wrong_programs_are_named(edits: list[tuple[str, str]], message: str) -> None:
    text = RIGHT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    with pytest.raises(ProgramError, match=message):
        check(parse(text))


def test_a_base_is_freed_after_its_views() -> None:
    """Bytes come back with the base of a storage, which therefore goes last."""
    text = """autopar program 1 view
output y@cpu
buffer x@cpu x cpu given 64
buffer a@cpu a cpu made 64
buffer v@cpu v cpu made 64 in a@cpu
buffer b@cpu b cpu made 64
buffer y@cpu y cpu result 64
lane cpu/0 cpu
  compute a : x@cpu -> a@cpu
  compute v : a@cpu -> v@cpu
  compute b : x@cpu -> b@cpu
  compute y : v@cpu b@cpu -> y@cpu
  free v@cpu
  free a@cpu
  free b@cpu
"""
    early = text.replace("  free a@cpu\n", "").replace("  compute b", "  free a@cpu\n  compute b")
    with pytest.raises(ProgramError, match=r"frees a@cpu, of which v@cpu is a view, but runs before step 5"):
        check(parse(early))
    assert [peak.bytes for peak in check(parse(text))] == [4 * 64]
    stranger = text.replace("compute v : a@cpu", "compute v : x@cpu")
    with pytest.raises(ProgramError, match="v@cpu shares storage with a@cpu, which it does not read"):
        check(parse(stranger))


def test_with_a_graph() -> None:
    """What only the graph knows: tasks, their arguments, order without values."""
    each, made = orders(), orders().costed.graph
    program = lower(each)
    check(program, made)
    other = diamond().costed.graph
    with pytest.raises(ProgramError, match="the graph has no task"):
        check(program, other)
    fewer = replace(made, tasks=made.tasks[:-1], outputs=("c",))
    with pytest.raises(ProgramError, match="the graph has no task 'all'"):
        check(program, fewer)
    extra = replace(made, tasks=(*made.tasks, op("more", "aten.sin.default", R("x"), ())))
    with pytest.raises(ProgramError, match=r"no lane runs task 'more' \(aten.sin.default\)"):
        check(program, extra)
    swapped = replace(made, tasks=(*made.tasks[:-1], replace(made.tasks[-1], args=R("far_", "end_"))))
    with pytest.raises(ProgramError, match=r"it reads end_@?.*, far_.*, the task far_, end_"):
        check(program, swapped)
    bigger = replace(made, values=tuple(replace(v, bytes=v.bytes + 1) for v in made.values))
    with pytest.raises(ProgramError, match="its value 65"):
        check(program, bigger)
    ordered = replace(made, tasks=(*made.tasks[:4], replace(made.tasks[4], after=("r1",)), *made.tasks[5:]))
    with pytest.raises(
        ProgramError, match=r"\(task 'far'\) must come after task 'r1', but nothing makes it follow"
    ):
        check(program, ordered)


def test_hidden_views_are_found() -> None:
    """A buffer that claims storage of its own though the graph says it is a view could be overwritten."""
    tasks = [op("a", "aten.sin.default", R("x")), op("v", "aten.t.default", R("a_"), ("v",), free=True)]
    made = graph("view", [value("x", kind="input"), value("v", storage="a_")], tasks, ("v",))
    program = lower(plan(made, machine(), ["cpu"]))
    buffers = tuple(replace(b, storage=b.name) for b in program.buffers)
    with pytest.raises(ProgramError, match="v@cpu is a view into a_@cpu"):
        check(replace(program, buffers=buffers), made)


@settings(max_examples=40, deadline=None)
@drawn(st.data())
def test_footprint_is_exact_for_two_lanes_and_sound_for_more(data: st.DataObject) -> None:
    """Against all states that the lanes can be in together, found by walking through them."""
    count = data.draw(st.integers(1, 3))
    lanes, buffers, events = [], [], []
    for index in range(count):
        steps: list = []
        held: list[str] = []
        for number in range(data.draw(st.integers(0, 6))):
            kind = data.draw(st.sampled_from(["make", "free", "record", "wait"]))
            if kind == "make":
                name = f"b{index}_{number}"
                size = data.draw(st.integers(1, 50))
                buffers.append(Buffer(name, name, "d", size, name, "made"))
                steps.append(Compute(name, (), (name,)))
                held.append(name)
            elif kind == "free" and held:
                steps.append(Free(held.pop(data.draw(st.integers(0, len(held) - 1)))))
            elif kind == "record":
                events.append(f"e{index}_{number}")
                steps.append(Record(events[-1]))
            elif kind == "wait" and events:
                steps.append(Wait(data.draw(st.sampled_from(events))))
        steps += [Free(name) for name in held]
        lanes.append(Lane(f"d/{index}", "d", tuple(steps)))
    # Waits point to lanes before their own (or further up), so the program always ends.
    program = Program("p", tuple(lanes), tuple(buffers), ())
    history = History(program)
    bytes_of = {buffer.name: buffer.bytes for buffer in buffers}
    worst, seen, todo = 0, set(), [((0,) * count, 0, frozenset())]
    while todo:
        at, used, recorded = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        worst = max(worst, used)
        for index, lane in enumerate(lanes):
            if at[index] < len(lane.steps):
                step = lane.steps[at[index]]
                if isinstance(step, Wait) and step.event not in recorded:
                    continue
                more = bytes_of[step.writes[0]] if isinstance(step, Compute) else 0
                more -= bytes_of[step.buffer] if isinstance(step, Free) else 0
                new = recorded | {step.event} if isinstance(step, Record) else recorded
                todo.append(((*at[:index], at[index] + 1, *at[index + 1 :]), used + more, new))
    bound = max((peak.bytes for peak in footprint(program, history)), default=0)
    assert bound == worst if count <= 2 else bound >= worst
