"""Several threads: calls of other sizes at once, the plain model beside a capture, and loaders with workers."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from pairs import alike, compiled, twins
from torch import nn

pytestmark = [pytest.mark.slow, pytest.mark.thin(2)]


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


@pytest.mark.parametrize("same", [True, pytest.param(False, marks=pytest.mark.release)])
def test_the_plain_model_is_called_while_another_thread_captures(same):
    plain = network()
    fast = compiled(plain)
    other = plain if same else network()
    x = torch.randn(4, 16)
    with torch.no_grad():
        expected = other(x)
    done = threading.Event()
    calls = [0]

    def eager() -> None:
        with torch.no_grad():
            while not done.is_set() or not calls[0]:
                found = other(x)
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
    assert fast.plan.transfers and not fast._placement.backend.unplaced


def test_two_compiled_models_captured_at_once():
    pairs = [twins(network) for _ in range(2)]
    x = torch.randn(4, 16)

    def work(pair: tuple[nn.Module, nn.Module]) -> Callable[[], None]:
        def calls() -> None:
            with torch.no_grad():
                for size in (4, 3):
                    assert alike(pair[1](x[:size]), pair[0](x[:size]))

        return calls

    at_once(*map(work, pairs))


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((16,), float(index)), torch.tensor(index)


@pytest.mark.parametrize("workers", [2, pytest.param(0, marks=pytest.mark.release)])
def test_a_loader_with_workers_and_a_short_last_batch(workers):
    plain = network()
    fast = compiled(plain)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=workers)
    with torch.no_grad():
        for _ in range(2):
            sizes = []
            for x, _ in loader:
                assert alike(fast(x), plain(x))
                sizes.append(len(x))
            assert sizes == [4, 4, 2]
    fast.close()
