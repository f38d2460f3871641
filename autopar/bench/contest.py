"""A contest: each rival is built and compared with eager, and the correct ones are timed in turns."""

from __future__ import annotations

import gc
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from warnings import catch_warnings

import torch

from ..costs.blocks import timed
from ..costs.calibrate import threads
from ..errors import AutoparError
from ..pipeline import compare
from ..system.text import bar, brief, seconds
from .rivals import Case, Entrant, Rival
from .row import Outcome, Row

PATIENCE = 0.6
"""Share of the build time in which a rival may become faster."""

STEP_LIMIT = 1e-4
"""Limit on the error of the loss and of the weight changes of a float32 training step, whose sums are long."""
SLACK = 4


def contest(
    title: str,
    case: Case,
    rivals: Sequence[Rival],
    *,
    rounds: int = 9,
    timing_s: float = 20.0,
    build_s: float = 120.0,
) -> Row:
    """Return the outcome of every rival, eager first: its blocks, or the reason why it was not timed.

    Each has `rounds` undisturbed blocks, fewer after `timing_s` seconds, and `build_s` seconds to build and answer.
    Raises AutoparError if eager fails, or its own answers differ from call to call.
    """
    case.model.train(case.train)
    with ExitStack() as stack, torch.set_grad_enabled(case.train), catch_warnings(action="ignore"):
        # Compilers log much that does not concern the user of a contest.
        logger = logging.getLogger("torch")
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
        stack.callback(gc.collect)
        stack.callback(torch.compiler.reset)
        reference = _eager(title, case, rivals[0])

        @cache
        def nudged() -> list[list[torch.Tensor]]:
            return [rivals[0].build(case.nudged(seed)).answers() for seed in range(3)]

        outcomes: dict[str, Outcome] = {}
        turns, serving = {}, {}
        patient = replace(case, patience_s=PATIENCE * build_s)
        for rival in bar(rivals, f"{title}: building"):
            outcome, entrant, answers = _built(rival, patient, build_s)
            if entrant is not None:
                stack.callback(entrant.close)
                error, why = wrong(answers, reference, nudged, case.train)
                finite = error if math.isfinite(error) else None
                outcome = replace(outcome, error=finite, reason=why and f"WRONG: {why}")
                if not why:
                    turns[rival.name], serving[rival.name] = (entrant.call, _threads(rival)), entrant.serving
            outcomes[rival.name] = outcome
        for name, blocks in timed(turns, rounds, timing_s).items():
            outcomes[name] = replace(outcomes[name], blocks=tuple(blocks), serving=serving[name]())
    return Row(title, case.train, tuple(outcomes.values()))


def _eager(title: str, case: Case, eager: Rival) -> list[torch.Tensor]:
    try:
        first, second = (eager.build(case).answers() for _ in range(2))
    except Exception as error:
        raise AutoparError(f"{title} fails as it is: {brief(error)}") from error
    if any(compare.error(a, b) > compare.limit(b) for a, b in zip(first, second)):
        raise AutoparError(
            f"the answers of {title} differ from call to call and cannot be compared; where it draws random numbers, "
            "as dropout does, have the factory switch that off"
        )
    return first


def _built(rival: Rival, case: Case, limit_s: float) -> tuple[Outcome, Entrant | None, list[torch.Tensor]]:
    """Return a rival's entrant and its answers, or the reason why there are none."""
    outcome = Outcome(rival.name, rival.versions(), rival.missing())
    if outcome.reason:
        return outcome, None, []
    began = time.perf_counter()
    try:
        with threads(_threads(rival)), _limited(limit_s):
            entrant = rival.build(case)
            answers = entrant.answers()
    except _LateError:
        reason = f"not built within {seconds(limit_s)}"
    except Exception as error:
        reason = f"failed: {brief(error)}"
    else:
        return replace(outcome, built_s=time.perf_counter() - began), entrant, answers
    return replace(outcome, reason=reason), None, []


def _threads(rival: Rival) -> int:
    return 1 if rival.one_thread else torch.get_num_threads()


class _LateError(BaseException):
    """The time is up. Not an Exception, since compilers catch those and try something else."""


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Raise _LateError in the block after these seconds, if the system and the thread allow it."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: Any) -> None:
        raise _LateError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def wrong(
    found: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    nudged: Callable[[], Sequence[Sequence[torch.Tensor]]],
    train: bool,
) -> tuple[float, str]:
    """Return the largest error of some answers, and a description of the first that is too far from eager's; "" if
    none is.

    An error of at most `SLACK` times eager's own error on the `nudged` case is also allowed, because a
    gradient jumps where the sign of a ReLU or the place of a maximum depends on the last bit.
    """
    if len(found) != len(eager):
        return math.inf, f"{len(found)} tensors, not {len(eager)}"
    errors = [compare.error(a, b) for a, b in zip(found, eager)]
    for index, (a, b) in enumerate(zip(found, eager)):
        allowed = max(compare.limit(b), STEP_LIMIT if train and b.dtype == torch.float32 else 0.0)
        if errors[index] > allowed and b.is_floating_point():
            moved = [compare.error(other[index], b) for other in nudged()]
            allowed = max([allowed, *(SLACK * far for far in moved if math.isfinite(far))])
        if errors[index] > allowed:
            return errors[index], f"answer {index}: {compare.difference(a, b, allowed)}"
    return max(errors, default=0.0), ""
