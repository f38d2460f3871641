"""The compiler process, started by `CompilerProcess`. Each line that it reads names the folder of one job; it
writes the answer to a file in that folder.

Run as `python -m autopar.runtime.kernels.worker`.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import sympy
import torch

from ...ir.graph import Graph
from ...ir.program import Piece, Program
from . import STACKS
from .stack import Compilation, Refusal, module_of

NICE = 5
"""Increment of its nice value over the caller's process."""
LONGEST_S = 240.0
"""Limit on the seconds that a library may take for one piece."""
LOOK_S = 0.02
"""Seconds between two checks for its answer or its end."""
_ANSWER, _JOB = "answer.json", "job.pickle"
_ROOT = Path(__file__).resolve().parents[3]


class CompilerProcess:
    """A process that compiles one piece at a time, restarted if it has ended. It ends with its owner."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self.spent_s = 0.0
        """CPU seconds that it has used, C++ compilers included."""

    def compile(
        self,
        stack: str,
        piece: Piece,
        program: Program,
        graph: Graph,
        state: Mapping[str, Any],
        symbols: Sequence[sympy.Expr],
        work: Compilation,
    ) -> None:
        """Compile a piece of a program into `work.folder`. `state` holds the weights to fold; `symbols` is as
        in `module_of`.

        Raises Refusal with the library's message and the operators that it names, or if the library takes
        longer than `LONGEST_S` seconds.
        """
        # Pickle keeps open sizes of values, unlike autopar's JSON. Only this version of autopar reads it.
        parts = piece, program, replace(graph), tuple(symbols)
        job = stack, *parts, work.device, work.threads, work.lanes
        (work.folder / _JOB).write_bytes(pickle.dumps(job))
        tensors = {"state": dict(state), "examples": list(work.examples)}
        torch.save(tensors, work.folder / "tensors.pt")
        answer, told, spent = self._asked(work.folder)
        self.spent_s += spent
        if answer:
            targets = {graph.task[name].target for name in piece.tasks}
            raise Refusal(answer, frozenset(target for target in targets if target in told))

    def stop(self) -> None:
        """Kill the process and the current compilation; compile nothing more."""
        # Set first, so that a process that another thread is starting ends too.
        self._stopped = True
        if self._process is not None:
            _end(self._process)

    def _asked(self, folder: Path) -> tuple[str, str, float]:
        """Return the reason for a refusal, the library's whole message, and the CPU seconds used."""
        process = self._process
        if self._stopped:
            return "it was stopped", "", 0.0
        if process is None or process.poll() is not None:
            process = self._process = self._started()
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.write(json.dumps(str(folder)).encode() + b"\n")
        answer, code, begun = folder / _ANSWER, process.poll(), time.monotonic()
        until = begun + LONGEST_S
        while not (answer.exists() or self._stopped) and code is None and time.monotonic() < until:
            time.sleep(LOOK_S)
            code = process.poll()
        if answer.exists():
            text, told, spent = json.loads(answer.read_text())
            return str(text), str(told), float(spent)
        _end(process)
        # The CPU seconds of a process that has ended are not known; elapsed ones stand in for them.
        spent = time.monotonic() - begun
        if code is not None:
            return f"its process ended with code {code}", "", spent
        if self._stopped:
            return "it was stopped", "", spent
        return f"it takes longer than {LONGEST_S:.0f} s", "", spent

    def _started(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", ""))))
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        weakref.finalize(self, _end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def reason(problem: BaseException) -> str:
    """Return an error as one line: its first, or the rest if the first only says where it was raised."""
    lines = [line.strip(" \t-") for line in str(problem).splitlines() if line.strip(" \t-")]
    told = [line for line in lines if not line.endswith(":")]
    text = " ".join(told if told and lines[0].endswith(":") else lines[:1]) or type(problem).__name__
    text = text if isinstance(problem, Refusal) else f"{type(problem).__name__}: {text}"
    return text if len(text) <= 160 else f"{text[:157]}..."


def compiled(folder: Path) -> None:
    """Do the job in a folder. Raises any error."""
    job = pickle.loads((folder / _JOB).read_bytes())
    stack, piece, program, graph, symbols, device, threads, lanes = job
    tensors = torch.load(folder / "tensors.pt", weights_only=True, mmap=True)
    torch.set_num_threads(threads)
    module, _, axes = module_of(piece, program, graph, device, tensors["state"], symbols)
    (compile,) = (each.compile for each in STACKS if each.name == stack and each.compile)
    compile(Compilation(module, tensors["examples"], device, threads, lanes, folder, axes=axes))


def main(jobs: Sequence[str] | Any) -> None:
    """Answer each job."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    done = 0.0
    for line in jobs:
        folder = Path(json.loads(line))
        try:
            compiled(folder)
            answer = told = ""
        except Exception as problem:
            answer, told = reason(problem), str(problem)
        spent, done = sum(os.times()[:4]) - done, sum(os.times()[:4])
        # Renamed when complete: the caller waits for a file of this name.
        (folder / "answer.part").write_text(json.dumps([answer, told, spent]))
        (folder / "answer.part").rename(folder / _ANSWER)


if __name__ == "__main__":
    main(sys.stdin)
