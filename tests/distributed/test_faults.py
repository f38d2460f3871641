"""Killed, stopped and hung ranks: the job ends on every rank, in bounded time, with the name of the one that failed."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import re
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import faulty
import pytest
from helpers.forks import served
from helpers.ranks import free_port, ranks
from helpers.torchrun import torchrun

ROOT = Path(__file__).parents[2]
BOUND_S = 2 + 1 + 2 + 20
"""Seconds after a fault in which a job of these tests ends: the timeout and the grace of its guards, two more, and what
a machine under load may take. Without guards torchrun waits 30 seconds for a stopped process, and gloo half an hour."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/ns").exists(), reason="processes are looked up in /proc"),
]


@dataclass
class Ended:
    """A job that has ended: exit codes (None: it had to be killed), what was printed, by rank, and the seconds that it
    took after the fault."""

    codes: list[int | None]
    said: list[str]
    after: float


def _forked(rank: int, count: int, port: int, folder: str, words: tuple) -> None:
    handle = os.open(f"{folder}/{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(count),
        GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    try:
        faulty.run(*words)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        os._exit(1)


def job(folder: Path, count: int, *words) -> Ended:
    """A job without a launcher, as the ranks on other hosts see it: nothing ends them but what they know themselves."""
    return served(_job, folder, count, words)


def _job(folder: Path, count: int, words: tuple) -> Ended:
    port, context = free_port(), multiprocessing.get_context("fork")
    started = [
        context.Process(target=_forked, args=(rank, count, port, str(folder), words)) for rank in range(count)
    ]
    for process in started:
        process.start()
    until = time.monotonic() + 60
    for process in started:
        process.join(max(0.0, until - time.monotonic()))
    end, codes = time.monotonic(), [process.exitcode for process in started]
    for process in started:
        process.kill()
        process.join()
    said = [(folder / str(rank)).read_text() for rank in range(count)]
    return Ended(codes, said, end - failed_at("".join(said)))


def failed_at(said: str) -> float:
    """The second at which a rank has failed, by what it printed."""
    found = re.search(r"fails at ([\d.]+)", said)
    return float(found[1]) if found else 0.0


def _warned(rank: int, restarts: str) -> list[str]:
    from autopar.distributed.faults.heartbeat import guarded, log

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    log.addHandler(handler)
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_MAX_RESTARTS=restarts)
    with guarded(timeout_s=5):
        pass
    return said


@pytest.mark.release
def test_a_store_that_outlives_restarts_is_warned_of():
    assert ranks(1, _warned, "0") == [[]]
    ((said,),) = ranks(1, _warned, "3")
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in said


def _refuses(rank: int) -> list[str]:
    from autopar import RunError
    from autopar.distributed.faults.heartbeat import guarded

    said = []
    for options in ({"timeout_s": 0}, {"grace_s": -1}, {"step_timeout_s": 0}):
        try:
            with guarded(**options):
                pass
        except RunError as error:
            said.append(str(error))
    return said


def test_seconds_that_are_none_are_refused():
    ((*said,),) = ranks(1, _refuses)
    assert len(said) == 3 and all("seconds above 0" in text for text in said)


def _numbered(rank: int) -> list[int | None]:
    """Last steps of guards of some ranks and of all, by numbers of others than Python."""
    import numpy
    import torch
    import torch.distributed as dist

    from autopar.distributed.faults.heartbeat import guarded

    some, found = dist.new_group([0, 1]), []
    for group in (some, None) if rank < 2 else (None,):
        with guarded(group, timeout_s=2) as guard:
            for number in (numpy.int64(3), torch.tensor(4)):
                guard.step(number)
                # A beat is written meanwhile.
                time.sleep(0.6)
            found.append(guard.last_step)
    return found


def test_guards_of_some_ranks_and_of_all_beat_with_any_number():
    assert ranks(3, _numbered, timeout_s=60) == [[4, 4], [4, 4], [4]]


def test_lines_that_wait_for_other_ranks_are_known():
    from autopar.distributed.faults.heartbeat import _position
    from autopar.distributed.pipeline import reduction
    from autopar.training import group

    def waits(file: str) -> bool:
        code = SimpleNamespace(co_filename=file, co_name="average")
        return _position(SimpleNamespace(f_code=code, f_lineno=1, f_back=None))[1]

    # A rank that waits there is not the one that is stuck.
    assert waits(group.__file__) and waits(reduction.__file__) and not waits(__file__)


def _outlasts(rank: int) -> bool:
    """Whether a guarded block ends after a thread that is at work."""
    from autopar.distributed.faults.heartbeat import guarded

    # It hashes without the GIL.
    worker = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha512", b"", b"", 50_000))
    with guarded(timeout_s=5):
        worker.start()
    return not worker.is_alive()


def test_a_guarded_block_ends_after_threads_that_are_at_work():
    # A group that is freed joins its threads under the GIL, for which they may be waiting.
    assert ranks(1, _outlasts) == [True]


def test_ranks_that_do_not_fail_end_well(tmp_path):
    found = job(tmp_path, 3, "slow", 1, 3)
    assert found.codes == [0, 0, 0], found.said
    assert all("is done" in said and "autopar" not in said for said in found.said)


@pytest.mark.parametrize(
    ("count", "failing"),
    [
        (4, 0),
        (4, 2),
        *(pytest.param(*case, marks=pytest.mark.release) for case in ((2, 0), (2, 1), (4, 1), (4, 3))),
    ],
)
def test_a_killed_rank_is_named_on_every_other(tmp_path, count, failing):
    found = job(tmp_path, count, "kill", failing, 3)
    assert None not in found.codes and found.after < BOUND_S
    assert found.codes[failing] == -9
    for rank in set(range(count)) - {failing}:
        assert found.codes[rank] == 1, "the error of a main thread"
        assert re.search(rf"RunError: rank {failing} \(.*, pid \d+\).* has died", found.said[rank]), (
            found.said[rank]
        )


@pytest.mark.parametrize(
    ("what", "failing"),
    # A stopped rank is ended like one of any other job, and then its pipeline has lost it as one that was killed.
    [("kill", 0), *(pytest.param(*case, marks=pytest.mark.release) for case in (("stop", 1), ("kill", 1)))],
)
def test_a_stage_of_a_pipeline_that_fails_is_named_on_the_other(tmp_path, what, failing):
    found = job(tmp_path, 2, what, failing, 3, "pipeline")
    assert found.codes[failing] == -9 and found.codes[1 - failing] == 1 and found.after < BOUND_S
    said = found.said[1 - failing]
    assert re.search(rf"RunError: rank {failing} \(.*, pid \d+\).* (has died|is stopped)", said), said


@pytest.mark.parametrize(
    ("count", "failing"),
    [(2, 0), *(pytest.param(*case, marks=pytest.mark.release) for case in ((2, 1), (4, 2)))],
)
def test_a_stopped_rank_is_named_and_ended(tmp_path, count, failing):
    found = job(tmp_path, count, "stop", failing, 3)
    assert None not in found.codes and found.after < BOUND_S
    assert found.codes[failing] == -9
    for rank in set(range(count)) - {failing}:
        assert re.search(rf"rank {failing} \(.*(is stopped|hangs)", found.said[rank]), found.said[rank]


def test_a_rank_that_is_stuck_is_named_with_its_line(tmp_path):
    found = job(tmp_path, 3, "hang", 1, 3)
    assert None not in found.codes and found.after < BOUND_S
    assert found.codes[1] == 70
    line = next(
        number
        for number, text in enumerate(Path(faulty.__file__).read_text().splitlines(), 1)
        if "sleep(600)" in text
    )
    for said in found.said:
        assert re.search(rf"rank 1 \(.*\) is stuck at .*faulty\.py:{line} in fails, .* in step 3", said), said


def test_a_process_whose_main_thread_hears_nothing_ends_too(tmp_path):
    found = job(tmp_path, 3, "busy", 1, 3)
    assert found.codes == [70, -9, 70] and found.after < BOUND_S
    for said in (found.said[0], found.said[2]):
        assert re.search(r"autopar: rank 1 \(.*\) has died, .*; this process ends", said), said


def test_a_rank_that_raises_tells_the_others(tmp_path):
    found = job(tmp_path, 3, "raise", 2, 4)
    assert found.codes == [1, 1, 1] and found.after < BOUND_S
    assert "ValueError: a bad batch" in found.said[2] and "RunError" not in found.said[2]
    for said in found.said[:2]:
        assert re.search(r"RunError: rank 2 \(.*\) raised ValueError: a bad batch, in step 4", said), said


def _all_on_loopback(said: str) -> list[bool]:
    """For each rank that said where it listens, whether that is loopback alone."""
    listens = re.findall(r"listens: (.+)", said)
    return [all(address.startswith("0100007F:") for address in text.split()) for text in listens]


def test_nothing_listens_but_on_the_interface_asked_for(tmp_path):
    found = job(tmp_path, 2, "listen", 0, 0)
    assert found.codes == [0, 0], found.said
    assert _all_on_loopback("".join(found.said)) == [True, True]


def test_torchrun_can_be_kept_from_listening():
    launch = ("--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--local-addr=127.0.0.1")
    found = torchrun(
        2, Path(faulty.__file__), "listen", 0, 0, launch=launch, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"
    )
    # The ranks are forks of torchrun, and have its sockets too.
    assert found.returncode == 0 and _all_on_loopback(found.stdout) == [True, True], found


@pytest.mark.parametrize(
    ("what", "failing", "code"),
    # One that is killed is what torchrun restarts below.
    [("stop", 1, -9), *(pytest.param("kill", rank, -9, marks=pytest.mark.release) for rank in (0, 1))],
)
def test_torchrun_ends_with_the_rank_that_failed(what, failing, code):
    found = torchrun(2, Path(faulty.__file__), what, failing, 3)
    # A stopped process would hold up torchrun for 30 seconds after the others have ended.
    assert found.returncode == 1 and time.monotonic() - failed_at(found.stdout) < BOUND_S
    cause = rf"Root Cause.*rank\s+: {failing} .*exitcode\s+: {code} "
    assert re.search(cause, found.stderr, re.DOTALL), found.stderr
    if what != "kill":
        assert re.search(rf"autopar: rank {failing} \(.*is stopped", found.stderr)


STEPS, EVERY, FAILING = 8, 3, 4
"""Steps of a run that resumes, those between its checkpoints, and the one in which a rank fails."""


def _trained(path: Path, *words: object) -> tuple[list[tuple[int, list[tuple[str, str]]]], str]:
    """Of each start of `examples/resume.py`, the step that it begins at, and its steps with their losses; and what
    was said."""
    run = torchrun(
        2, ROOT / "examples" / "resume.py", "--path", path, "--steps", STEPS, "--every", EVERY, *words,
        launch=("--standalone", "--max-restarts", "1"), TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )  # fmt: skip
    assert run.returncode == 0, run
    starts = run.stdout.split("begins at step ")[1:]
    steps = [re.findall(r"step (\d+): loss (\S+)", said) for said in starts]
    return [(int(said.split()[0]), own) for said, own in zip(starts, steps)], run.stderr


@pytest.fixture(scope="module")
def through(tmp_path_factory) -> dict[str, str]:
    """The losses of a run in which no rank fails, by step."""
    ((begin, losses),), _ = _trained(tmp_path_factory.mktemp("through"))
    assert begin == 0 and [int(step) for step, _ in losses] == [*range(STEPS)]
    return dict(losses)


@pytest.mark.parametrize(
    ("what", "rank"),
    # That torchrun ends with a stopped rank is tested above; what it restarts is then the same.
    [("kill", 0), *(pytest.param(*case, marks=pytest.mark.release) for case in (("stop", 1), ("kill", 1)))],
)
def test_torchrun_resumes_from_the_last_checkpoint_and_nothing_is_lost(tmp_path, through, what, rank):
    words = ("--timeout", 2, "--rank", rank, f"--{what}", FAILING)
    ((_, lost), (begin, kept)), said = _trained(tmp_path, *words)
    # Rank 0 may be ended before it has printed the step in which rank 1 fails.
    assert FAILING - rank <= int(lost[-1][0]) <= FAILING
    assert begin == FAILING // EVERY * EVERY
    assert [int(step) for step, _ in kept] == [*range(begin, STEPS)]
    assert all(loss == through[step] for step, loss in lost + kept)
    if what == "stop":
        assert re.search(rf"autopar: rank {rank} \(.*(is stopped|hangs)", said), said
