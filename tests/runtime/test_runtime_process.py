"""The executor and the process it is in: interrupts, forks, and the end of a program."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
from helpers.forks import forked


def _interrupted() -> list[tuple[str, list[str], float]]:
    """Of each assignment of lanes: whether a call is interrupted, the threads left then, and the next answer."""
    from runtime_cases import Case

    from autopar.ir.graph import Ref

    # A shell's background job is started with the signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    slow = [True]

    def sleep(x: torch.Tensor) -> torch.Tensor:
        if slow[0]:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            for _ in range(40):
                time.sleep(0.01)
        return x + 1

    def left() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("autopar")]

    found = []
    accelerators = "emulated:0/0", "emulated:1/0"
    for lanes in (("cpu/0", "cpu/1"), ("cpu/1", "cpu/0"), accelerators, ("cpu/0", "cpu/0")):
        case = Case(outputs=("c",), calls={"sleep": sleep})
        case.task(lanes[0], "a", "aten.neg.default", Ref("x")).task(lanes[1], "b", "sleep", Ref("a"))
        executor = case.task("cpu/0", "c", "aten.neg.default", Ref("b")).executor()
        slow[0] = True
        said = "not interrupted"
        with torch.no_grad():
            try:
                executor([torch.zeros(4, 4)])
            except KeyboardInterrupt:
                said = "interrupted"
            threads = left() if said == "interrupted" else []
            slow[0] = False
            found.append((said, threads, executor([torch.zeros(4, 4)])[0].sum().item()))
        executor.close()
    return found


@pytest.mark.slow
def test_an_interrupt_drains_and_leaves_no_thread():
    assert forked(_interrupted) == [("interrupted", [], -16.0)] * 4


def _forks() -> tuple[int, bool]:
    """How a child of this process ends that calls an executor whose lanes are at work here, and whether a call here is
    right afterwards."""
    from runtime_cases import mlp

    torch.set_num_threads(1)
    case, x, eager = mlp("cpu/0", "cpu/1", "emulated:0/0")
    executor = case.executor()
    with torch.no_grad():
        executor([x])
        child = os.fork()
        if not child:
            same = torch.equal(executor([x])[0], eager(x))
            executor.close()
            os._exit(0 if same else 1)
        found = os.waitpid(child, 0)[1], torch.equal(executor([x])[0], eager(x))
    executor.close()
    return found


@pytest.mark.slow
def test_lanes_start_again_in_a_forked_child():
    assert forked(_forks) == (0, True)
