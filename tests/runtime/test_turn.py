"""Blocks of timed calls run in the thread of a caller, who sees neither their errors nor their modes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autopar.runtime import choice
from autopar.runtime.choice import _Turn as Turn
from autopar.runtime.choice import apart


class Watching(TorchDispatchMode):
    """A mode of the caller, which must not see the calls of a block."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("seen")


@contextmanager
def waiting(turn: Turn, block: Callable[[], Any]) -> Iterator[list[Any]]:
    """Within the block, another thread waits until somebody runs `block`; yields what it gets, or its error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(turn.run(block))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while turn._waiting is None and thread.is_alive():
        pass
    yield found
    thread.join(20)
    assert not thread.is_alive()


def test_a_caller_runs_the_block_without_autograd_and_inference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "PATIENCE_S", 60.0)
    turn, seen = Turn(), []

    def block() -> int:
        seen.append((threading.get_ident(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return 7

    with waiting(turn, block) as found, torch.inference_mode(), turn:
        pass
    assert found == [7] and seen == [(threading.get_ident(), False, False)]


@pytest.mark.parametrize("moded", [False, True], ids=["no caller", "a caller under a mode"])
def test_without_a_caller_it_runs_all_the_same(moded: bool) -> None:
    turn, seen = Turn(), []
    with waiting(turn, lambda: seen.append(threading.get_ident())) as found:
        if moded:
            with Watching(), turn:
                pass
    assert found == [None] and seen != [threading.get_ident()]


def test_it_waits_for_a_call_that_is_under_way() -> None:
    turn, order = Turn(), []
    under_way = ExitStack()
    under_way.enter_context(turn)
    with waiting(turn, lambda: order.append("block")), under_way:
        threading.Event().wait(3 * choice.PATIENCE_S)
        order.append("call")
    assert order == ["call", "block"]


def test_its_errors_are_not_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "PATIENCE_S", 60.0)
    turn = Turn()
    with waiting(turn, lambda: 1 // 0) as found:
        with turn:
            pass
        with turn:
            pass
    assert isinstance(found[0], ZeroDivisionError)


def test_an_interrupt_reaches_the_caller_and_frees_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "PATIENCE_S", 60.0)
    turn = Turn()

    def block() -> None:
        raise KeyboardInterrupt

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            turn.run(block)

    thread = threading.Thread(target=interrupted)
    thread.start()
    while turn._waiting is None:
        pass
    with pytest.raises(KeyboardInterrupt), turn:
        pass
    thread.join(20)
    with turn:
        assert not thread.is_alive()


def test_a_call_apart_returns_its_result_or_its_error() -> None:
    with torch.enable_grad():
        grad, thread = apart(lambda: (torch.is_grad_enabled(), threading.get_ident()))
    assert not grad and thread != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 // 0)
