"""Timing in blocks: what others disturbed does not count while there is time, and is known to be so after it."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autopar.costs import blocks
from autopar.costs.blocks import LEAST, Block, disturbed, median, timed


def slept(calls: list[int] | None = None, threads: int = 1) -> tuple:
    def call() -> None:
        if calls is not None:
            calls.append(torch.get_num_threads())
        time.sleep(0.01)

    return call, threads


@pytest.fixture
def load(monkeypatch):
    """Seconds of others' work at each look: two looks a block."""
    monkeypatch.setattr(blocks, "BLOCK_S", 0.02)
    seen: list[float | None] = []
    monkeypatch.setattr(blocks, "elsewhere", lambda: seen.pop(0) if seen else 0.0)
    return seen


def test_every_contestant_has_its_rounds(load):
    found = timed({"a": slept(), "b": slept()}, 4, 60.0)
    assert {name: len(one) for name, one in found.items()} == {"a": 4, "b": 4}
    assert all(
        block.seconds >= 0.01 and block.calls >= 1 and block.disturbed is False for block in found["a"]
    )


@pytest.mark.parametrize(
    ("looks", "rounds", "limit_s", "expected"),
    [
        ([0.0, 1.0, 1.0, 2.0, 2.0, 2.0], 3, 60.0, [True, True, False, False, False]),
        ([*map(float, range(1000))], 2, 60.0, [True] * 2 * LEAST),
        ([], 50, 0.0, [False] * LEAST),
        ([None, None], 1, 60.0, [None]),
    ],
    ids=["disturbed blocks again", "a busy machine", "time is up", "the system does not tell"],
)
def test_blocks_are_run_until_enough_were_undisturbed(load, looks, rounds, limit_s, expected):
    load += looks
    (found,) = timed({"a": slept()}, rounds, limit_s).values()
    assert [block.disturbed for block in found] == expected


def test_each_has_its_threads_and_they_are_given_back(load):
    before, seen = torch.get_num_threads(), []
    timed({"a": slept(seen, before + 1), "b": slept(seen, before + 2)}, 1, 60.0)
    assert set(seen) == {before + 1, before + 2} and torch.get_num_threads() == before


def test_the_first_call_after_a_switch_is_not_timed(load, monkeypatch):
    monkeypatch.setattr(blocks, "SETTLE_S", 0.0)
    calls: list[int] = []
    (found,) = timed({"a": slept(calls)}, 3, 60.0).values()
    assert len(calls) >= sum(block.calls for block in found) + 3


def test_calls_that_get_slower_do_not_make_a_block_long(load, monkeypatch):
    now, calls = [0.0], []
    monkeypatch.setattr(blocks.time, "perf_counter", lambda: now[0])

    def call() -> None:
        calls.append(1)
        now[0] += 0.0001 if len(calls) < 60 else 0.02

    (found,) = timed({"a": (call, 1)}, 1, 60.0).values()
    assert (
        found[0].calls * 0.0001 < blocks.BLOCK_S / 2 and found[0].seconds * found[0].calls >= blocks.BLOCK_S
    )


@given(st.lists(st.tuples(st.floats(1e-6, 1), st.booleans()), min_size=1, max_size=12))
def test_disturbed_blocks_count_only_where_there_are_too_few_others(rows):
    found = [Block(seconds, 1, busy) for seconds, busy in rows]
    quiet = [seconds for seconds, busy in rows if not busy]
    enough = len(quiet) >= LEAST
    times = quiet if enough else [seconds for seconds, _ in rows]
    assert min(times) <= median(found) <= max(times)
    assert disturbed(found) == (not enough and any(busy for _, busy in rows))


def test_others_work_is_the_cores_less_our_own(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks.os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    monkeypatch.setattr(blocks, "_TICK_S", 0.01)
    monkeypatch.setattr(blocks.time, "process_time", lambda: 1.0)
    stat = tmp_path / "stat"
    core = "100 10 20 5000 70 1 2 7 90 0"
    stat.write_text(f"cpu 9 9 9 9 9 9 9 9 9 9\ncpu0 {core}\ncpu1 {core}\ncpu2 {core}\nintr 1\n")
    # user, nice, system, irq, softirq and steal of cores 0 and 2, in hundredths.
    assert blocks.elsewhere(stat) == pytest.approx(2 * 1.40 - 1.0)
    assert blocks.elsewhere(tmp_path / "none") is None
    stat.write_text("cpu0 0 0 0 0 0 0 0 0 0 0\n")
    assert blocks.elsewhere(stat) is None
