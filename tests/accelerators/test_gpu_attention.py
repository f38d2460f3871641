"""Attention with dropout on an accelerator: the masks of the kernel that eager takes there."""

import copy

import pytest
import rig
import torch
from models import eager_step
from rig import FIRST
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import autopar
from autopar.ir.costed import TAPED

pytestmark = pytest.mark.gpu


class Attention(nn.Module):
    def __init__(self, p: float = 0.4, causal: bool = False, masked: bool = False) -> None:
        super().__init__()
        self.p, self.causal, self.masked = p, causal, masked
        self.inner, self.outer = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        query, key, value = self.inner(x).view(rows, length, 3, 2, 16).permute(2, 0, 3, 1, 4)
        mask = x[:, None, None, :, 0].expand(-1, 2, length, -1).to(query.dtype) if self.masked else None
        made = F.scaled_dot_product_attention(query, key, value, mask, self.p, self.causal)
        return self.outer(made.transpose(1, 2).reshape(rows, length, 32)).relu()


def drawn(plan: autopar.Plan) -> bool:
    """Whether attention draws its masks itself."""
    return any(task.target == TAPED and task.random for task in plan.costed.graph.tasks)


@pytest.mark.parametrize("low", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("form", [{}, {"causal": True}, {"masked": True}], ids=["plain", "causal", "masked"])
def test_masks_and_gradients_are_those_of_the_model_there(form: dict[str, bool], low: bool) -> None:
    torch.manual_seed(0)
    there = Attention(**form).to(FIRST).train()
    model = copy.deepcopy(there)
    fast = autopar.compile(model, rig.machine(1), policy=f"single {FIRST}", split=None, check="always")
    for length in (16, 16, 24, 32):
        x = torch.randn(4, length, 32, device=FIRST)
        made = []
        for each in (there, fast):
            torch.manual_seed(3)
            each.zero_grad()
            with torch.autocast(rig.KIND, torch.bfloat16, enabled=low):
                y = each(x)
            y.square().sum().backward()
            made.append(y)
        torch.testing.assert_close(made[1], made[0], rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(model.parameters(), there.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    assert drawn(fast.plan)
    fast.close()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(masked=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.attention, x, use_reentrant=False)


@pytest.mark.parametrize("recompute", [None, 0.0])
def test_what_a_checkpoint_or_a_plan_computes_again_keeps_its_masks(recompute: float | None) -> None:
    torch.manual_seed(0)
    there = nn.Sequential(Attention(), Checkpointed(), Checkpointed()).to(FIRST)
    model = copy.deepcopy(there)
    fast = autopar.compile(
        model, rig.machine(1), policy=f"single {FIRST}", split=None, recompute=recompute, check="always"
    )
    for length in (16, 16, 24):
        x, made = torch.randn(4, length, 32, device=FIRST), []
        for each in (there, fast):
            torch.manual_seed(length)
            each.zero_grad()
            made.append(each(x))
            made[-1].square().sum().backward()
        torch.testing.assert_close(made[1], made[0], rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(model.parameters(), there.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    fast.close()


def error(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (made - wanted).square().mean()


def test_a_training_step_draws_as_the_loop_does() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Attention(), Attention(masked=True)).to(FIRST).train()
    model = copy.deepcopy(plain)
    ours, theirs = (torch.optim.SGD(each.parameters(), 0.1) for each in (model, plain))
    # An attention that a plan moves draws on the CPU, with the CPU's generator.
    step = autopar.train_step(model, error, ours, rig.machine(1), policy=f"single {FIRST}", split=None)
    for seed in range(4):
        x, y = torch.randn(4, 16, 32, device=FIRST), torch.randn(4, 16, 32, device=FIRST)
        torch.manual_seed(seed)
        loss = eager_step(plain, error, theirs, x, y)
        torch.manual_seed(seed)
        torch.testing.assert_close(step(x, y), loss.detach(), rtol=1e-4, atol=1e-5)
    step.close()


class Shown(nn.Module):
    """Attention whose answer tells its mask, and whose gradient of the values tells that of the backward."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.eye(length).repeat(4, 2, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, self.values * x.new_ones(()), dropout_p=0.5)


@pytest.mark.parametrize("split", [None, 2])
def test_the_backward_has_the_masks_of_the_forward_in_each_part(split: int | None) -> None:
    model, x = Shown(16).to(FIRST), torch.randn(4, 2, 16, 16, device=FIRST)
    fast = autopar.compile(model, rig.machine(1), policy=f"single {FIRST}", split=split)
    made = fast(x)
    made.sum().backward()
    dropped = (made.detach() == 0).float().mean()
    assert 0.3 < dropped < 0.7
    wanted = made.detach().sum(2)[..., None].expand(-1, -1, -1, 16)
    torch.testing.assert_close(model.values.grad, wanted, rtol=1e-4, atol=1e-4)
    fast.close()


class Rows(nn.Module):
    """Attention of the rows of a batch to one another."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.eye(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, self.values * x.new_ones(()), dropout_p=0.5)


def test_rows_that_attend_to_one_another_are_not_split() -> None:
    fast = autopar.compile(
        nn.Sequential(nn.Linear(16, 16), Rows(), nn.Linear(16, 16)).to(FIRST),
        rig.machine(1),
        policy="heft",
        split=2,
    )
    fast(torch.randn(16, 16, device=FIRST)).sum().backward()
    tasks = fast.plan.costed.graph.tasks
    assert any(task.part for task in tasks)
    assert {task.part for task in tasks if "attention" in task.target} == {""}
    fast.close()


class MaskedOnHost(nn.Module):
    """Attention with a mask that a test makes on the CPU, so that the forward has two lanes and its backward one."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.eye(16).repeat(12, 4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(16, 16, device=x.device)
        return F.scaled_dot_product_attention(x, x, self.values * x.new_ones(()), mask, dropout_p=0.5)


def masks_on_host(costed) -> dict[str, str]:
    """Constants on the CPU, the rest on the accelerator."""
    return {
        run.name: FIRST if any(costed.graph.task[name].inputs for name in run.tasks) else "cpu"
        for run in costed.clusters
    }


def test_gradients_are_not_overwritten_while_they_are_read() -> None:
    """Autograd makes them in memory of the forward's stream, and the backward runs on the caller's."""
    torch.manual_seed(0)
    model, x = MaskedOnHost().to(FIRST), torch.randn(12, 4, 16, 16, device=FIRST)
    fast = autopar.compile(model, rig.machine(1), policy=masks_on_host, split=None, check="never")
    for _ in range(10):
        model.zero_grad()
        made = fast(x)
        made.sum().backward()
        wanted = made.detach().sum(2)[..., None].expand(-1, -1, -1, 16)
        torch.testing.assert_close(model.values.grad, wanted, rtol=1e-4, atol=1e-4)
    fast.close()


def test_hooks_of_saved_tensors_leave_the_masks_to_the_backward() -> None:
    """The caller's hooks return copies of what is saved, and a copy of a tape has no graph."""
    model, x = Shown(16).to(FIRST), torch.randn(4, 2, 16, 16, device=FIRST)
    fast = autopar.compile(model, rig.machine(1), policy=f"single {FIRST}", split=None)
    with torch.autograd.graph.save_on_cpu():
        made = fast(x)
    made.sum().backward()
    wanted = made.detach().sum(2)[..., None].expand(-1, -1, -1, 16)
    torch.testing.assert_close(model.values.grad, wanted, rtol=1e-4, atol=1e-4)
    fast.close()


@pytest.mark.skipif(rig.KIND == "cuda", reason="fused kernels save no scores")
def test_peaks_count_the_scores_that_a_tape_keeps() -> None:
    model, x = (
        nn.Sequential(*(Attention() for _ in range(3))).to(FIRST),
        torch.randn(4, 256, 32, device=FIRST),
    )
    fast = autopar.compile(model, rig.machine(1), policy=f"single {FIRST}", split=None, check="never")
    fast(x).sum().backward()
    model.zero_grad()
    rig.synchronize()
    before = torch.accelerator.memory_allocated(0)
    torch.accelerator.reset_peak_memory_stats(0)
    fast(x).sum().backward()
    rig.synchronize()
    assert torch.accelerator.max_memory_allocated(0) - before <= fast.plan.peaks[FIRST]
    fast.close()


def places(plan: autopar.Plan) -> dict[str, str]:
    clusters = plan.costed.cluster
    return {name: placed.device for placed in plan.placed for name in clusters[placed.cluster].tasks}


@pytest.mark.parametrize("policy", ["round_robin", "auto", "heft"])
def test_the_backward_is_where_its_forward_drew(policy) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Shown(16), nn.Linear(16, 16), Shown(16)).to(FIRST)
    fast = autopar.compile(model, rig.machine(), policy=policy, check="never")
    for _ in range(2):
        fast(torch.randn(4, 2, 16, 16, device=FIRST)).sum().backward()
    graph, place = fast.plan.costed.graph, places(fast.plan)
    for task in graph.tasks:
        if task.target == TAPED:
            assert {place[name] for name in graph.readers[task.outputs[-1]]} == {place[task.name]}
    fast.close()
