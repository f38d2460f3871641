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


def _raises(rank: int) -> None:
    if rank == 1:
        raise ValueError("not this one")


def _sleeps(rank: int) -> None:
    time.sleep(60 * rank)


def test_ranks_answer_in_order():
    assert ranks(3, _sum, 2) == [6.0, 6.0, 6.0]


@functools.cache
def _maker() -> int:
    return os.getpid()


def _made(rank: int) -> tuple[int, int]:
    return _maker(), os.getppid()


def test_ranks_have_what_was_cached_before():
    assert all(maker == parent for maker, parent in ranks(2, _made, before=(_maker,)))


def test_a_rank_that_raises_is_named():
    with pytest.raises(RankError, match=r"(?s)rank 1:.*not this one"):
        ranks(2, _raises)


def _dies(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def test_a_rank_that_dies_is_named_at_once():
    with pytest.raises(RankError, match="rank 1 ended without an answer, with code -9"):
        ranks(2, _dies, timeout_s=50)


def test_a_rank_that_hangs_is_named_in_time():
    began = time.monotonic()
    with pytest.raises(RankError, match="no answer of ranks"):
        ranks(2, _sleeps, timeout_s=3)
    assert time.monotonic() - began < 30
