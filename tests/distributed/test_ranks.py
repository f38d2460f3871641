"""The helper that starts ranks: their answers come in order, and a rank that raises is named with its traceback."""

from __future__ import annotations

import functools
import os
import signal
import time

import pytest
from helpers.ranks import RankError, ranks

pytestmark = pytest.mark.slow


def _sum(rank: int, factor: int) -> float:
    import torch
    import torch.distributed as dist

    given = torch.tensor([float(factor * rank)])
    dist.all_reduce(given)
    return float(given)


def test_ranks_answer_in_order():
    assert ranks(3, _sum, 2) == [6.0, 6.0, 6.0]


@functools.cache
def _maker() -> int:
    return os.getpid()


def _made(rank: int) -> tuple[int, int]:
    return _maker(), os.getppid()


def test_ranks_have_what_was_cached_before():
    assert all(maker == parent for maker, parent in ranks(2, _made, before=(_maker,)))


def _fails(rank: int, how: str) -> None:
    if rank == 1 and how == "raises":
        raise ValueError("not this one")
    if rank == 1 and how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "(?s)rank 1:.*not this one"),
        ("dies", "rank 1 ended without an answer, with code -9"),
        ("hangs", "no answer of ranks"),
    ],
)
def test_a_rank_that_fails_is_named_in_time(how, said):
    began = time.monotonic()
    with pytest.raises(RankError, match=said):
        ranks(2, _fails, how, timeout_s=2 if how == "hangs" else 50)
    assert time.monotonic() - began < 30
