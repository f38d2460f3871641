"""`KernelSelection`: the kernels of one program, built and chosen in its first call. `KernelExecutor`: runs the program
with them."""

from __future__ import annotations

import copy
import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..capture import autocast as casting
from ..costs.blocks import disturbed, median, timed
from ..errors import RunError
from ..ir.plan import Plan
from ..ir.timeline import Timeline
from ..runtime import thread_state
from ..runtime.executor import Executor
from ..runtime.kernels import LIBRARIES, Refusal, named
from ..runtime.kernels.piece_module import LEAST, shortest
from ..runtime.lanes.host import clone
from ..runtime.replicas import Replicas
from ..runtime.weights import Weights
from ..system.process import return_freed_memory
from ..system.text import stage, wrapped
from .kernel_build import Candidate, Form, Sample, build, perturbed, trying
from .kernel_verdict import PLAIN, Verdict, more, signature

log = logging.getLogger("autopar")

WORTH = 0.05
"""Share of eager's seconds that kernels must save under "auto"."""
ROUNDS, RACE_S, BLOCK_S, WAKE_S = 5, 2.0, 0.02, 0.02
"""Blocks of each contestant, seconds after which one block each suffices, seconds of a block, and the longest wait
before it until the threads of the contestant before it sleep."""
REBUILDS = 3
"""Times that kernels are built again because weights have changed. Then weights are arguments, or eager serves."""
SHOWN = 3
"""Limit on the number of inputs whose shapes are shown."""


class KernelSelection:
    """The kernels that serve the calls of one program, of all sizes that it serves.

    wanted: the name of a library, or "auto" for the fastest.
    due: kernels are to be built before the next call, since there are none yet, or weights have changed.
    any_size: one choice serves calls of all sizes.
    raced: whole calls need not be raced with the plain model: they have been, or there are no kernels yet.
    """

    def __init__(self, plain: Executor, form: Form, pool: Replicas, wanted: str) -> None:
        self.plain, self.pool, self.wanted = plain, pool, wanted
        types = {*form.types.values()}
        able = [name for name, each in LIBRARIES.items() if each.devices is None or each.devices & types]
        self._able = able if wanted == "auto" else [wanted]
        self.any_size = bool(form.symbols) and any(library.any_size for library in self._libraries())
        self.form = form if self.any_size else replace(form, symbols=())
        self.candidate: Candidate | None = None
        self.verdict: Verdict | None = None
        self.due = self.raced = True
        self._left = REBUILDS + 1
        self._changed: Weights | None = None
        """The fingerprint of folded weights in the last call that found them changed."""
        self._examples: Sequence[Any] | None = None
        """Inputs of a call of the program's own sizes: a later call, which builds again, may have others."""
        self._building = threading.Lock()
        folds = not form.changing and any(library.folds for library in self._libraries())
        device = form.plan.costed.machine.device
        # On a CPU, only kernels that fold the weights hold copies of them.
        pool.kernels[self] = {
            name: size for name, size in more(form.plan).items() if folds or device[name].torch_type != "cpu"
        }
        thread_state.reset_after_fork.add(self)

    def _libraries(self) -> Iterator[Any]:
        return filter(None, map(named, self._able))

    @property
    def holds(self) -> bool:
        """True if there are kernels, or may be some, which take memory."""
        return self.due or self.candidate is not None

    @property
    def table(self) -> str:
        """The kernels compared and the sizes that this holds for; "" before there are any."""
        graph = self.form.plan.costed.graph
        if self.verdict is None:
            return ""
        inputs = [graph.value[name] for name in graph.inputs]
        shapes = ", ".join(f"{value.path or value.name} {list(value.shape)}" for value in inputs[:SHOWN])
        shapes += f" and {len(inputs) - SHOWN} more inputs" if len(inputs) > SHOWN else ""
        sizes = f" for all sizes from {LEAST} on, chosen with {shapes}" if self.any_size else f" for {shapes}"
        more = "\nweights have changed; eager serves until a call finds them unchanged" if self.due else ""
        if self.candidate is not None and self.candidate.failure:
            more = "\n" + wrapped(f"eager serves some sizes: {self.candidate.failure}")
        head = wrapped(f"kernels of {graph.name}{sizes if inputs else ''}")
        return f"{head}\n{self.verdict.table()}{more}"

    def begin(self, inputs: Sequence[Any] | None) -> None:
        """Build kernels and choose, unless another thread does so now: its call is served by eager meanwhile. `inputs`:
        those of a call of the program's own sizes.

        Call it without any lock: it takes Dynamo's, then that of captures (`tracing`).
        """
        if thread_state.holds_capture_lock() or not self._building.acquire(blocking=False):
            return
        try:
            inputs = self._examples if inputs is None else [*map(clone, inputs)]
            if self.due and inputs is not None and self._rest():
                with _plainly({*self.form.types.values()}):
                    self._select(inputs)
        finally:
            self.form.held.clear()
            self._building.release()

    def _rest(self) -> bool:
        """Return True if the weights that have changed are as they were in the last call."""
        if self._changed is None or self._changed.unchanged():
            return True
        self._changed.record()
        return False

    def expire(self, candidate: Candidate) -> None:
        """Let eager serve, since weights that a candidate folds have changed."""
        if self.candidate is candidate and candidate.weights is not None:
            self._changed = self.pool.watch(candidate.weights.places)
            self.candidate, self.due = None, True
            log.info("%s: weights have changed, eager serves", candidate.name)

    def lose(self, ratio: float, keep: bool) -> None:
        """Let the plain model win, of whose time a whole call with these kernels takes `ratio`; note it on disk if
        `keep`."""
        assert self.verdict is not None
        lost = f"{ratio:.2f} of the plain model's time, guards included"
        self.verdict.refused[self.verdict.winner] = lost
        self.verdict.plain, self.candidate = True, None
        if keep:
            self.verdict.store(signature(self.form))

    def storable(self, inputs: Sequence[Any]) -> Candidate | None:
        """Return the fastest kernels that can be `Library.load`ed elsewhere, built anew unless they serve; None if
        PyTorch's own are as fast. Guards, which cost nothing there, do not count."""
        verdict = self.verdict
        if self.candidate is not None and self._loads(self.candidate.name):
            return self.candidate
        if verdict is None or (self.candidate is None and verdict.winner == "eager"):
            return None
        limit = (1 - WORTH) * verdict.seconds.get("eager", 0.0)
        names = [name for name in verdict.seconds if self._loads(name) and verdict.seconds[name] <= limit]
        with _plainly({*self.form.types.values()}):
            self.form.hold()
            plain = trying(self.form, self.form.program, self.pool) or self.plain
            names = sorted(names, key=verdict.seconds.__getitem__)[:1]
            built = self._built(names, plain, _samples(plain, inputs), Verdict())
            self.form.held.clear()
        return next(iter(built.values()), None)

    @staticmethod
    def _loads(name: str) -> bool:
        library = named(name)
        return library is not None and library.load is not None

    def _select(self, inputs: Sequence[Any]) -> None:
        if not self._left and not self.form.changing:
            # Later calls would build again and again.
            self.form, self.verdict = replace(self.form, changing=True), None
        self._left -= 1
        self.form.hold()
        plain = trying(self.form, self.form.program, self.pool) or self.plain
        try:
            samples = _samples(plain, inputs)
        except RunError as error:
            # The call itself raises it, or has changed what it reads.
            log.info("no kernels are built for a call that fails: %s", error)
            return
        try:
            candidate, verdict = self._chosen(plain, samples)
        except Refusal as refusal:
            # Not for ever: each attempt takes a while.
            self.due = self._left > -REBUILDS
            log.info("kernels are built later: %s", refusal)
            return
        self.raced = self.wanted != "auto" or self.verdict is not None
        self.verdict, self.candidate, self.due = verdict, candidate and candidate.without_trial(), False
        self.any_size = bool(self.form.symbols) and (candidate is None or candidate.any_size)
        folds = candidate is not None and candidate.weights is not None
        self._examples = inputs if folds and self.any_size else None
        log.info("kernels of %s: %s", self.form.plan.costed.graph.name, verdict)

    def _chosen(self, plain: Executor, samples: Sequence[Sample]) -> tuple[Candidate | None, Verdict]:
        """Return the fastest candidate, None for eager, and the verdict. Raises Refusal if later calls are to try
        again."""
        key = signature(self.form)
        known = self.verdict or (Verdict.load(key) if self.wanted == "auto" else None)
        if known is not None:
            if known.winner == "eager":
                return None, known
            built = self._built([known.winner], plain, samples, Verdict())
            if built:
                return built[known.winner], known
        verdict = Verdict()
        built = self._built(self._able, plain, samples, verdict)
        if self.wanted != "auto":
            verdict.winner = next(iter(built), "eager")
            return built.get(self.wanted), verdict
        if built:
            self._race(plain, built, samples[0][0], verdict)
        best = built.pop(verdict.winner, None)
        # The others hold copies of the weights, some of them in cycles.
        built.clear()
        return_freed_memory()
        return best, verdict

    def _built(
        self, names: Sequence[str], plain: Executor, samples: Sequence[Sample], verdict: Verdict
    ) -> dict[str, Candidate]:
        built: dict[str, Candidate] = {}
        for name in names:
            library = named(name)
            try:
                if library is None:
                    raise Refusal("it is not known")
                start = time.perf_counter()
                with stage(f"compiling kernels with {name}"):
                    built[name] = build(name, library, self.form, self.pool, samples, plain)
                verdict.built[name], verdict.errors[name] = time.perf_counter() - start, built[name].error
            except Exception as problem:
                if isinstance(problem, Refusal) and problem.passing:
                    raise
                verdict.refused[name] = reason(problem)
                log.info("%s is not used: %s", name, verdict.refused[name])
        return built

    def _race(
        self, plain: Executor, built: dict[str, Candidate], inputs: Sequence[Any], verdict: Verdict
    ) -> None:
        """Time all candidates and eager, and note the winner, on disk if nothing has disturbed the race."""
        count = self.form.threads
        turns: dict[str, tuple[Callable[[], Any], int]] = {"eager": (partial(plain, inputs), count)}
        turns |= {name: (partial(each.tried, inputs), count) for name, each in built.items()}
        with stage("timing kernels"):
            blocks = timed(turns, ROUNDS, RACE_S, BLOCK_S, WAKE_S, 1)
        quiet = not any(map(disturbed, blocks.values()))
        # Other work only lengthens blocks.
        typical = median if quiet else lambda timings: min(block.seconds for block in timings)
        verdict.seconds = {name: typical(timings) for name, timings in blocks.items()}
        best = min(built, key=verdict.seconds.__getitem__)
        if verdict.seconds[best] <= (1 - WORTH) * verdict.seconds["eager"]:
            verdict.winner = best
        if quiet:
            verdict.store(signature(self.form))
        else:
            log.info("other work has disturbed the race of kernels, a later process will race again")

    def forked(self) -> None:
        """Build again in a forked child, where the libraries' threads do not exist."""
        self._building = threading.Lock()
        if self.candidate is not None:
            # For ever: its destructor waits for threads that do not exist here, and ends the process with an error. A
            # list of the module would be emptied as the process ends.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.candidate))
            self.candidate, self.due = None, True


class KernelExecutor:
    """Runs a program with the kernels of a `selection`, and by PyTorch's own before there are any, for sizes that they
    do not serve, and when folded weights have changed."""

    def __init__(self, selection: KernelSelection) -> None:
        self.selection, self.plain = selection, selection.plain
        self._sizes: tuple[float, ...] | None = None
        """Sizes of its calls, if they are not those that the program was made for."""

    def resized(self, sizes: tuple[float, ...]) -> KernelExecutor | Executor:
        """Return an executor for calls with other sizes; without kernels if they are compiled for each set of sizes,
        or an axis is too short for them."""
        plain = self.plain.resized(sizes)
        if not self.any_size or shortest(sizes) < LEAST:
            return plain
        other = copy.copy(self)
        other.plain, other._sizes = plain, sizes
        return other

    @property
    def any_size(self) -> bool:
        """True if its kernels serve calls of all sizes, or may do so once they are built."""
        return self.selection.any_size

    @property
    def due(self) -> bool:
        """True if kernels are to be built before the next call (`begin`)."""
        return self.selection.due

    @property
    def raced(self) -> bool:
        """True if whole calls need not be raced with the plain model."""
        return self.selection.raced

    def begin(self, inputs: Sequence[Any]) -> None:
        """Build kernels for such a call and choose, as `KernelSelection.begin` does."""
        self.selection.begin(inputs if self._sizes is None else None)

    @property
    def serving(self) -> str:
        """Name of the library that serves; "eager" if none does, `PLAIN` if the plain model is faster."""
        candidate, verdict = self._candidate(), self.selection.verdict
        if candidate is not None:
            return candidate.name
        return PLAIN if verdict is not None and verdict.plain else "eager"

    def _candidate(self) -> Candidate | None:
        candidate = self.selection.candidate
        return (
            None if candidate is None or (self._sizes is not None and not candidate.any_size) else candidate
        )

    def _executor(self) -> Executor:
        """Return what serves the next call."""
        candidate = self._candidate()
        if candidate is None:
            return self.plain
        if candidate.weights is not None and not candidate.weights.unchanged():
            self.selection.expire(candidate)
            return self.plain
        return candidate.resized(self._sizes)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run one call. Raises RunError if a task fails."""
        return self._executor()(inputs)

    def run(self, inputs: Sequence[Any], record: bool = True) -> tuple[list[Any], Timeline | None]:
        """Run one call; return its outputs and, with `record`, its measured timeline."""
        return self._executor().run(inputs, record) if record else (self(inputs), None)

    def rebind(self, plan: Plan) -> None:
        """Use another plan of the same program from the next call on."""
        self.plain.rebind(plan)

    def close(self) -> None:
        """Stop its threads. A later call starts them again."""
        self.plain.close()
        candidate = self.selection.candidate
        if candidate is not None:
            candidate.executor.close()


def build_kernels(executor: Executor | KernelExecutor, inputs: Sequence[Any]) -> None:
    """Build and choose the kernels of a program for such a call, if that is due (`KernelSelection.begin`)."""
    if executor.due and isinstance(executor, KernelExecutor):
        executor.begin(inputs)


@contextmanager
def _plainly(kinds: set[str]) -> Iterator[None]:
    """Within the block, no autograd, inference mode, autocast or saved-tensor hooks of the caller."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        casting.off(kinds),
        thread_state.no_saved_tensor_hooks(),
    ):
        yield


def _samples(plain: Executor, inputs: Sequence[Any]) -> list[Sample]:
    """Return eager's results for the inputs, and for others like them. Raises RunError if eager fails with these."""
    samples: list[Sample] = [(inputs, [*map(clone, plain(inputs))])]
    # Eager may refuse perturbed inputs: rotated integers may be offsets, which must rise.
    for integers in (True, False):
        with suppress(RunError):
            other = perturbed(inputs, integers)
            samples.append((other, [*map(clone, plain(other))]))
            break
    return samples


def reason(problem: BaseException) -> str:
    """Return an error as one line: its first, or the rest if the first only says where it was raised."""
    lines = [line.strip(" \t-") for line in str(problem).splitlines() if line.strip(" \t-")]
    statements = [line for line in lines if not line.endswith(":")]
    text = (
        " ".join(statements if statements and lines[0].endswith(":") else lines[:1]) or type(problem).__name__
    )
    text = text if isinstance(problem, Refusal) else f"{type(problem).__name__}: {text}"
    return text if len(text) <= 160 else f"{text[:157]}..."
