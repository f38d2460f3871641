"""Several threads: calls of other sizes at once, the plain model beside a capture, and loaders with workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pairs import alike, compiled
from torch import nn

from autopar.runtime.thread_state import entered

pytestmark = pytest.mark.slow


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(6))).eval()


def at_once(*works: Callable[[], None]) -> None:
    """Run these, each in a thread of its own, and raise the first error."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        try:
            start.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("training", [False, True])
def test_four_threads_with_sizes_of_their_own(training):
    plain = network()
    fast = compiled(plain)
    inputs = {size: torch.randn(size, 16) for size in (2, 3, 5, 7)}
    expected = {size: plain(x).detach() for size, x in inputs.items()}

    def work(size: int) -> Callable[[], None]:
        def calls() -> None:
            with torch.set_grad_enabled(training):
                for _ in range(4):
                    assert alike(fast(inputs[size]).detach(), expected[size])

        return calls

    at_once(*map(work, inputs))


def test_the_plain_model_is_called_while_another_thread_captures():
    plain = network()
    fast = compiled(plain)
    x = torch.randn(4, 16)
    with torch.no_grad():
        expected = plain(x)
    done = threading.Event()
    calls = [0]

    def eager() -> None:
        with torch.no_grad():
            while not done.is_set() or not calls[0]:
                found = plain(x)
                assert type(found) is torch.Tensor and torch.equal(found, expected)
                calls[0] += 1

    def capture() -> None:
        try:
            with torch.no_grad():
                for size in (2, 3, 5, 8):
                    given = torch.randn(size, 16)
                    assert alike(fast(given), plain(given))
        finally:
            done.set()

    at_once(eager, capture)
    assert fast.plan.transfers and not fast._placement.session.unplaced


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((16,), float(index)), torch.tensor(index)


def test_a_loader_with_workers_and_a_short_last_batch():
    plain = network()
    fast = compiled(plain)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)
    with torch.no_grad():
        for _ in range(2):
            sizes = []
            for x, _ in loader:
                assert alike(fast(x), plain(x))
                sizes.append(len(x))
            assert sizes == [4, 4, 2]
    fast.close()


class Calling(nn.Module):
    """Changes statistics, so that one call runs at a time, and calls another compiled model in a task."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.ops.autopar_threads.inner(self.norm(x)))


def test_a_task_that_calls_another_model_while_a_thread_plans() -> None:
    inner, planning, calls = compiled(nn.Linear(8, 8)), threading.Event(), threading.Event()

    @torch.library.custom_op("autopar_threads::inner", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is first:
            calls.set()
            assert planning.wait(30)
        with torch.no_grad():
            return inner(x)

    op.register_fake(torch.empty_like)
    fast = compiled(Calling())

    @torch.no_grad()
    def called(rows: int) -> None:
        fast(torch.randn(rows, 8))

    class Watched:
        """The lock of the model, which says that a thread which is alone waits for it."""

        def __init__(self) -> None:
            self.lock = fast._placement.session.lock

        def acquire(self, *args: Any, **kwargs: Any) -> bool:
            if threading.current_thread() is not first and entered.stack:
                planning.set()
            return self.lock.acquire(*args, **kwargs)

        def release(self) -> None:
            self.lock.release()

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    first = threading.Thread(target=called, args=(5,), daemon=True)
    for rows in (4, 5):
        for _ in range(3):
            called(rows)
    for served in inner._placement.session.graphs:
        served.forget(*served.programs)
    fast._placement.session.lock = Watched()
    first.start()
    assert calls.wait(30)
    second = threading.Thread(target=called, args=(6,), daemon=True)
    second.start()
    for thread in (first, second):
        thread.join(30)
        assert not thread.is_alive()
