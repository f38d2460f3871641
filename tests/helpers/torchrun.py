"""`torchrun` whose processes are forks of one that has loaded autopar, so that none has to load it."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from helpers.forks import served

TIMEOUT_S = 240.0
"""Seconds after which a job is killed."""

END_S = 0.5
"""Seconds that a process which has raised takes to end, as one with torch loaded does: torchrun, which looks ten times
a second, names the one that ended first."""


def torchrun(
    count: int, script: Path, *words: object, launch: tuple[str, ...] = ("--standalone",), **environment: str
) -> subprocess.CompletedProcess[str]:
    """What `torchrun --nproc-per-node count *launch script *words` has done: its agent watches, ends and
    restarts processes as ever, which begin where Python would have loaded torch and autopar."""
    line = ["--nproc-per-node", str(count), *launch, str(script), *map(str, words)]
    with tempfile.TemporaryDirectory() as folder:
        code = served(_launched, folder, line, {"GLOO_SOCKET_IFNAME": "lo", **environment})
        out, err = ((Path(folder) / name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(line, code, out, err)


def _launched(folder: str, line: list[str], environment: dict[str, str]) -> int | None:
    agent = multiprocessing.get_context("fork").Process(target=_agent, args=(folder, line, environment))
    agent.start()
    agent.join(TIMEOUT_S)
    code = agent.exitcode
    agent.kill()
    agent.join()
    return code


def _agent(folder: str, line: list[str], environment: dict[str, str]) -> None:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), number)
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    os.environ.update(environment)
    subprocess_handler.Popen = _Forked
    run.main(line)


class _Forked(subprocess.Popen):
    """`python -u script *words`, as a fork of this process."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        _, _, script, *words = args
        self.pid = os.fork()
        if self.pid:
            self._child_created = True
            return
        code = 1
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(rest[5])
            sys.argv, sys.path[:0] = [script, *words], [os.path.dirname(script)]
            runpy.run_path(script, run_name="__main__")
            code = 0
        except BaseException:
            traceback.print_exc()
            time.sleep(END_S)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
