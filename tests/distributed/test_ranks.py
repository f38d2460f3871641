"""The helper that starts ranks: their answers come in order, and a rank that raises is named with its traceback."""

from __future__ import annotations

import time

import pytest
from helpers.ranks import RankError, ranks


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


def test_a_rank_that_raises_is_named():
    with pytest.raises(RankError, match=r"(?s)rank 1:.*not this one"):
        ranks(2, _raises)


def test_a_rank_that_hangs_is_named_in_time():
    began = time.monotonic()
    with pytest.raises(RankError, match="no answer of ranks"):
        ranks(2, _sleeps, timeout_s=8)
    assert time.monotonic() - began < 30
