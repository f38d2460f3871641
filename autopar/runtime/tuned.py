"""`TunedExecutor`: runs a plan's eager program at first, and its fastest compiled form once that is known
(`choice`)."""

from __future__ import annotations

import copy
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from ..errors import PlanError
from ..ir.plan import Plan
from ..ir.timeline import Timeline
from . import trial
from .choice import Arrangement, Choice
from .executor import Executor
from .kernels.stack import LEAST, shortest

log = logging.getLogger("autopar")

PROVEN = 4
"""Once kernels were faster than eager for this number of sets of sizes, they are not tried for others."""


_Ready: TypeAlias = tuple[Callable[[], bool], Callable[[], bool], Callable[[Sequence[Any]], list[Any]]]
"""The check that folded weights are unchanged; whether a trial is due; the call."""


def _fits(chosen: Arrangement) -> bool:
    """Return True if kernels for calls of all sizes hold the current weights, and were right for all sizes so far."""
    return chosen.open and chosen.fresh


class _Needed:
    """A token that the executors of one choice share: once it is collected, none of them is left."""


def _unneeded(own: weakref.ref[Choice]) -> None:
    choice = own()
    # Kernels of a model that is gone would only delay those of others.
    if choice is not None and choice.builder is not None:
        choice.choose.end()


class TunedExecutor:
    """Runs the eager program until a `choice` has found a faster arrangement of the same plan, and again when weights
    folded by its kernels change.

    The chosen arrangement alternates with eager at first (`trial`), and is dropped if it is slower in these
    calls; this is repeated after a while (`trial.AGAIN`). The choice is made in its own thread after `AFTER`
    calls, and once more after as many calls following a change. Arrangements that it finds serve before it is
    done. Calls wait for a compiler only if it traces in this process, and while arrangements are timed, for
    at most one block (`turn`).

    The executors for other sizes that `resized` returns share the choice.
    """

    inline = None
    """None: a compiled arrangement must check its weights before each call."""

    def __init__(self, choice: Choice) -> None:
        self.plain, self._choice = choice.plain, choice
        self._sizes: tuple[float, ...] | None = None
        """Sizes of its calls, if they are not those that the program was made for."""
        self._needed = _Needed()
        """Shared with the executors that `resized` makes of this one."""
        weakref.finalize(self._needed, _unneeded, weakref.ref(choice)).atexit = False
        self._begin()

    def _begin(self) -> None:
        self._latest: tuple[Arrangement, Executor] | None = None
        """The arrangement that it used last, and its executor: as a pair, so that threads see both change."""
        self._judged: Arrangement | None = None
        """The arrangement that was on trial."""
        self._refuted: Arrangement | None = None
        """An arrangement that was slower than eager."""
        self._trial = trial.Trial()
        self._ready: _Ready | None = None
        """For calls by kernels while nothing else is to be done in them; None: that is to be determined."""
        self._choice.add(self)

    def forget(self) -> None:
        """Drop all references to arrangements that no longer serve: their kernels hold copies of weights."""
        self._ready = None
        chosen = self._choice.chosen
        if self._latest is not None and self._latest[0] is not chosen:
            self._latest, self._trial = None, trial.Trial()
        if self._judged is not chosen:
            self._judged = None
        if self._refuted is not chosen:
            self._refuted = None

    def resized(self, sizes: tuple[float, ...]) -> TunedExecutor | Executor:
        """Return an executor for calls with other sizes; without kernels if they are compiled for each set of sizes,
        or an axis is too short for them."""
        plain = self.plain.resized(sizes)
        if not self.open or shortest(sizes) < LEAST:
            return plain
        made = copy.copy(self)
        made.plain, made._sizes = plain, sizes
        made._begin()
        return made

    @property
    def open(self) -> bool:
        """True if its kernels serve calls of all sizes, or may do so once they are compiled."""
        choice, chosen = self._choice, self._choice.chosen
        return choice.open and (chosen is None or chosen.open)

    @property
    def chosen(self) -> Arrangement | None:
        """The arrangement that serves; None for eager."""
        chosen = self._choice.chosen
        if chosen is self._refuted or (self._sizes is not None and chosen is not None and not chosen.open):
            return None
        return chosen

    @property
    def note(self) -> str:
        """The arrangement that serves, the seconds of the others, and the sizes that this is true for, as text; ""
        before that is known."""
        note, slower, chosen = self._choice.choose.note, self._choice.slower, self._choice.chosen
        if chosen is not None and chosen.limits:
            note += f"; of other sizes: {chosen.limits[0]}"
        if note and slower:
            note += (
                f"; eager serves {len(slower)} other sets of sizes, for which kernels took up to "
                f"{max(slower):.2f} of its time in the caller's own calls"
            )
        return note

    @property
    def serving(self) -> str:
        """Name of the arrangement that serves; "eager" if none does."""
        chosen = self.chosen
        return chosen.name if chosen is not None else "eager"

    @property
    def settled(self) -> bool:
        """True if kernels are chosen, or found slower than eager, and none is on trial."""
        if not self._choice.done or self._choice.builder is not None:
            return False
        # If sizes vary, no call may have these again, and only such a call would begin a trial.
        return not (self._trial.on if self.open else self._on_trial(self.chosen))

    @property
    def holds(self) -> bool:
        """True if there are kernels, or may be some once they are compiled, which take memory."""
        choice = self._choice
        return choice.chosen is not None or not choice.done or choice.builder is not None

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run one call. Raises RunError if a task fails."""
        chosen = self.chosen
        if chosen is not None and chosen.fresh:
            if self._on_trial(chosen):
                return self._in_turn(chosen, inputs)
            return self._served(chosen, inputs)
        with self._choice.turn:
            made = self.plain(inputs)
        self._choice.after(inputs if self._sizes is None else None, chosen)
        return made

    def _of(self, chosen: Arrangement) -> Executor:
        """Return the executor of an arrangement for its sizes."""
        latest = self._latest
        if latest is None or latest[0] is not chosen:
            executor = chosen.executor
            latest = chosen, executor if self._sizes is None else executor.resized(self._sizes)
            self._latest, self._trial = latest, trial.Trial()
        return latest[1]

    def _on_trial(self, chosen: Arrangement | None) -> bool:
        """Return True if an arrangement is to prove itself in the caller's calls."""
        choice = self._choice
        if chosen is None or choice.builder is not None:
            return False
        self._of(chosen)
        if choice.tried is chosen and self._judged is not chosen:
            self._judged = chosen
            if self._sizes is None or choice.proven < PROVEN:
                self._trial.begin()
        return self._trial.on

    def _served(self, chosen: Arrangement, inputs: Sequence[Any]) -> list[Any]:
        executor = self._of(chosen)
        if self._trial.due():
            self._begin_trial()
        if self._choice.builder is None:
            return executor(inputs)
        with self._choice.turn:
            return executor(inputs)

    def _begin_trial(self) -> None:
        # Another thread may have begun it, and be about to end it.
        if not self._trial.on:
            self._trial.begin()

    def by_kernels(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Return the result of the chosen kernels; None if there are none, they are on trial, or their weights have
        changed. The inputs are on the devices where those of earlier calls were."""
        ready = self._ready
        if ready is None:
            return self._readied(inputs)
        fresh, due, call = ready
        if not fresh():
            self._ready = None
            return None
        if due():
            self._ready = None
            self._begin_trial()
        return call(inputs)

    def _readied(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Run a call as `by_kernels` does, and note what suffices for the next ones, if nothing is to change."""
        chosen = self.chosen
        # Kernels that take weights as arguments do not check how these are read, as Dynamo's guards do.
        if chosen is None or chosen.watch is None or self._on_trial(chosen) or not chosen.fresh:
            return None
        made, executor, watch = self._served(chosen, inputs), self._of(chosen), chosen.watch
        if self._choice.builder is None and not self._trial.on:
            inline, call = executor.inline, executor.__call__
            if inline is not None and inline.fits(inputs):
                call = inline.serve
            fresh = watch.unchanged
            if self._sizes is not None:
                fresh = partial(_fits, chosen)
            self._ready = fresh, self._trial.due, call
        # Another thread may have changed the choice, which drops what is noted of others.
        if self.chosen is not chosen or self._choice.builder is not None:
            self.forget()
        return made

    def _in_turn(self, chosen: Arrangement, inputs: Sequence[Any]) -> list[Any]:
        """Run a call by kernels or by eager, in turns; after enough calls the faster one stays."""
        current = self._trial
        self.plain.drain()
        began, kernels = time.perf_counter(), current.candidate_next
        if kernels:
            made = self._of(chosen)(inputs)
        else:
            with self._choice.turn:
                made = self.plain(inputs)
        self.plain.drain()
        current.note(kernels, began, time.perf_counter())
        if current.on and current.over and self._trial is current:
            stays = current.ratio <= 1 - trial.WORTH
            current.end(again=stays)
            if stays:
                self._choice.proven += 1
            elif self.chosen is chosen:
                self._refute(chosen, current.ratio)
        return made

    def _refute(self, chosen: Arrangement, ratio: float) -> None:
        """Let eager serve this executor's calls instead of an arrangement that took `ratio` of eager's time;
        if its kernels were compiled for these sizes, all other calls too."""
        self._refuted, self._ready = chosen, None
        if self._sizes is None:
            self._choice.refute(chosen, ratio)
        else:
            self._choice.slower.append(ratio)
        log.info("%s: %.2f of eager's time in the caller's own calls, eager serves", chosen.name, ratio)

    def run(self, inputs: Sequence[Any], record: bool = True) -> tuple[list[Any], Timeline | None]:
        """Run one call; return its outputs and, with `record`, its measured timeline."""
        chosen = self.chosen
        if chosen is not None and chosen.fresh:
            return self._of(chosen).run(inputs, record)
        with self._choice.turn:
            made = self.plain.run(inputs, record)
        self._choice.after(inputs if self._sizes is None else None, chosen)
        return made

    def begin(self, inputs: Sequence[Any]) -> None:
        """Compile and choose for such inputs: in the background, or now if that traces in this process."""
        self._choice.begin(inputs)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until compilation for the calls so far is done, or there is none; return False if it takes more than
        `seconds`."""
        return self._choice.wait(seconds)

    def rebind(self, plan: Plan) -> None:
        """Use another plan of the same program from the next call on."""
        self.plain.rebind(plan)

    def close(self) -> None:
        """Stop the threads of all arrangements, and compilation. A later call starts them again, with the fastest
        arrangement so far."""
        self._choice.close()


def wait_for(executors: Iterable[TunedExecutor], seconds: float | None) -> bool:
    """Wait for all executors as `TunedExecutor.wait` does, `seconds` in all. Raises PlanError if this is not a time."""
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if seconds is not None and not (number and 0 <= seconds <= threading.TIMEOUT_MAX):
        raise PlanError(
            f"wait({seconds!r}) is not a time; give seconds from 0, or nothing to wait until kernels are ready"
        )
    until = None if seconds is None else time.monotonic() + seconds
    # All of them: waiting also begins what a change of weights requires.
    done = [
        executor.wait(None if until is None else max(0.0, until - time.monotonic())) for executor in executors
    ]
    return all(done)
