"""The process that compiles kernels: it may end, or hang, or leave others behind, and nobody waits for it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from autopar.runtime.kernels import worker
from autopar.runtime.kernels.worker import CompilerProcess
from autopar.runtime.tuned import wait_for

ANSWERS = """
import json, pathlib, sys
for line in sys.stdin:
    part = pathlib.Path(json.loads(line)) / "part"
    part.write_text('["no", "no, as told", 0.5]')
    part.rename(part.with_name("answer.json"))
"""
ENDS = "import sys; sys.stdin.readline(); sys.exit(3)"
LEAVES = (
    "import os, sys, time; sys.stdin.readline()\nif os.fork() == 0: os.setsid(); time.sleep(20)\nsys.exit(4)"
)
HANGS = "import sys, time; sys.stdin.readline(); time.sleep(60)"


@pytest.fixture
def started(monkeypatch):
    """A worker whose process runs some code instead."""

    def start(code: str) -> CompilerProcess:
        def popen(_: object, **options: object) -> subprocess.Popen[bytes]:
            return real([sys.executable, "-c", code], **options)

        real = subprocess.Popen
        monkeypatch.setattr(worker.subprocess, "Popen", popen)
        return CompilerProcess()

    return start


@pytest.mark.parametrize(
    ("code", "said"), [(ANSWERS, "no"), (ENDS, "ended with code 3"), (LEAVES, "ended with code 4")]
)
def test_a_process_that_ends_is_noticed_whoever_holds_its_pipe(started, tmp_path, code, said):
    began = time.monotonic()
    reason, _, spent = started(code)._asked(tmp_path)
    assert said in reason
    # Others are compiled after it: it has not taken all the seconds there are for that.
    assert spent <= max(0.5, time.monotonic() - began) < 10


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("one\ntwo", "ValueError: one"),
        ("Check 'false' failed at report.cpp:151:\nSummary:\n\n-- no rule\n", "ValueError: no rule"),
        ("", "ValueError: ValueError"),
        ("only where:", "ValueError: only where:"),
    ],
)
def test_the_reason_of_a_library_is_not_where_it_was_raised(text, told):
    assert worker.reason(ValueError(text)) == told


def test_a_process_that_takes_too_long_is_ended(started, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "LONGEST_S", 0.2)
    own = started(HANGS)
    assert "longer than" in own._asked(tmp_path)[0]
    assert own._process is not None and own._process.returncode is not None


def test_it_can_be_ended_while_a_thread_waits_for_it(started, tmp_path):
    own = started(HANGS)
    thread = threading.Thread(target=own._asked, args=(tmp_path,), daemon=True)
    thread.start()
    while own._process is None:
        time.sleep(0.01)
    worker._end(own._process)
    thread.join(5)
    assert not thread.is_alive()


def test_what_is_stopped_starts_no_other_process(started, tmp_path):
    """The thread that compiles may be just before the start of its process."""
    own = started(HANGS)
    own.stop()
    assert "stopped" in own._asked(tmp_path)[0]
    assert own._process is None


def test_a_stop_while_its_process_starts_ends_that(started, tmp_path, monkeypatch):
    own = started(HANGS)
    starting = own._started

    def stopped_meanwhile() -> subprocess.Popen[bytes]:
        process = starting()
        own.stop()
        return process

    monkeypatch.setattr(own, "_started", stopped_meanwhile)
    began = time.monotonic()
    assert "stopped" in own._asked(tmp_path)[0]
    assert own._process.returncode is not None and time.monotonic() - began < 30


def test_a_wait_for_several_programs_ends_after_its_seconds():
    asked = []

    class Slow:
        def wait(self, seconds):
            asked.append(seconds)
            time.sleep(min(seconds, 0.05))

    wait_for([Slow() for _ in range(4)], 0.1)
    assert asked[0] <= 0.1 and asked[1] < asked[0] - 0.04 and asked[-1] == 0.0
