"""Killed and stopped ranks: the others end with an error within the timeout of their process group; under torchrun
the job starts again and resumes from the last complete checkpoint."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import faulty
import pytest
from helpers.forks import served
from helpers.ranks import free_port
from helpers.torchrun import torchrun

ROOT = Path(__file__).parents[2]
BOUND_S = faulty.TIMEOUT_S + 20
"""Seconds after a fault in which the other ranks end: the timeout, and what a machine under load may take. The default
timeout of gloo is half an hour."""

pytestmark = pytest.mark.slow


@dataclass
class Ended:
    """A job of which one rank has failed: exit codes of the others (None: one had to be killed), what was printed, by
    rank, and the seconds that the others took after the fault."""

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


def job(folder: Path, count: int, what: str, failing: int, *words) -> Ended:
    """A job without a launcher, as the ranks on other hosts see it: nothing ends them but what they know themselves."""
    return served(_job, folder, count, failing, (what, failing, *words))


def _job(folder: Path, count: int, failing: int, words: tuple) -> Ended:
    port, context = free_port(), multiprocessing.get_context("fork")
    started = [
        context.Process(target=_forked, args=(rank, count, port, str(folder), words)) for rank in range(count)
    ]
    for process in started:
        process.start()
    others = [process for rank, process in enumerate(started) if rank != failing]
    until = time.monotonic() + 60
    for process in others:
        process.join(max(0.0, until - time.monotonic()))
    end, codes = time.monotonic(), [process.exitcode for process in others]
    for process in started:
        process.kill()
        process.join()
    said = [(folder / str(rank)).read_text() for rank in range(count)]
    return Ended(codes, said, end - failed_at("".join(said)))


def failed_at(said: str) -> float:
    """The second at which a rank has failed, by what it printed."""
    found = re.search(r"fails at ([\d.]+)", said)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize(
    ("what", "failing", "kind"),
    [
        ("stop", 0, "pipeline"),
        *(
            pytest.param(*case, marks=pytest.mark.release)
            for case in (("kill", 0, "sums"), ("stop", 1, "sums"), ("kill", 1, "pipeline"))
        ),
    ],
)
def test_the_other_ranks_end_within_the_timeout(tmp_path, what, failing, kind):
    found = job(tmp_path, 3 if kind == "sums" else 2, what, failing, 3, kind)
    assert all(code == 1 for code in found.codes) and found.after < BOUND_S, found
    for rank, said in enumerate(found.said):
        assert "is done" not in said and (rank == failing or "RuntimeError" in said), said


STEPS, EVERY, FAILING = 8, 3, 4
"""Steps of a run that resumes, those between its checkpoints, and the one in which a rank fails."""


def _trained(path: Path, *words: object) -> list[tuple[int, list[tuple[str, str]]]]:
    """Of each start of `examples/resume.py`, the step that it begins at, and its steps with their losses."""
    run = torchrun(
        2, ROOT / "examples" / "resume.py", "--path", path, "--steps", STEPS, "--every", EVERY, *words,
        launch=("--standalone", "--max-restarts", "1"), TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )  # fmt: skip
    assert run.returncode == 0, run
    starts = run.stdout.split("begins at step ")[1:]
    steps = [re.findall(r"step (\d+): loss (\S+)", said) for said in starts]
    return [(int(said.split()[0]), own) for said, own in zip(starts, steps)]


@pytest.fixture(scope="module")
def through(tmp_path_factory) -> dict[str, str]:
    """The losses of a run in which no rank fails, by step."""
    ((begin, losses),) = _trained(tmp_path_factory.mktemp("through"))
    assert begin == 0 and [int(step) for step, _ in losses] == [*range(STEPS)]
    return dict(losses)


@pytest.mark.parametrize(
    ("what", "rank"),
    # torchrun waits 30 seconds for a stopped process.
    [("kill", 0), *(pytest.param(*case, marks=pytest.mark.release) for case in (("stop", 1), ("kill", 1)))],
)
def test_torchrun_resumes_from_the_last_checkpoint_and_nothing_is_lost(tmp_path, through, what, rank):
    words = ("--timeout", 5, "--rank", rank, f"--{what}", FAILING)
    (_, lost), (begin, kept) = _trained(tmp_path, *words)
    # Rank 0 may be ended before it has printed the step in which rank 1 fails.
    assert FAILING - rank <= int(lost[-1][0]) <= FAILING
    assert begin == FAILING // EVERY * EVERY
    assert [int(step) for step, _ in kept] == [*range(begin, STEPS)]
    assert all(loss == through[step] for step, loss in lost + kept)
