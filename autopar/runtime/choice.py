"""`Choice`: compiles arrangements of a program in the background and chooses the fastest, which serves as
long as the weights that it folds stay the same (`Weights`)."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from ..capture.torch_private import transformed
from . import thread_state, trial
from .executor import Executor
from .kernels import Refusal
from .lanes.host import clone
from .weights import Weights

log = logging.getLogger("autopar")

AFTER = 3
"""Successive calls with the same weights before compilation starts."""
ENDING_S = 10.0
"""Limit on the seconds that a process waits at its exit for compilation and timing in the background."""


@dataclass(frozen=True, eq=False)
class Arrangement:
    """One way to run a program: its executor, a `watch` on folded weights, an executor without side effects
    (`trial`).

    sized: its kernels are for calls of all sizes. limits: what was wrong with their answers for some sizes.
    """

    name: str
    executor: Executor
    watch: Weights | None
    trial: Executor
    sized: bool = False
    limits: Sequence[str] = ()

    @property
    def open(self) -> bool:
        """True if its kernels serve calls of all sizes that the program serves."""
        return self.sized and not self.limits

    @property
    def fresh(self) -> bool:
        """True if its kernels hold the current weights."""
        return self.watch is None or self.watch.unchanged()

    def tried(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Return the result of a call without side effects, weights checked; None if they have changed."""
        return self.trial(inputs) if self.fresh else None


class _Chooser(Protocol):
    """Interface of `pipeline.kernel_choice`, which compiles arrangements and chooses the fastest."""

    wanted: str
    stopped: bool
    ended: bool

    @property
    def traces(self) -> bool: ...
    @property
    def open(self) -> bool: ...
    @property
    def note(self) -> str: ...
    def __call__(self, inputs: Sequence[Any], to: Choice, /) -> Arrangement | None: ...
    def stop(self) -> None: ...
    def end(self) -> None: ...
    def refute(self, name: str, ratio: float) -> bool: ...


PATIENCE_S = 0.05
"""Seconds without a caller after which `Turn.run` runs a block in its own thread."""
_T = TypeVar("_T")


def apart(call: Callable[[], _T]) -> _T:
    """Return the result of a call in a thread of its own, without autograd. Raises its errors.

    Its operations on several threads leave nothing behind: libgomp keeps idle threads for each thread that called it,
    until that ends. While they all are more than the cores, they sleep at once instead of spinning, and waking
    them for each operation takes up to 0.1 ms.
    """
    found, failed = list[_T](), list[BaseException]()

    def run() -> None:
        try:
            with torch.no_grad():
                found.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="autopar kernels, apart", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


class _Turn:
    """The lock of one program's arrangements, held in calls by eager and in all calls while kernels are timed.

    A thread that enters it first runs the block of timed calls that waits for it, if there is one. In a thread beside
    the caller's (`apart`), kernels that use OpenMP would take longer, those with threads of their own would not.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: Callable[[], None] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            if self._waiting is not None and not transformed():
                self._waiting()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def run(self, block: Callable[[], _T]) -> _T:
        """Run a block of timed calls in the thread of the next caller, or in this one if there is none. Raises its
        errors."""
        done, found, failed = threading.Event(), list[_T](), list[BaseException]()

        def run() -> None:
            self._waiting = None
            try:
                with torch.inference_mode(False), torch.no_grad():
                    found.append(block())
            except BaseException as error:
                failed.append(error)
                if not isinstance(error, Exception):
                    raise
            finally:
                done.set()

        self._waiting = run
        while not done.wait(PATIENCE_S):
            if self._lock.acquire(blocking=False):
                try:
                    if self._waiting is run:
                        apart(run)
                finally:
                    self._lock.release()
        if failed:
            raise failed[0]
        return found[0]


_alive: weakref.WeakSet[Choice] = weakref.WeakSet()


class _User(Protocol):
    """Runs calls by the arrangement that a `Choice` has chosen (`tuned.TunedExecutor`)."""

    def forget(self) -> None:
        """Drop all references to arrangements that no longer serve: their kernels hold copies of weights."""


class Choice:
    """The choice of an arrangement for the calls of one program, of all sizes.

    open: its kernels are to serve calls of all sizes. tried: the arrangement that is to be tried in the caller's calls.
    """

    def __init__(self, plain: Executor, choose: _Chooser) -> None:
        self.plain, self.choose, self.open = plain, choose, choose.open
        self.turn = _Turn()
        self.chosen: Arrangement | None = None
        """The arrangement that serves, perhaps while others are compiled and timed."""
        self.tried: Arrangement | None = None
        self.done = False
        self.builder: threading.Thread | None = None
        self._users: weakref.WeakSet[_User] = weakref.WeakSet()
        self._adding = threading.Lock()
        self._stale: Weights | None = None
        """The watch of an arrangement whose weights have changed."""
        self._calls = 0
        self.proven = 0
        """Number of sets of sizes for which kernels were faster than eager in the caller's calls."""
        self.slower: list[float] = []
        """For each other set of sizes that eager serves because kernels were slower: their time ÷ eager's."""
        self._seen: Sequence[Any] | None = None
        """Inputs of the last call of the program's own sizes, until compilation begins, or again if that was in
        vain. If `open`, they are kept as long as the weights may change, since no later call may have these
        sizes."""
        _alive.add(self)
        thread_state.reset_after_fork.add(self)

    def add(self, user: _User) -> None:
        """Register a user for as long as it exists."""
        with self._adding:
            self._users.add(user)

    def replace(self, chosen: Arrangement | None) -> None:
        """Let another arrangement serve, or eager. Users drop the others now: some may get no more calls."""
        self.chosen = chosen
        if self.tried is not chosen:
            self.tried = None
        self._tell()

    def _tell(self) -> None:
        """Tell all users that the arrangement that serves, or the way that it serves, has changed."""
        with self._adding:
            users = list(self._users)
        for user in users:
            user.forget()

    def refute(self, chosen: Arrangement, ratio: float) -> None:
        """Let eager serve instead of an arrangement that took `ratio` of eager's time, until the next fastest
        is compiled."""
        # Not done, so that nobody takes eager for the last word meanwhile.
        self._calls, self.done = 0, False
        self.replace(None)
        again = self.choose.refute(chosen.name, ratio)
        self.open = again and self.choose.open
        self.done = not again

    def begin(self, inputs: Sequence[Any]) -> None:
        """Compile and choose for such inputs: in the background, or now if that traces in this process."""
        own = weakref.ref(self)

        def build() -> None:
            choice = own()
            if choice is not None:
                choice._build(examples)

        # Two threads may both make the call that starts compilation.
        with self._adding:
            if self.done or self.builder is not None:
                return
            examples = [*map(clone, inputs)]
            self._seen = examples if self.open else None
            self.done = self.choose.traces
            if not self.done:
                self.choose.stopped = False
                self.builder = threading.Thread(target=build, name="autopar kernels", daemon=True)
                self.builder.start()
                return
        self._build(examples)

    def wait(self, seconds: float | None) -> bool:
        """Wait as `TunedExecutor.wait` does."""
        until = None if seconds is None else time.monotonic() + seconds
        # The second time if weights changed during the first, after which nothing may have been chosen.
        for _ in range(2):
            if self._seen is not None:
                self.begin(self._seen)
            builder = self.builder
            while builder is not None and builder.is_alive() and (until is None or time.monotonic() < until):
                with self.turn:
                    pass
                builder.join(PATIENCE_S / 10)
            if builder is not None and builder.is_alive():
                return False
        return True

    def close(self) -> None:
        """Stop all threads, and compilation."""
        if self.builder is not None:
            self.choose.stop()
        self.plain.close()
        if self.chosen is not None:
            self.chosen.executor.close()

    def after(self, inputs: Sequence[Any] | None, old: Arrangement | None) -> None:
        """Count an eager call; compile after enough without a change. `inputs`: those of a call of the
        program's own sizes. `old`: the arrangement that did not serve it because weights have changed."""
        if old is not None and self.chosen is old:
            self._stale, self.done, self._calls = old.watch, False, 0
            self.replace(None)
            log.info("%s: weights have changed, eager serves", old.name)
        if self.done or self.builder is not None:
            return
        if self._stale is not None and not self._stale.unchanged():
            self._stale.record()
            self._calls = 0
        self._calls += 1
        if inputs is not None:
            self._seen = inputs
        if self._calls >= AFTER and self._seen is not None:
            self.begin(self._seen)

    def _build(self, examples: Sequence[Any]) -> None:
        self._calls, self.done = 0, True
        # From now on, calls take `turn`.
        self._tell()
        try:
            # cuBLAS warns if the thread has no CUDA context, which its first call of the runtime creates.
            self.plain.drain()
            with torch.no_grad():
                chosen = self.choose(examples, self)
            tried = chosen is not None and trial.CALLS and self.choose.wanted == "auto"
            self.tried = chosen if tried else None
            self.open = self.open and chosen is not None and chosen.sized
            self.proven, self.slower = 0, []
            self.replace(chosen)
            self._stale = None
            if chosen is None or chosen.watch is None:
                # No change of the weights will require other kernels.
                self._seen = None
        except Refusal:
            # Either folded weights have changed, so later calls try again, or the process is ending.
            self.done = self.choose.ended
            self._seen = None if self.done else examples
        except BaseException as error:
            log.warning("compiling kernels failed, calls run eagerly: %s: %s", type(error).__name__, error)
        self.builder = None

    def forked(self) -> None:
        """Let eager serve in a forked child, where the libraries' threads do not exist."""
        self.chosen = self.tried = self.builder = None
        self.done = True
        self.turn, self._adding = _Turn(), threading.Lock()
        self._tell()


def _at_exit() -> None:
    """End threads that compile and time: one still in torch after the interpreter ends aborts the process."""
    builders = [(choice, builder) for choice in list(_alive) if (builder := choice.builder) is not None]
    for choice, _ in builders:
        choice.choose.end()
    until = time.monotonic() + ENDING_S
    for _, builder in builders:
        builder.join(max(0.0, until - time.monotonic()))


atexit.register(_at_exit)
