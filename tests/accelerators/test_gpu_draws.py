"""Random numbers on an accelerator: those of its own generator, as `model.to(device)` draws them."""

import copy

import pytest
import rig
import torch
from rig import FIRST
from torch import nn
from torch.nn import functional as F

import autopar

pytestmark = pytest.mark.gpu


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(32, 64), nn.Linear(64, 8)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.drop(torch.relu(self.one(self.drop(x)))))


class Masked(nn.Module):
    """Its answer tells its masks, and the gradient of each weight those that the backward had."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.ones(16)), nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.dropout(x * self.left, 0.5), F.dropout(x * self.right, 0.5)


def halves(costed) -> dict[str, str]:
    """Whatever reads the one weight on the first accelerator, the other on the second."""
    place = {}
    for run in costed.clusters:
        if any(costed.graph.task[name].home for name in run.tasks):
            continue
        text = " ".join(run.tasks)
        place[run.name] = f"{rig.KIND}:{rig.COUNT - 1}" if "_1" in text or "right" in text else FIRST
    return place


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_one_accelerator_draws_what_the_model_there_draws(training: bool) -> None:
    model, x = Dropped(), torch.rand(64, 32)
    there = copy.deepcopy(model).to(FIRST)
    fast = autopar.compile(model, rig.machine(1), policy=f"single {FIRST}", split=None)
    for _ in range(3):
        with torch.set_grad_enabled(training):
            torch.manual_seed(3)
            wanted = there(x.to(FIRST)).cpu()
            torch.manual_seed(3)
            found = fast(x)
        assert torch.allclose(found, wanted, atol=1e-5)
        if training:
            found.square().sum().backward()
            wanted.square().sum().backward()
            for ours, theirs in zip(model.parameters(), there.parameters(), strict=True):
                assert torch.allclose(ours.grad, theirs.grad.cpu(), rtol=1e-3, atol=1e-3)
                ours.grad = theirs.grad = None
    fast.close()


@pytest.mark.parametrize(("policy", "split"), [(halves, None), ("auto", 2), ("round_robin", 2)])
def test_a_seed_gives_the_same_masks_and_the_backward_has_the_forwards(policy, split) -> None:
    model, x = Masked(), torch.rand(64, 16) + 1
    fast = autopar.compile(model, rig.machine(), policy=policy, split=split)
    seen = []
    for _ in range(3):
        torch.manual_seed(5)
        outputs = fast(x)
        sum(output.sum() for output in outputs).backward()
        for weight, output in zip((model.left, model.right), outputs, strict=True):
            kept = output.detach() != 0
            assert 0.2 < kept.float().mean() < 0.8
            assert torch.allclose(weight.grad, (kept * x * 2).sum(0), rtol=1e-4)
            weight.grad = None
        seen.append(torch.cat([output.detach() for output in outputs]))
    assert torch.equal(seen[1], seen[0]) and torch.equal(seen[2], seen[0])
    assert not torch.equal(torch.cat([output.detach() for output in fast(x)]), seen[0])
    fast.close()


def test_the_cpu_draws_as_eager_where_the_plan_is_on_it() -> None:
    model, x = Dropped(), torch.rand(64, 32)
    fast = autopar.compile(model, rig.machine(1), policy="single cpu", split=None, check="always")
    torch.manual_seed(3)
    wanted = model(x)
    torch.manual_seed(3)
    assert torch.equal(fast(x), wanted)
    fast.close()


def test_a_training_step_repeats() -> None:
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        model, x, y = Dropped(), torch.rand(64, 32), torch.randint(8, (64,))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        step = autopar.train_step(
            model, nn.CrossEntropyLoss(), optimizer, rig.machine(), split=2, policy="round_robin"
        )
        losses.append([float(step(x, y)) for _ in range(4)])
        step.close()
    assert losses[0] == losses[1] and len(set(losses[0])) == 4
