"""A contest: each rival is built and compared with eager, and the correct ones are timed in turns. Its results: an
outcome for each rival as a table and as JSON; several contests as a summary."""

from __future__ import annotations

import gc
import logging
import math
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any
from warnings import catch_warnings

import numpy
import torch

from ..costs.blocks import Block, counted, disturbed, median, timed
from ..costs.calibrate import threads
from ..errors import AutoparError
from ..session import compare
from ..system.text import brief, seconds, stage, table
from .rivals import EAGER, Case, Entrant, Rival

STEP_LIMIT = 1e-4
"""Limit on the error of the loss and of the weight changes of a float32 training step, whose sums are long."""
SLACK = 4
"""Times eager's own error on a nudged case that a rival's error may be."""


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

        outcomes: dict[str, _Outcome] = {}
        turns, serving = {}, {}
        for rival in rivals:
            with stage(f"{title}: building {rival.name}"):
                outcome, entrant, answers = _built(rival, case, build_s)
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


def _built(rival: Rival, case: Case, limit_s: float) -> tuple[_Outcome, Entrant | None, list[torch.Tensor]]:
    """Return a rival's entrant and its answers, or the reason why there are none."""
    outcome = _Outcome(rival.name, rival.versions(), rival.missing())
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
    answers: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    nudged: Callable[[], Sequence[Sequence[torch.Tensor]]],
    train: bool,
) -> tuple[float, str]:
    """Return the largest error of some answers, and a description of the first that is too far from eager's; "" if
    none is.

    An error of at most `SLACK` times eager's own error on the `nudged` case is also allowed, because a
    gradient jumps where the sign of a ReLU or the place of a maximum depends on the last bit.
    """
    if len(answers) != len(eager):
        return math.inf, f"{len(answers)} tensors, not {len(eager)}"
    errors = [compare.error(a, b) for a, b in zip(answers, eager)]
    for index, (a, b) in enumerate(zip(answers, eager)):
        allowed = max(compare.limit(b), STEP_LIMIT if train and b.dtype == torch.float32 else 0.0)
        if errors[index] > allowed and b.is_floating_point():
            nudges = [compare.error(other[index], b) for other in nudged()]
            allowed = max([allowed, *(SLACK * nudge for nudge in nudges if math.isfinite(nudge))])
        if errors[index] > allowed:
            return errors[index], f"answer {index}: {compare.difference(a, b, allowed)}"
    return max(errors, default=0.0), ""


@dataclass(frozen=True)
class _Outcome:
    """One rival's blocks, or the `reason` why it has none.

    built_s: seconds to build and answer the first time.
    serving: what computed its calls, if it chooses between several.
    """

    name: str
    versions: dict[str, str]
    reason: str = ""
    built_s: float | None = None
    error: float | None = None
    blocks: tuple[Block, ...] = ()
    serving: str = ""

    @property
    def median(self) -> float:
        """Median seconds of a call; NaN without blocks."""
        return median(self.blocks) if self.blocks else math.nan

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile of the seconds of a call; only with blocks."""
        low, high = numpy.quantile([block.seconds for block in counted(self.blocks)], (0.25, 0.75))
        return float(low), float(high)

    def remark(self) -> str:
        """Return the reason why there is no time, or why it is unreliable, and what computed the calls."""
        if not self.blocks:
            return self.reason
        doubt = "DISTURBED by other work" if disturbed(self.blocks) else ""
        if any(block.disturbed is None for block in self.blocks):
            doubt = "perhaps disturbed: this system does not tell"
        return "; ".join(filter(None, (doubt, self.serving)))


@dataclass(frozen=True)
class Row:
    """A contest: its title, and its outcomes, eager's first."""

    title: str
    train: bool
    outcomes: tuple[_Outcome, ...]

    def ratio(self, name: str) -> float:
        """Return a rival's seconds ÷ eager's; NaN if it has none."""
        medians = {outcome.name: outcome.median for outcome in self.outcomes}
        return medians.get(name, math.nan) / self.outcomes[0].median

    def best(self) -> _Outcome:
        """Return the fastest outcome that is not autopar's; eager's if none was timed."""
        others = [one for one in self.outcomes if one.blocks and not one.name.startswith("autopar")]
        return min(others, key=lambda one: one.median, default=self.outcomes[0])

    def __str__(self) -> str:
        """Return the table."""
        rows = [("", "a step" if self.train else "a call", f"÷ {EAGER}", "quartiles", "build", "error", "")]
        for one in self.outcomes:
            figures = ("-", "-", "-")
            if one.blocks:
                quartiles = " to ".join(map(seconds, one.quartiles))
                figures = (seconds(one.median), f"{self.ratio(one.name):.3f}", quartiles)
            built = "-" if one.built_s is None else f"{one.built_s:.1f} s"
            error = "-" if one.error is None else f"{one.error:.1e}"
            rows.append((one.name, *figures, built, error, one.remark()))
        return f"{self.title}\n\n{table(rows, right=range(1, 6), widest=130)}"

    def data(self) -> dict[str, Any]:
        """Return the row as plain data, with its medians and ratios."""
        outcomes = []
        for one in self.outcomes:
            outcomes.append(asdict(one) | {"remark": one.remark()})
            if one.blocks:
                times = {"median_s": one.median, "quartiles_s": one.quartiles, "ratio": self.ratio(one.name)}
                outcomes[-1] |= times
        return {"title": self.title, "train": self.train, "outcomes": outcomes}


def read(data: dict[str, Any]) -> Row:
    """Return the row of data from `Row.data`."""
    outcomes = (
        _Outcome(one["name"], one["versions"], one["reason"], one["built_s"], one["error"],
                tuple(Block(**block) for block in one["blocks"]), one.get("serving", ""))
        for one in data["outcomes"]
    )  # fmt: skip
    return Row(data["title"], data["train"], tuple(outcomes))


def summary(rows: Sequence[Row]) -> str:
    """Return for each row the fastest rival and autopar's entries relative to it; the worst of these, and the
    geometric mean over eager."""
    entered = dict.fromkeys(one.name for row in rows for one in row.outcomes)
    names = [name for name in entered if name.startswith("autopar")]
    heads = [f"{name} ÷ {over}" for name in names for over in (EAGER, "best")]
    lines: list[tuple[str, ...]] = [("", "best rival", f"÷ {EAGER}", *heads)]
    columns: list[list[float]] = [[] for _ in lines[0][2:]]
    for row in rows:
        best = row.ratio(row.best().name)
        ratios = [best, *(ratio for name in names for ratio in (row.ratio(name), row.ratio(name) / best))]
        lines.append((row.title, row.best().name, *map(_figure, ratios)))
        for column, ratio in zip(columns, ratios):
            column += [] if math.isnan(ratio) else [ratio]
    largest = [_figure(max(column, default=math.nan)) for column in columns]
    means = [_figure(statistics.geometric_mean(column) if column else math.nan) for column in columns]
    lines.append(("largest", "", "", *largest[1:]))
    # A mean over eager is given for the best rival and for each of autopar's entries.
    lines.append(("geometric mean", "", means[0], *(text for mean in means[1::2] for text in (mean, ""))))
    return table(lines, right=range(2, 3 + 2 * len(names)))


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
