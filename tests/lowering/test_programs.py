"""The text form of a program says all of it: a program can be made from the text again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_text import parse
from samples import every

from autopar.errors import ProgramError
from autopar.ir.program import Buffer, Compute, Copy, Free, Lane, Piece, Program, Record, Wait
from autopar.lowering.lower import lower

PLANS = {f"{index} {each.costed.graph.name}": each for index, each in enumerate(every())}


@pytest.mark.parametrize("each", PLANS.values(), ids=PLANS)
def test_round_trip(each, tmp_path: Path) -> None:
    program = lower(each)
    assert parse(str(program)) == program
    program.save(tmp_path / "program.txt")
    assert parse((tmp_path / "program.txt").read_text(encoding="utf-8")) == program


names = st.text(st.sampled_from('ab0@:./->" \t\n#\\é\u2028in'), max_size=5) | st.text(max_size=4)
many = st.lists(names, max_size=3).map(tuple)
counts = st.integers(0, 10**15)
steps = st.one_of(
    st.builds(Compute, names, many, many),
    st.builds(Piece, st.lists(names, min_size=1, max_size=3).map(tuple), many, many),
    st.builds(Copy, names, names),
    st.builds(Record, names),
    st.builds(Wait, names),
    st.builds(Free, names),
)
buffers = st.builds(
    Buffer, names, names, names, counts, names, st.sampled_from(["given", "resident", "made", "result"])
)
programs = st.builds(
    Program,
    names,
    st.lists(st.builds(Lane, names, names, st.lists(steps, max_size=4).map(tuple)), max_size=3).map(tuple),
    st.lists(buffers, max_size=3).map(tuple),
    many,
    st.lists(st.tuples(names, names), max_size=2).map(tuple),
    st.lists(st.tuples(names, counts), max_size=2).map(tuple),
    st.lists(st.tuples(names, counts), max_size=2).map(tuple),
    st.lists(st.tuples(names, names), max_size=2).map(tuple),
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(programs)
def test_any_names_survive(program: Program) -> None:
    """Names with spaces, quotes, arrows, line breaks or nothing at all."""
    assert parse(str(program)) == program


def test_people_may_edit_it() -> None:
    """Comments, empty lines and missing or wrong step numbers are all one."""
    program = lower(PLANS["1 diamond"])
    text = str(program).splitlines()
    edited = [line.lstrip().split(" ", 1)[1] if line.startswith("  ") else line for line in text]
    assert parse("# mine\n\n" + "\n\n".join(edited) + "\n  # end") == program


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lanes cpu/0 cpu", "line 2 of the program: expected cap, output, update"),
        ("cap cpu much", "line 2 of the program: expected a number of bytes, found 'much'"),
        ("buffer a@cpu a cpu borrowed 4", "line 2 .* 'borrowed' is none of given, resident, made, result"),
        ("buffer a@cpu a cpu made 4 of b@cpu", "line 2 .* expected 'in'"),
        ('output "a', "line 2 .* quoted name that does not end"),
        ("lane cpu/0 cpu\n  0 compute f x@cpu", "line 3 .* expected 'compute TASK : READS -> WRITES'"),
        ("lane cpu/0 cpu\n  0 jump e1", "line 3 .* 'record EVENT'"),
    ],
)
def test_bad_text_names_its_line(line: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        parse(f"autopar program 1 bad\n{line}")


def test_other_files_are_refused() -> None:
    with pytest.raises(ProgramError, match="the text is empty"):
        parse("\n# nothing\n")
    with pytest.raises(ProgramError, match=r"line 1 .* expected 'autopar program 1' and a name"):
        parse("autopar plan 1 x")
