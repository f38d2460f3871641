"""The executor and the process it is in: interrupts, forks, and the end of a program."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(code: str) -> str:
    """What a script that may use the cases prints; it must end by itself."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_interrupt_drains_and_leaves_no_thread():
    out = python(
        """
        import os, signal, threading, time, torch
        from runtime_cases import Case
        from autopar.ir.graph import Ref

        # A shell's background job is started with the signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        slow = [True]

        def sleep(x):
            if slow[0]:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                for _ in range(100):
                    time.sleep(0.01)
            return x + 1

        def left():
            return [thread.name for thread in threading.enumerate() if thread.name.startswith("autopar")]

        accelerators = "emulated:0/0", "emulated:1/0"
        for lanes in (("cpu/0", "cpu/1"), ("cpu/1", "cpu/0"), accelerators, ("cpu/0", "cpu/0")):
            case = Case(outputs=("c",), calls={"sleep": sleep})
            case.task(lanes[0], "a", "aten.neg.default", Ref("x")).task(lanes[1], "b", "sleep", Ref("a"))
            executor = case.task("cpu/0", "c", "aten.neg.default", Ref("b")).executor()
            slow[0] = True
            with torch.no_grad():
                try:
                    executor([torch.zeros(4, 4)])
                    print("not interrupted")
                except KeyboardInterrupt:
                    print("interrupted", left())
                slow[0] = False
                print(executor([torch.zeros(4, 4)])[0].sum().item())
        """
    )
    assert out.split("\n")[:-1] == ["interrupted []", "-16.0"] * 4


@pytest.mark.slow
def test_lanes_start_again_in_a_forked_child():
    out = python(
        """
        import os, torch
        torch.set_num_threads(1)
        from runtime_cases import mlp
        case, x, eager = mlp("cpu/0", "cpu/1", "emulated:0/0")
        executor = case.executor()
        with torch.no_grad():
            executor([x])
            child = os.fork()
            if not child:
                same = torch.equal(executor([x])[0], eager(x))
                executor.close()
                os._exit(0 if same else 1)
            print(os.waitpid(child, 0)[1], torch.equal(executor([x])[0], eager(x)))
        """
    )
    assert out == "0 True\n"


@pytest.mark.release
def test_a_program_ends_with_lanes_open():
    """So does the one whose lanes start again in a forked child."""
    out = python(
        """
        import torch
        from runtime_cases import mlp
        case, x, eager = mlp("cpu/0", "cpu/1", "emulated:0/0")
        executor = case.executor()
        with torch.no_grad():
            print(torch.equal(executor([x])[0], eager(x)))
        """
    )
    assert out == "True\n"
