"""The text form of a program says all of it: a program can be made from the text again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_text import parse

from autopar.ir.program import Buffer, Compute, Copy, Free, Lane, Piece, Program, Record, Wait

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
