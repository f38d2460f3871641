"""Changes in place, of views and of memory that is shared although no schema says so, are as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import autopar


class Attention(nn.Module):
    """An encoder layer in eval mode, whose dropouts do nothing, with a mask made of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mix = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.LSTM(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(5, 5, dtype=torch.bool).tril().logical_not() & (torch.arange(5) > 7)
        return self.mix(self.layer(functional.dropout(x, 0.3, self.training), src_mask=mask).float())[0]


def residual(x: torch.Tensor) -> torch.Tensor:
    made = functional.relu(x * 2, inplace=True)
    out = made.cos()
    out += made
    return functional.dropout(out, 0.5, False, inplace=True)


def taken_apart(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Several results of one call, numbers beside tensors, and a result that is an argument seen otherwise."""
    top, where = x.topk(2)
    written = torch.tensor([[2.0]])
    return top + written, where, x.chunk(2, dim=1)[0], x.t(), torch.zeros(2).add_(3), written


def in_a_view(x: torch.Tensor) -> torch.Tensor:
    made = x * 2
    made[0] = 1.0
    return made


def before_a_dropout(x: torch.Tensor) -> torch.Tensor:
    return functional.dropout(in_a_view(x), 0.5)


def seen_by_a_view(x: torch.Tensor) -> torch.Tensor:
    made = x * 2
    row = made[0]
    made.add_(1)
    return row


def seen_by_a_detached_one(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(4)
    made.detach().add_(1)
    return made * x


def into_the_argument(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2).relu()


def drawn(x: torch.Tensor) -> torch.Tensor:
    return functional.dropout(x, 0.5, True) + torch.bernoulli(torch.full_like(x, 0.5))


def wider(x: torch.Tensor) -> torch.Tensor:
    made = torch.arange(4)
    made += 1
    return x.sum() + made


def shared_without_a_word(
    share: Callable[[torch.Tensor], torch.Tensor], into: bool, view: bool
) -> Callable[..., Any]:
    """Change a value in place, or one that shares its memory although no schema says so; return the other."""

    def call(x: torch.Tensor) -> torch.Tensor:
        made = x * 2
        other = share(made)
        written = made if into else other
        (written[0] if view else written).add_(1)
        return other if into else made

    return call


UNTOLD = [
    lambda made: functional.dropout(made, 0.5, False),
    lambda made: torch.einsum("ij->ji", made),
    lambda made: made.type_as(made),
    lambda made: made.sum_to_size(3, 4),
    lambda made: torch.broadcast_tensors(made, made)[0],
    lambda made: torch.meshgrid(made[0], made[1, :1], indexing="ij")[0],
]
CALLS = [
    residual, taken_apart, in_a_view, before_a_dropout, seen_by_a_view, seen_by_a_detached_one, into_the_argument,
    drawn, wider,
]  # fmt: skip
SHARED = [
    shared_without_a_word(share, into, view)
    for share in UNTOLD
    for into in (True, False)
    for view in (True, False)
]


@pytest.mark.parametrize("call", [*CALLS, *SHARED])
def test_answers_and_arguments_are_as_eager(call: Callable[..., Any]) -> None:
    ours = torch.randn(3, 4)
    theirs, fast = ours.clone(), autopar.compile(call, ["cpu"], check="never")
    torch.manual_seed(0)
    with torch.no_grad():
        answers = [fast(ours) for _ in range(3)]
        torch.manual_seed(0)
        for answer in answers:
            torch.testing.assert_close(answer, call(theirs), rtol=0, atol=0)
    assert torch.equal(ours, theirs)
    fast.close()


@pytest.mark.slow
@pytest.mark.parametrize("into", [True, False])
def test_a_dropout_that_is_off_in_training(into: bool) -> None:
    call, x = shared_without_a_word(UNTOLD[0], into, view=False), torch.randn(3, 4)
    fast = autopar.compile(call, ["cpu"], check="never")
    found, right = (run(x.clone().requires_grad_()) for run in (fast, call))
    assert found.requires_grad
    assert torch.equal(found, right)


def test_statistics_of_a_norm_in_training_are_kept() -> None:
    def norm(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(x, mean, variance, training=True)

    x, fast = torch.randn(4, 3), autopar.compile(norm, ["cpu"], check="never")
    ours, theirs = (torch.zeros(3), torch.ones(3)), (torch.zeros(3), torch.ones(3))
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(fast(x, *ours), norm(x, *theirs))
            assert all(map(torch.equal, ours, theirs))


def test_operators_without_effect_are_no_tasks() -> None:
    fast = autopar.compile(Attention().eval(), ["cpu"], check="never")
    with torch.no_grad():
        fast(torch.randn(2, 5, 8))
    targets = [task.target for task in fast.plan.costed.graph.tasks]
    assert not [target for target in targets if "dropout" in target or "_to_copy" in target]
