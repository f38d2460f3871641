"""`TunedExecutor`: runs a plan's eager program at first, and its fastest compiled form once that is known and while
the weights that it folds stay the same (`replicas.Watch`)."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..errors import PlanError
from ..ir.plan import Plan
from ..ir.timeline import Timeline
from . import thread_state as ambient
from . import trial
from .executor import Executor
from .kernels import Refusal
from .replicas import Watch

log = logging.getLogger("autopar")

AFTER = 3
"""Successive calls with the same weights before compilation starts."""
ENDING_S = 10.0
"""Limit on the seconds that a process waits at its exit for what is compiled or timed in the background."""


@dataclass(frozen=True, eq=False)
class Arrangement:
    """One way to run a program: its executor, a `watch` on folded weights, and the same without side effects
    (`trial`)."""

    name: str
    executor: Executor
    watch: Watch | None
    trial: Executor

    @property
    def fresh(self) -> bool:
        """True if its kernels hold the current weights."""
        return self.watch is None or self.watch.unchanged()

    def tried(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Return the result of a call without side effects, weights checked; None if they have changed."""
        return self.trial(inputs) if self.fresh else None


class _Choose(Protocol):
    """Interface of `pipeline.kernel_choice.KernelChoice`, which compiles arrangements and chooses the fastest."""

    wanted: str
    ended: bool

    @property
    def traces(self) -> bool: ...
    def __call__(self, inputs: Sequence[Any], tuned: TunedExecutor, /) -> Arrangement | None: ...
    def stop(self) -> None: ...
    def end(self) -> None: ...
    def refute(self, name: str, ratio: float) -> None: ...
    @property
    def note(self) -> str: ...


class TunedExecutor:
    """Runs `plain`, the eager program, until `choose` has found a faster arrangement of the same plan, and again when
    weights folded by its kernels change.

    The chosen arrangement alternates with eager at first (`trial`), and is dropped if it is slower in these calls;
    this is repeated after a while (`trial.AGAIN`). `choose` works in its own thread after `AFTER` calls, and once more
    after as many calls following a change. Arrangements that it finds serve before it is done. No call waits for a
    compiler; while arrangements are timed, a call waits for at most one block of calls (`turn`).
    """

    def __init__(self, plain: Executor, choose: _Choose) -> None:
        self.plain, self._choose = plain, choose
        self.turn = threading.RLock()
        self.chosen: Arrangement | None = None
        self._stale: Watch | None = None
        """The watch of an arrangement whose weights have changed."""
        self._trial: trial.Trial | None = None
        self._tenure = trial.Tenure()
        self._calls = 0
        self._seen: Sequence[Any] | None = None
        """Inputs of the last call, until there are enough calls to compile."""
        self._done = False
        self._builder: threading.Thread | None = None
        _alive.add(self)
        ambient.reset_after_fork.add(self)

    @property
    def note(self) -> str:
        """The arrangement that serves and the seconds of the others as text; "" before that is known."""
        return self._choose.note

    @property
    def serving(self) -> str:
        """Name of the arrangement that serves; "eager" if none does."""
        chosen = self.chosen
        return chosen.name if chosen is not None else "eager"

    @property
    def settled(self) -> bool:
        """True if kernels are chosen, or found slower than eager, and none is on trial."""
        return self._done and self._builder is None and self._trial is None

    @property
    def holds(self) -> bool:
        """True if there are kernels, or may be some once they are compiled, which take memory."""
        return self.chosen is not None or not self._done or self._builder is not None

    inline = None
    """None: a compiled arrangement must check its weights before each call."""

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run one call. Raises RunError if a task fails."""
        if self._trial is not None:
            return self._in_turn(self._trial, inputs)
        chosen = self.chosen
        if chosen is not None and chosen.fresh:
            return self._served(chosen, inputs)
        with self.turn:
            made = self.plain(inputs)
        self._after(inputs, chosen)
        return made

    def serve(self, arrangement: Arrangement) -> None:
        """Let an arrangement serve while others are compiled and timed."""
        self.chosen = arrangement

    def _served(self, chosen: Arrangement, inputs: Sequence[Any]) -> list[Any]:
        if self._tenure.ends():
            self._trial = trial.Trial()
        if self._builder is None:
            return chosen.executor(inputs)
        with self.turn:
            return chosen.executor(inputs)

    def by_kernels(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Return the result of the chosen kernels; None if there are none, they are on trial, or their weights have
        changed."""
        chosen = self.chosen
        if chosen is None or self._trial is not None or not chosen.fresh:
            return None
        return self._served(chosen, inputs)

    def _in_turn(self, current: trial.Trial, inputs: Sequence[Any]) -> list[Any]:
        """Run a call by kernels or by eager, in turns; after enough calls the faster one stays."""
        self.plain.drain()
        began, chosen, kernels = time.perf_counter(), self.chosen, current.candidate_next
        if chosen is None or not chosen.fresh:
            self._trial = None
            return self(inputs)
        if kernels:
            made = chosen.executor(inputs)
        else:
            with self.turn:
                made = self.plain(inputs)
        self.plain.drain()
        current.note(kernels, began, time.perf_counter())
        if current.over and self._trial is current:
            self._trial = None
            if current.ratio <= 1 - trial.WORTH:
                self._tenure.renew()
            elif self.chosen is chosen:
                self.chosen = None
                self._choose.refute(chosen.name, current.ratio)
                text = "%s: %.2f of eager's time in the caller's own calls, eager serves"
                log.info(text, chosen.name, current.ratio)
        return made

    def run(self, inputs: Sequence[Any], record: bool = True) -> tuple[list[Any], Timeline | None]:
        """Run one call; return its outputs and, with `record`, its measured timeline."""
        chosen = self.chosen
        if chosen is not None and chosen.fresh:
            return chosen.executor.run(inputs, record)
        with self.turn:
            made = self.plain.run(inputs, record)
        self._after(inputs, chosen)
        return made

    def begin(self, inputs: Sequence[Any]) -> None:
        """Compile and choose for inputs like these: in the background, or at once if that traces in this process."""
        if self._done or self._builder is not None:
            return
        self._seen = None
        examples = [item.clone() if isinstance(item, torch.Tensor) else item for item in inputs]
        if self._choose.traces:
            self._build(examples)
            return
        own = weakref.ref(self)

        def build() -> None:
            tuned = own()
            if tuned is not None:
                tuned._build(examples)

        self._builder = threading.Thread(target=build, name="autopar kernels", daemon=True)
        self._builder.start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until compilation for the calls so far is done, at most `seconds`; return at once if there is none."""
        if self._seen is not None:
            self.begin(self._seen)
        builder = self._builder
        if builder is not None:
            builder.join(seconds)

    def current(self) -> bool:
        """Return True if every copy of state that it reads is up to date."""
        return self.plain.current()

    def rebind(self, plan: Plan) -> None:
        """Use another plan of the same program from the next call on."""
        self.plain.rebind(plan)

    def close(self) -> None:
        """Stop the threads of all arrangements, and compilation. A later call starts them again, with the fastest
        arrangement so far."""
        self._choose.stop()
        self.plain.close()
        if self.chosen is not None:
            self.chosen.executor.close()

    def _after(self, inputs: Sequence[Any], old: Arrangement | None) -> None:
        """Count an eager call in place of `old`, whose weights have changed; compile after enough calls without a
        change."""
        if old is not None and self.chosen is old:
            self.chosen = None
            log.info("%s: weights have changed, eager serves", old.name)
            self._stale, self._done, self._calls = old.watch, False, 0
        if self._done or self._builder is not None:
            return
        if self._stale is not None and not self._stale.unchanged():
            self._stale.take()
            self._calls = 0
        self._calls += 1
        self._seen = inputs
        if self._calls >= AFTER:
            self.begin(inputs)

    def _build(self, examples: Sequence[Any]) -> None:
        self._calls, self._done = 0, True
        try:
            # A thread has no CUDA context before its first call of the runtime, of which cuBLAS warns.
            self.plain.drain()
            with torch.no_grad():
                chosen = self._choose(examples, self)
            self._tenure = trial.Tenure()
            self._trial = trial.Trial() if chosen and trial.CALLS and self._choose.wanted == "auto" else None
            self.chosen = chosen
            self._stale = None
        except Refusal:
            # Weights that kernels fold have changed, which is to be tried again, or the process ends.
            self._done = self._choose.ended
        except BaseException as error:
            log.warning("compiling kernels failed, calls run eagerly: %s: %s", type(error).__name__, error)
        self._builder = None

    def forked(self) -> None:
        """Let eager serve in a forked child, which has no threads of the libraries."""
        self.chosen = self._trial = self._builder = None
        self._done = True
        self.turn = threading.RLock()


def wait_for(executors: Iterable[TunedExecutor], seconds: float | None) -> None:
    """Wait for all executors as `TunedExecutor.wait` does, `seconds` in all. Raises PlanError if this is not a time."""
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if seconds is not None and not (number and 0 <= seconds <= threading.TIMEOUT_MAX):
        raise PlanError(
            f"wait({seconds!r}) is not a time; give seconds from 0, or nothing to wait until kernels are ready"
        )
    until = None if seconds is None else time.monotonic() + seconds
    for executor in executors:
        executor.wait(None if until is None else max(0.0, until - time.monotonic()))


_alive: weakref.WeakSet[TunedExecutor] = weakref.WeakSet()


def _at_exit() -> None:
    """End the threads that compile and time: one that is in torch when the interpreter is gone aborts the process."""
    builders = [(tuned, builder) for tuned in list(_alive) if (builder := tuned._builder) is not None]
    for tuned, _ in builders:
        tuned._choose.end()
    until = time.monotonic() + ENDING_S
    for _, builder in builders:
        builder.join(max(0.0, until - time.monotonic()))


atexit.register(_at_exit)
