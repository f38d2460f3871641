"""Choice of the fastest compiled form of a program on this machine. `kernel_verdict` says when there is none."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ..costs.blocks import Block, median, timed
from ..errors import AutoparError, RunError
from ..runtime.choice import Arrangement, Choice, apart
from ..runtime.executor import Executor
from ..runtime.kernels import STACKS, Refusal, named
from ..runtime.kernels.stack import LEAST
from ..runtime.kernels.worker import CompilerProcess, reason
from ..runtime.lanes.host import clone
from ..runtime.replicas import Replicas
from ..runtime.tuned import TunedExecutor
from ..runtime.weights import Weights
from ..system.text import ticking
from .kernel_build import Form, Sample, arranged, perturbed, trying
from .kernel_verdict import Verdict, more, refused, signature

log = logging.getLogger("autopar")

_T = TypeVar("_T")

RACES = 2
"""Processes in which eager must win before later ones stop racing: other work may have slowed a race."""
BUILD_S = 60.0
"""CPU seconds of compilation after which no further one is started."""
ROUNDS, RACE_S, BLOCK_S = 5, 8.0, 0.04
"""Undisturbed blocks of each contestant, seconds after which fewer suffice, seconds of a block."""
SHOWN = 3
"""Limit on the number of inputs whose shapes are shown."""
FIRST = 3
"""Rounds of the race between stacks. The fastest is then tried with other numbers of threads and lanes."""
FINALISTS = 2
"""Stacks that reach the final: in few rounds, other work may reverse the order of the two fastest."""
WORTH = 0.03
"""Share of eager's seconds that a compiled form must save, and of one lane's seconds that several lanes must save."""


_one = threading.Lock()
"""Lock held while kernels are compiled and timed: two at once would disturb each other."""


def tunable(
    executor: Executor, wanted: str, form: Form, pool: Replicas, on_lanes: Callable[[], Form] | None
) -> tuple[Executor | TunedExecutor, tuple[str, ...]]:
    """Return an executor that uses kernels as soon as there are any. If none can be compiled, return the
    executor itself and the reason."""
    if why := refused(form, pool):
        log.info("kernels of %s are eager's: %s", form.captured.graph.name, why)
        return executor, (why,)
    choice = _KernelChoice(wanted, form, pool, on_lanes)
    tuned = TunedExecutor(Choice(executor, choice))
    folds = not form.changing and any(stack.frozen for stack in choice.stacks)
    device = form.plan.costed.machine.device
    # On a CPU, only kernels that fold the weights hold copies of them.
    pool.kernels[tuned] = {
        name: size for name, size in more(form.plan).items() if folds or device[name].torch_type != "cpu"
    }
    return tuned, ()


class _KernelChoice:
    """The choice for one program, made when called.

    `wanted`: name of a stack, or "auto" for the fastest. `on_lanes`: plans the same graph on as many lanes as
    there are threads, with one thread each; None if the plan already has such lanes.
    """

    def __init__(
        self, wanted: str, form: Form, pool: Replicas, on_lanes: Callable[[], Form] | None = None
    ) -> None:
        self.wanted, self.pool, self.on_lanes = wanted, pool, on_lanes
        types = {*form.types.values()}
        able = [stack for stack in STACKS if stack.devices is None or stack.devices & types]
        self.stacks = able if wanted == "auto" else [*filter(None, [named(wanted)])]
        """The stacks to race: the one that was asked for, or all that compile for a device of the plan."""
        self.form = form if any(stack.open for stack in self.stacks) else replace(form, symbols=())
        self.key = signature(self.form)
        self.verdict: Verdict | None = None
        self.refuted: dict[str, str] = {}
        """Arrangements that must not be compiled again, each with the reason."""
        self._race: _Race | None = None
        self._open = False
        """True if the kernels that won serve calls of all sizes."""
        self.stopped = self.ended = False
        self._lost = 0
        """Number of earlier processes in which eager won."""

    @property
    def traces(self) -> bool:
        """True if it traces in this process; the caller must then wait for it."""
        return any(stack.traces for stack in self.stacks)

    @property
    def open(self) -> bool:
        """True if kernels for all sizes are to be compiled."""
        return bool(self.form.symbols)

    @property
    def note(self) -> str:
        """The verdict and the sizes that it holds for; "" before there is one."""
        graph = self.form.plan.costed.graph
        if self.verdict is None:
            return ""
        inputs = [graph.value[name] for name in graph.inputs]
        shapes = ", ".join(f"{value.path or value.name} {list(value.shape)}" for value in inputs[:SHOWN])
        shapes += f" and {len(inputs) - SHOWN} more inputs" if len(inputs) > SHOWN else ""
        sizes = f"; for all sizes from {LEAST} on, chosen with {shapes}" if self._open else f"; for {shapes}"
        return f"{graph.name}: {self.verdict}{sizes if inputs else ''}"

    def refute(self, name: str, ratio: float) -> bool:
        """Let the next fastest win, also in other processes, after an arrangement took `ratio` of eager's
        time in the caller's calls. Return False if the next fastest is eager."""
        assert self.verdict is not None
        self.refuted[name] = f"{ratio:.2f} of eager's time in the caller's own calls"
        self.verdict.refuse(name, self.refuted[name], 1 - WORTH)
        self._store(self.verdict)
        return self.verdict.winner != "eager"

    def stop(self) -> None:
        """Stop compiling, or do not begin if the thread that would do it waits for others."""
        self.stopped = True
        if self._race is not None:
            self._race.stop()

    def end(self) -> None:
        """Stop compiling and timing, by raising Refusal."""
        self.ended = True
        self.stop()

    def __call__(self, inputs: Sequence[Any], to: Choice) -> Arrangement | None:
        """Return the fastest arrangement on these inputs; None for the eager program.

        An arrangement that is faster than the previous one serves at once. Raises Refusal if weights change
        meanwhile, eager now fails with these inputs, or the process ends.
        """
        # If this choice traces, the caller waits for it, and should not also wait for other choices.
        with nullcontext() if self.traces else _one:
            if self.ended:
                raise Refusal("the process ends")
            try:
                found = self._chosen(inputs, to)
                self._open = found is not None and found.open
                updates = self.form.plan.costed.graph.updates
                # The executor of a trial holds copies of the state that calls change; drop it.
                return replace(found, trial=found.executor) if found and updates else found
            finally:
                self._race = None
                self.form.held.clear()

    def _chosen(self, inputs: Sequence[Any], to: Choice) -> Arrangement | None:
        form = self.form
        # Only steady state is watched: kernels take state that calls change as an argument.
        steady = filter(form.steady, form.plan.costed.graph.state)
        watch = self.pool.watch([form.captured.state[name] for name in steady])
        with to.turn:
            form.hold()
            plain = trying(form, form.program, self.pool) or to.plain
            samples = self.apart(partial(_samples, plain, inputs))
        race = self._race = _Race(self, to, plain, samples, watch)
        known = self.verdict or (Verdict.load(self.key) if self.wanted == "auto" else None)
        if known is not None and known.winner == "eager":
            self._lost = known.races
            if known is self.verdict or known.races >= RACES:
                self.verdict = known
                return None
        elif known is not None and (made := race.build(known.winner) or race.fixed().build(known.winner)):
            self.verdict = known
            return made
        best = race.run()
        self.verdict = race.verdict
        if self.wanted == "auto" and race.verdict.seconds and not race.stopped:
            self._store(race.verdict)
        log.info("%s", race.verdict)
        return best

    @property
    def on_cpus(self) -> bool:
        """True if all tasks run on CPUs."""
        return {*self.form.types.values()} == {"cpu"}

    def apart(self, call: Callable[[], _T]) -> _T:
        """Return the result of a call, on CPUs in a thread of its own unless that may trace."""
        return apart(call) if self.on_cpus and not self.traces else call()

    def _store(self, verdict: Verdict) -> None:
        verdict.races = self._lost + 1 if verdict.winner == "eager" else 0
        verdict.store(self.key)


def _samples(plain: Executor, inputs: Sequence[Any]) -> list[Sample]:
    """Return eager's results for the inputs, and for others like them. Raises Refusal if eager now fails with these."""
    try:
        samples: list[Sample] = [(inputs, [*map(clone, plain(inputs))])]
    except RunError as error:
        # Other calls may have changed the state, or an input in place: a cache may be full.
        raise Refusal("a call like it fails by now") from error
    # Eager may refuse perturbed inputs: rotated integers may be offsets, which must rise.
    for integers in (True, False):
        with suppress(RunError):
            other = perturbed(inputs, integers)
            samples.append((other, [*map(clone, plain(other))]))
            break
    return samples


def _after_fork() -> None:
    global _one
    # A thread of the parent process may have held the lock; it does not exist in the child.
    _one = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class _Race:
    """The contestants of one choice."""

    def __init__(
        self, choice: _KernelChoice, to: Choice, plain: Executor, samples: Sequence[Sample], watch: Weights
    ) -> None:
        self.choice, self.to, self.plain, self.samples, self.watch = choice, to, plain, samples, watch
        self.form = choice.form
        self.worker = CompilerProcess()
        self.verdict = Verdict()
        self.made: dict[str, Arrangement] = {}
        self.stopped = choice.stopped

    def stop(self) -> None:
        """Stop compiling."""
        self.stopped = True
        self.worker.stop()

    def build(self, name: str) -> Arrangement | None:
        """Return the arrangement of this name, such as `onnxruntime`, `onnxruntime, 1 thread` or
        `onnxruntime, 2 lanes`; None if it cannot be built."""
        library, _, how = name.partition(", ")
        stack = next((stack for stack in self.choice.stacks if stack.name == library), None)
        if stack is None or (self.form.symbols and not stack.open):
            return None
        why = self.choice.refuted.get(name, "")
        if self.stopped or self.choice.ended:
            why = "not tried, the compiled model was closed"
        elif self.worker.spent_s > BUILD_S:
            why = f"not tried, {BUILD_S:.0f} s of compiling were over"
        if why:
            self.verdict.refused[name] = why
            return None
        try:
            form = self._form(how)
            with ticking(f"autopar: kernels of {name}"):
                given = self.choice.pool, self.samples, self.watch, self.worker, self.plain, self.to.turn
                self.made[name] = self.choice.apart(partial(arranged, name, stack, form, *given))
        except Exception as problem:
            if isinstance(problem, Refusal) and problem.passing:
                raise
            if not self.watch.unchanged():
                raise Refusal("weights changed while it was compiled") from problem
            self.verdict.refused[name] = reason(problem)
            log.info("%s is not used: %s", name, self.verdict.refused[name])
        return self.made.get(name)

    def fixed(self) -> _Race:
        """Compile only for the sizes of the samples from now on; return the race itself."""
        self.form = replace(self.form, symbols=())
        return self

    def run(self) -> Arrangement | None:
        """Race all; return the fastest, None for eager. If no kernels for all sizes can be built, kernels for
        the sizes of the samples race."""
        best = self._fastest()
        if best is None and not self.made and self.form.symbols:
            best = self.fixed()._fastest()
        return best

    def _fastest(self) -> Arrangement | None:
        """Race all; return the fastest, None for eager. Stacks that compile fast come first; meanwhile the
        fastest so far serves."""
        choice, best = self.choice, None
        for stack in choice.stacks:
            if stack.frozen and choice.form.changing:
                self.verdict.refused[stack.name] = (
                    "it folds the weights, so it serves calls under torch.no_grad() alone"
                )
            elif self.build(stack.name):
                self._time(["eager", *self.made], FIRST)
                fastest = sorted(self.made, key=self.verdict.seconds.__getitem__)[:FINALISTS]
                self._close(keep=fastest)
                best = fastest[0]
                if self._worth(best):
                    self.verdict.winner = best
                    self.choice.verdict = self.verdict
                    self.to.chosen = self.made[best]
        if best is None:
            return None
        if choice.wanted != "auto":
            return self.made[best]
        finalists = sorted(self.made, key=self.verdict.seconds.__getitem__)
        if choice.form.threads > 1 and choice.on_lanes and not choice.traces:
            finalists += self._others(best)
        self._time(["eager", *finalists], ROUNDS)
        least = min(finalists, key=self.verdict.seconds.__getitem__)
        # The threads of lanes cost the caller more than this race shows.
        if self.verdict.seconds[least] > (1 - WORTH) * self.verdict.seconds[best]:
            least = best
        if not self._worth(least):
            self._close(keep=[])
            self.verdict.winner = "eager"
            return None
        self._close(keep=[least])
        self.verdict.winner = least
        return self.made[least]

    def _worth(self, name: str) -> bool:
        """Return True if an arrangement may serve: it was asked for, or saves enough of eager's time."""
        seconds = self.verdict.seconds
        return self.choice.wanted != "auto" or seconds[name] <= (1 - WORTH) * seconds["eager"]

    def _others(self, best: str) -> list[str]:
        """Return the fastest stack with one thread, and in lanes of one thread each if lanes can be faster.
        Lanes take at least the time of one thread divided by their number."""
        threads = self.choice.form.threads
        if self.build(alone := f"{best}, 1 thread") is None:
            return []
        self._time([alone, best], FIRST)
        seconds = self.verdict.seconds
        lanes = f"{best}, {threads} lanes"
        if seconds[alone] / threads > (1 - WORTH) * seconds[best] or self.build(lanes) is None:
            return [alone]
        return [alone, lanes]

    def _form(self, how: str) -> Form:
        form, on_lanes = self.form, self.choice.on_lanes
        if how == "1 thread":
            return replace(form, threads=1)
        if how and on_lanes is not None:
            with suppress(AutoparError):
                form = self.choice.apart(on_lanes)
            if form.lanes == 1:
                raise Refusal("the planner has no use for a second lane")
            if self.form.symbols and not form.symbols:
                raise Refusal("its plan is for calls of these sizes alone")
            form = replace(form, symbols=self.form.symbols and form.symbols, held=self.form.held)
        return form

    def _time(self, names: Sequence[str], rounds: int) -> None:
        inputs, turns = self.samples[0][0], {}
        for name in names:
            call = self.made[name].tried if name in self.made else self.plain
            turns[name] = (partial(call, inputs), self.choice.form.threads)
        with ticking("autopar: timing kernels"):
            blocks = timed(turns, rounds, RACE_S, BLOCK_S, self._run)
        self.verdict.seconds.update({name: median(own) for name, own in blocks.items()})

    def _run(self, block: Callable[[], Block]) -> Block:
        """Run a block while other callers wait. Raises Refusal if the process ends."""

        def run() -> Block:
            if self.choice.ended:
                raise Refusal("the process ends")
            return block()

        if self.choice.on_cpus:
            return self.to.turn.run(run)
        with self.to.turn:
            return run()

    def _close(self, keep: Sequence[str]) -> None:
        for name in [name for name in self.made if name not in keep]:
            self.made.pop(name).executor.close()
