"""Ranks of `train_step(process_group=True)`: one whose optimizer, criterion or trained parameters differ is named on
all ranks, at once, before any weight changes."""

import pytest
import torch
from helpers.ranks import ranks
from torch import nn

import autopar
from autopar.errors import CaptureError

pytestmark = pytest.mark.slow


def parts(rank: int, differing: str) -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    """A model, its optimizer and criterion, with rank 1 differing in one thing."""
    torch.manual_seed(0)
    model, odd = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)), rank == 1
    kind = torch.optim.Adam if odd and differing == "class" else torch.optim.SGD
    settings = {"lr": 0.1, "weight_decay": 0.2 if odd and differing == "weight_decay" else 0.1}
    optimizer = kind(model.parameters(), **settings)
    if odd and differing == "momentum_buffer":
        for each in model.parameters():
            optimizer.state[each]["momentum_buffer"] = torch.ones_like(each)
    smooth = 0.1 if odd and differing == "label_smoothing" else 0.0
    return model, optimizer, nn.CrossEntropyLoss(label_smoothing=smooth)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, rule: nn.Module, **options):
    return autopar.train_step(model, rule, optimizer, ["cpu"], process_group=True, **options)


def differences_of_begins(rank: int) -> dict[str, str]:
    found = {}
    for differing in ("class", "weight_decay", "momentum_buffer", "label_smoothing", "clip_norm"):
        options = {"clip_norm": 1.0} if differing == "clip_norm" and rank == 1 else {}
        with pytest.raises(CaptureError) as caught:
            step_of(*parts(rank, differing), **options)
        found[differing] = str(caught.value)
    return found


def test_a_difference_at_the_begin_is_named_on_all_ranks():
    first, second = ranks(2, differences_of_begins)
    assert first == second
    for differing, text in first.items():
        assert "rank 1" in text and differing in text, text


def differences_between_steps(rank: int) -> dict[str, str]:
    found = {}
    model, optimizer, rule = parts(rank, "")
    optimizer.param_groups[0]["momentum"] = 0.9
    step = step_of(model, optimizer, rule)
    x, y = torch.randn(3, 6), torch.randint(4, (3,))
    step(x, y)

    def refused(differing: str) -> None:
        before = [each.detach().clone() for each in model.parameters()]
        with pytest.raises(CaptureError) as caught:
            step(x, y)
        found[differing] = str(caught.value)
        assert all(torch.equal(own, old) for own, old in zip(model.parameters(), before))

    if rank == 1:
        optimizer.param_groups[0]["lr"] = 0.05
    refused("lr")
    optimizer.param_groups[0]["lr"] = 0.05
    step(x, y)
    if rank == 1:
        model[0].weight.requires_grad_(False)
    refused("trained")
    model[0].weight.requires_grad_(False)
    step(x, y)
    state = optimizer.state_dict()
    if rank == 1:
        state["state"][1]["momentum_buffer"] = state["state"][1]["momentum_buffer"] + 1
        optimizer.load_state_dict(state)
    refused("momentum_buffer")
    gathered: list = [None, None]
    torch.distributed.all_gather_object(gathered, [each.tolist() for each in model.parameters()])
    assert gathered[0] == gathered[1]
    return found


def test_a_difference_that_comes_later_is_named_before_the_next_update():
    first, second = ranks(2, differences_between_steps)
    assert first == second
    for differing, text in first.items():
        assert "rank 1" in text and differing in text, text


def with_schedules(rank: int) -> list:
    """Weights after steps whose rate a scheduler changes, with a load on all ranks in between."""
    model, optimizer, rule = parts(rank, "")
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    step = step_of(model, optimizer, rule)
    for number in range(4):
        step(torch.randn(2 + rank, 6), torch.randint(4, (2 + rank,)))
        schedule.step()
        if number == 1:
            optimizer.load_state_dict(optimizer.state_dict())
    return [each.tolist() for each in model.parameters()]


def test_ranks_that_agree_go_on():
    first, second = ranks(2, with_schedules)
    assert first == second
