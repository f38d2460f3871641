"""Compiled kernels: right or not used, never of old weights, the verdict remembered, eager until then."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.costs.blocks import Block
from autopar.engine.compiled import Compiled
from autopar.pipeline import kernel_choice, options
from autopar.runtime.kernels import STACKS, Stack, Work

HISTORIES = 200


class Folding:
    """A compiler for tests: it folds the weights as they are now, and calls PyTorch's own kernels."""

    frozen = True

    def __init__(self, name: str = "folding", off: float = 0.0, error: str = "", absent: str = "") -> None:
        self.name, self.off, self.error, self.absent = name, off, error, absent
        self.built = 0

    def missing(self) -> str:
        return self.absent

    def keeps(self, task: Any, graph: Any) -> bool:
        return True

    def compile(self, work: Work) -> None:
        if self.error:
            raise RuntimeError(self.error)

    def load(self, work: Work) -> Callable[..., Any]:
        self.built += 1
        self.compile(work)
        for name, tensor in work.module.named_buffers():
            setattr(work.module, name, tensor.clone())

        def call(*tensors: torch.Tensor) -> Any:
            with torch.no_grad():
                return tuple(made + self.off for made in work.module(*tensors))

        return call


class _Idle:
    """No process: the compilers of tests compile as they load."""

    spent_s = 0.0

    def compile(self, *_: Any) -> None:
        """Nothing."""


class _Here:
    """Compiles in this process, which saves the start of another."""

    spent_s = 0.0

    def compile(self, stack: str, *job: Any) -> None:
        """Compile a piece."""
        (found,) = (each for each in STACKS if each.name == stack)
        found.compile(job[-1])


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    threads = torch.get_num_threads()
    # With more there are more contestants.
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def using(monkeypatch: pytest.MonkeyPatch, *stacks: Stack, fastest: str = "") -> None:
    """Let these be the compilers that are known, and time none of them."""
    monkeypatch.setattr(kernel_choice, "STACKS", stacks)
    monkeypatch.setattr(options, "STACKS", stacks)

    def timed(turns: Any, *_: Any) -> dict[str, list[Block]]:
        for turn in turns.values():
            turn.call()
        return {name: [Block(1.0 if name == fastest else 2.0, 1, False)] for name in turns}

    monkeypatch.setattr(kernel_choice, "timed", timed)
    monkeypatch.setattr(kernel_choice, "Worker", _Idle)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()


def chosen(fast: Compiled) -> str:
    """The name of what serves."""
    (executor,) = fast._placement.backend.tuned()
    return executor.chosen.name if executor.chosen else "eager"


def compiled(model: nn.Module, x: torch.Tensor, kernels: str = "auto") -> Compiled:
    fast = autopar.compile(model, ["cpu"], kernels=kernels, example_inputs=(x,))
    fast.wait()
    return fast


def changed(model: nn.Module, rng: random.Random) -> str:
    """Change weights or buffers in one of the ways that users have."""
    layer = rng.choice([model[0], model[3]])
    norm = model[1]
    way = rng.choice(["in place", "data", "data in place", "load", "replace", "buffer", "step", "nothing"])
    factor = 1 + rng.random()
    if way == "in place":
        layer.weight.mul_(factor)
    elif way == "data":
        layer.weight.data = layer.weight.data * factor
    elif way == "data in place":
        layer.bias.data.add_(factor)
    elif way == "load":
        model.load_state_dict(
            {
                name: value * factor if value.is_floating_point() else value
                for name, value in model.state_dict().items()
            }
        )
    elif way == "replace":
        layer.weight = nn.Parameter(layer.weight * factor)
    elif way == "buffer":
        norm.running_mean.add_(factor)
    elif way == "step":
        layer.weight.grad = torch.ones_like(layer.weight)
        torch.optim.SGD([layer.weight], lr=0.1, fused=rng.random() < 0.5).step()
        layer.weight.grad = None
    return way


def test_no_answer_is_of_old_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    served = 0
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        model.load_state_dict(first)
        ways = []
        for _ in range(rng.randrange(1, 8)):
            ways.append(changed(model, rng))
            for _ in range(rng.choice([1, 1, 4])):
                torch.testing.assert_close(fast(x), model(x), msg=f"history {seed}: {ways}")
            if rng.random() < 0.3:
                fast.wait()
                served += chosen(fast) == "folding"
    assert served > 20
    assert folding.built > 20


def test_a_kernel_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding("wrong", off=1e-3), Folding("right"), fastest="wrong")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    assert chosen(fast) == "eager"  # None is timed as faster, and the one that would be is out.
    assert "wrong: its answer differs from eager's by" in fast.explain()
    assert torch.equal(fast(x), model(x))


@pytest.mark.parametrize(
    ("stack", "why"),
    [
        (Folding("broken", error="no such\nthing"), "broken: RuntimeError: no such"),
        (Folding("absent", absent="not installed"), "absent: not installed"),
    ],
    ids=["fails", "missing"],
)
def test_a_compiler_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, stack: Any, why: str) -> None:
    using(monkeypatch, stack, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    assert chosen(fast) == "folding"
    assert why in fast.explain()


def test_the_verdict_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Folding("first"), Folding("second")
    using(monkeypatch, first, second, fastest="second")
    model, x = mlp(), torch.randn(5, 8)
    assert chosen(compiled(model, x)) == "second"
    assert (first.built, second.built) == (1, 1)
    assert chosen(compiled(mlp(), x)) == "second"
    assert (first.built, second.built) == (1, 2)
    # Other sizes are another question.
    compiled(mlp(), torch.randn(6, 8))
    assert (first.built, second.built) == (2, 3)


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([tower(x) for tower in self.towers], 1)


def test_the_fastest_library_goes_on_with_one_thread_and_on_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    threads: list[tuple[int, int]] = []

    class Noting(Folding):
        def load(self, work: Work) -> Callable[..., Any]:
            threads.append((work.threads, work.lanes))
            return super().load(work)

    using(monkeypatch, Noting(), fastest="folding, 2 lanes")
    model, x = Towers().eval(), torch.randn(512, 256)
    fast = compiled(model, x)
    assert chosen(fast) == "folding, 2 lanes"
    assert threads[:2] == [(2, 1), (1, 1)]
    assert set(threads[2:]) == {(1, 2)}
    torch.testing.assert_close(fast(x), model(x))
    # Another process builds that alone.
    threads.clear()
    assert chosen(compiled(Towers().eval(), x)) == "folding, 2 lanes"
    assert set(threads) == {(1, 2)}


def test_eager_serves_until_then_and_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="eager")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    assert torch.equal(fast(x), model(x))
    for _ in range(6):
        fast(x)
    fast.wait()
    assert chosen(fast) == "eager"
    assert torch.equal(fast(x), model(x))
    assert "kernels: eager" in fast.explain()


def test_many_threads_while_kernels_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    expected = model(x)
    wrong: list[Any] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(60):
                if not torch.allclose(fast(x), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fast.wait()
    # Threads that come first at the same time may each have a graph captured.
    assert any(each.chosen is not None for each in fast._placement.backend.tuned())
    assert not wrong


def test_kernels_that_come_in_the_middle_of_a_call_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    (executor,) = fast._placement.backend.tuned()
    found, executor.chosen = executor.chosen, None
    run = executor.plain.run

    def late(*args: Any) -> Any:
        executor.chosen = found
        return run(*args)

    monkeypatch.setattr(executor.plain, "run", late)
    fast(x)
    assert executor.chosen is found


def test_what_is_recorded_names_the_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Folding(), fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    with fast.record() as recording:
        fast(x)
    (span,) = recording.calls[0].spans
    assert span.called.endswith("tasks")
    assert 0 <= span.start < span.end
    assert "measured" in fast.explain()


def test_a_kernel_that_fails_in_a_call_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    model, x = mlp(), torch.randn(5, 8)
    fast = compiled(model, x)
    folding.off = "no number"  # type: ignore[assignment]
    with pytest.raises(autopar.RunError, match=r"kernel of 4 tasks from task .* failed on cpu"):
        fast(x)


def test_training_and_random_numbers_stay_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding()
    using(monkeypatch, folding, fastest="folding")
    x = torch.randn(5, 8)
    with torch.enable_grad():
        model = mlp()
        fast = autopar.compile(model, ["cpu"], kernels="auto")
        for _ in range(5):
            fast(x).sum().backward()
    drawing = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    fast = autopar.compile(drawing, ["cpu"], kernels="auto")
    for _ in range(5):
        fast(x)
    fast.wait()
    assert folding.built == 0


def test_names_of_kernels_are_checked() -> None:
    with pytest.raises(autopar.PlanError, match="kernels='fast' is not known; give one of 'eager', 'auto', "):
        autopar.compile(mlp(), ["cpu"], kernels="fast")  # type: ignore[arg-type]


class Attention(nn.Module):
    """Attention with a residual, a table and a mask: views, integers, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)
        self.mix, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.norm(self.table(ids))
        q, k, v = self.mix(h).view(*ids.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(a.transpose(1, 2).reshape(h.shape))
        return h, h.argmax(-1), h[:, -1]


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.two, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu_(self.norm(self.one(x)))
        return self.head((h + self.two(h)).mean((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
@pytest.mark.parametrize("case", ["mlp", "attention", "convolutions", "lstm"])
def test_each_compiler_is_equal_to_eager(stack: Stack, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := stack.missing():
        pytest.skip(missing)
    if case != "mlp":
        monkeypatch.setattr(kernel_choice, "Worker", _Here)
    torch.manual_seed(1)
    made: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "mlp": (mlp(), torch.randn(5, 8)),
        "attention": (Attention(), torch.randint(20, (2, 6))),
        "convolutions": (Convolutions(), torch.randn(2, 3, 8, 8)),
        "lstm": (nn.LSTM(8, 8, batch_first=True), torch.randn(2, 5, 8)),
    }
    model, x = made[case]
    model.eval()
    fast = compiled(model, x, stack.name)
    (executor,) = fast._placement.backend.tuned()
    if executor.chosen is None:
        assert case == "lstm", fast.explain()
        return
    assert executor.chosen.name == stack.name
    found, expected = (torch.utils._pytree.tree_leaves(each(x)) for each in (fast, model))
    for ours, right in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-6)
        assert ours.stride() == right.stride()
    next(model.parameters()).mul_(1.5)
    for ours, right in zip(
        *(torch.utils._pytree.tree_leaves(each(x)) for each in (fast, model)), strict=True
    ):
        torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-6)


class Residual(nn.Module):
    """Convolutions with statistics of the batch, a skip and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.two, self.head = nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.one(x)))
        return self.head((h + torch.tanh(self.two(h))).mean((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("door", ["step", "loop"])
def test_training_with_compiled_kernels_is_that_of_eager(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, weights and statistics over some steps, while kernels take over."""
    monkeypatch.setattr(kernel_choice, "Worker", _Here)
    x, y = torch.randn(4, 3, 6, 6), torch.randint(4, (4,))
    criterion = nn.CrossEntropyLoss()
    found: dict[str, Any] = {}
    with torch.enable_grad():
        for kind in ("eager", "inductor"):
            torch.manual_seed(2)
            model = Residual()
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            if door == "step":
                step = autopar.train_step(model, criterion, optimizer, ["cpu"], kernels=kind)  # type: ignore[arg-type]
            else:
                fast = autopar.compile(model, ["cpu"], kernels=kind)  # type: ignore[arg-type]
            losses = []
            for index in range(10):
                # Compiling in this process is nothing to go on beside.
                if index in (3, 4, 5, 6):
                    (step if door == "step" else fast).wait()
                if door == "step":
                    losses.append(float(step(x, y)))
                else:
                    loss = criterion(fast(x), y)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(float(loss))
            found[kind] = losses, model.state_dict()
            if kind == "inductor":
                tuned = step._signatures.tuned() if door == "step" else fast._placement.backend.tuned()
                assert [each for each in tuned if each.chosen is not None], [each.note for each in tuned]
    torch.testing.assert_close(found["inductor"][0], found["eager"][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found["inductor"][1], found["eager"][1], rtol=1e-4, atol=1e-5)
