"""The compiler process: started by `CompilerProcess`, it reads the folder of one job per line and answers each in a
file there.

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
"""Seconds between looks for its answer, and whether it has ended."""
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
        """Compile a piece of a program into `work.folder`; `state` are the weights to fold, `symbols` as in
        `module_of`.

        Raises Refusal with the library's message and the operators that it names, or if it takes longer than
        `LONGEST_S` seconds.
        """
        # In files a graph has no sizes of other calls; this one is read by this version of autopar alone.
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
        """Kill its process and the current compilation; compile nothing more."""
        # First: the process may be starting.
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
        answer, code, until = folder / _ANSWER, process.poll(), time.monotonic() + LONGEST_S
        while not (answer.exists() or self._stopped) and code is None and time.monotonic() < until:
            time.sleep(LOOK_S)
            code = process.poll()
        if answer.exists():
            text, told, spent = json.loads(answer.read_text())
            return str(text), str(told), float(spent)
        _end(process)
        if code is not None:
            return f"its process ended with code {code}", "", LONGEST_S
        if self._stopped:
            return "it was stopped", "", LONGEST_S
        return f"it takes longer than {LONGEST_S:.0f} s", "", LONGEST_S

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
    """Return an error as one line: its first, or what follows a first line that only says where it was raised."""
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
        # Renamed once it is whole: the caller looks for this name.
        (folder / "answer.part").write_text(json.dumps([answer, told, spent]))
        (folder / "answer.part").rename(folder / _ANSWER)


if __name__ == "__main__":
    main(sys.stdin)
