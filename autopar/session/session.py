"""The backend of `torch.compile` that places captured graphs on a machine, and the state shared by a model's
graphs."""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from torch import fx, nn

from ..capture import Captured
from ..capture.dynamo_private import broken
from ..capture.floats import fixable, numbered, numbers, taking
from ..capture.refusals import as_code
from ..capture.region import Region
from ..costs.pins import unused
from ..errors import AutoparError
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..runtime.executor import Executor
from ..runtime.record import Recorded
from ..runtime.replicas import Replicas
from ..runtime.thread_state import capture_lock_and, reset_after_fork
from ..system.text import counted
from .kernel_selection import KernelExecutor
from .options import Options
from .program_cache import Done

log = logging.getLogger("autopar")

WATCHED: ContextVar[list[tuple[Any, Sequence[Any], Sequence[Any]]] | None] = ContextVar(
    "watched", default=None
)
"""The list that takes the graph, arguments and results of each call of a graph in this thread."""


class Session(Recorded):
    """A `torch.compile` backend: serves each captured graph of a model by a `CompiledGraph`, which calls the methods
    that a `ModelSession` and a `StepSession` have each in their own way.

    All graphs share the replicas of the weights. `graph`: makes a `CompiledGraph`. `root`: the model, None for
    whatever is compiled. `arguments`: names of the model's positional arguments. `graphs`: in order of capture.
    `latest`: the graph called last, with its program.
    """

    runs_as_written = False
    """True if a graph of which only the user's code is right is refused, so that Dynamo runs the code."""
    trains = False
    """True if the programs of a graph are for certain parameters, which they update."""

    def __init__(
        self,
        graph: Callable[[Session, fx.GraphModule, Sequence[Any]], Any],
        machine: Machine,
        options: Options,
        root: nn.Module | None = None,
        user_plan: Plan | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self._graph = graph
        self.machine, self.options, self.user_plan, self.arguments = machine, options, user_plan, arguments
        self._root = weakref.ref(root) if root is not None else None
        self.pool = Replicas()
        self.graphs: list[Any] = []
        self.latest: tuple[Any, Any] | None = None
        self.preparing = False
        """True while a call is planned but not run: `Done` is raised in place of its first graph."""
        self.calls = 0
        self.unplaced: dict[str, int] = {}
        """Number of calls that ran as written, by reason."""
        self.breaks: dict[str, None] = {}
        """Graph breaks and functions without a graph: one sentence each, with place and reason."""
        # Serialises captures, checks and calls that change state.
        self.lock = threading.RLock()
        reset_after_fork.add(self)

    def __call__(self, module: fx.GraphModule, examples: Sequence[Any], **_: Any) -> Callable[..., Any]:
        """Compile a graph captured by Dynamo; return the callable that serves its calls.

        Raises Untraceable for a graph of which only the function itself is right, which Dynamo then runs as written: it
        waits for other processes, or the class of a tensor redefines operators.
        """
        refused = as_code(module, examples) if self.runs_as_written else None
        if refused is not None:
            # Never as a graph: there, torch 2.11 gives an autograd.Function that waits a wrong derivative.
            if not fixable(refused, module):
                if str(refused) not in self.breaks:
                    log.warning("runs as written, not placed: %s", refused)
                self.breaks[str(refused)] = None
            raise refused
        floats = numbered(module)
        served = self._graph(self, module, numbers(examples, floats))
        why, place = broken(module)
        # Dynamo captures under a lock, in one thread at a time: to wait for another here could deadlock.
        self.graphs.append(served)
        if why:
            self.breaks[f"graph break at {place}: {why}"] = None
        # Dynamo may keep this function as long as the process lives; it must not keep the graph alive.
        reference = weakref.ref(served)

        def call(*args: Any) -> Any:
            served: Any = reference()
            results = served(*args)
            if (watched := WATCHED.get()) is not None:
                watched.append((served, args, results))
            return results

        return taking(call, floats)

    def region(self, module: fx.GraphModule, examples: Sequence[Any]) -> Region:
        """Return the region of a graph of Dynamo's. Raises Untraceable if no graph can hold its calls."""
        return Region(module, examples, self.root, self.arguments)

    def uncaptured(self, graph: Any, module: fx.GraphModule, error: Exception) -> None:
        """Raise the error of a graph without a region, for Dynamo, or note it in `graph.written`."""
        raise NotImplementedError

    def check_state(self) -> None:
        """Raise CaptureError if calls cannot be served since tensors of the model were replaced."""

    def rebinding(self) -> AbstractContextManager[Any]:
        """Return the context in which the state of a graph may be replaced by that of a call."""
        return capture_lock_and(self.lock)

    def program(self, graph: Any, captured: Captured, args: Sequence[Any]) -> Any:
        """Return a new program of a graph for the sizes of a call."""
        raise NotImplementedError

    def unplanned(self, graph: Any, error: Exception) -> None:
        """Raise the error of a call without a program, or return, to have the call run as written."""
        raise NotImplementedError

    def plain(self, graph: Any, args: tuple[Any, ...]) -> Any:
        """Return the results of a call that cannot be placed. Raises CaptureError if it must be."""
        raise NotImplementedError

    def serve(self, graph: Any, key: Hashable, program: Any, args: tuple[Any, ...], new: bool) -> Any:
        """Return the results of a call by its program, which may be `new`. `key`: its sizes."""
        raise NotImplementedError

    @property
    def asked(self) -> bool:
        """True if the user looks at the plan of a call, which must then be for the call's own sizes."""
        return self.recording is not None or self.preparing or self.user_plan is not None

    def skipped(self, why: str, place: str) -> None:
        """Note a function for which there is no graph."""
        if not any(why in known for known in list(self.breaks)):
            self.breaks[f"no graph of the function at {place}: {why}"] = None

    @contextlib.contextmanager
    def planning(self) -> Iterator[None]:
        """Within the block, end calls as soon as their first graph is planned."""
        self.preparing = True
        try:
            yield
        except Done:
            pass
        finally:
            self.preparing = False

    def ready(self) -> tuple[Any, Any]:
        """Return the graph and program of the last placed call. Raises AutoparError if there was none."""
        if self.latest is not None:
            return self.latest
        if self.calls or self.unplaced or self.breaks:
            why = "; ".join(self.notes()) or "every call so far has raised an error"
            raise AutoparError(f"nothing was placed; {why}")
        raise AutoparError(
            "nothing is planned yet: call the compiled model once, or give compile(…, example_inputs=(x,))"
        )

    def notes(self) -> list[str]:
        """Return remarks beside one plan: on other graphs, and on calls that were not placed."""
        written = [(served.name, served.written) for served in self.graphs if served.written]
        remarks = [f"{name} runs as written, not placed: {why}" for name, why in dict.fromkeys(written)]
        resized = Counter(served.programs.note for served in self.graphs if served.programs.note)
        remarks += [f"{f'in {count} graphs: ' if count > 1 else ''}{note}" for note, count in resized.items()]
        if len(self.graphs) > 1:
            tasks = [len(plan.costed.graph.tasks) for plan in self.plans()]
            remarks.append(
                f"torch.compile captured {len(self.graphs)} graphs, {len(tasks)} of them placed, with "
                f"{', '.join(map(str, tasks))} tasks; this report is on the one that ran last"
            )
        if self.root is not None:
            remarks += unused([plan.costed.graph for plan in self.plans()], self.options.pins)
        remarks += self._uncompiled()
        remarks += [
            f"{counted(count, 'call')} ran as written: {why}" for why, count in [*self.unplaced.items()]
        ]
        return [*remarks, *list(self.breaks)]

    def plans(self) -> list[Plan]:
        """Return the latest plan of each placed graph, in order of capture."""
        programs_of = [list(served.programs.values()) for served in self.graphs]
        return [programs[-1].plan for programs in programs_of if programs]

    def _uncompiled(self) -> list[str]:
        """Return a sentence for each graph and each reason why no kernels are compiled for its programs."""
        refusals = Counter(
            (served.name, why)
            for served in self.graphs
            for planned in [*served.programs.values()]
            for why in planned.refusals
        )
        return [
            f"{name}: no kernels{f' for {count} sets of sizes' if count > 1 else ''}: {why}"
            for (name, why), count in refusals.items()
        ]

    def executors(self) -> list[Executor | KernelExecutor]:
        """Return the executors of all programs."""
        programs = [planned for served in self.graphs for planned in list(served.programs.values())]
        return [executor for planned in programs for executor in planned.executors]

    def with_kernels(self) -> list[KernelExecutor]:
        """Return the executors that have kernels, or are to have some."""
        return [executor for executor in self.executors() if isinstance(executor, KernelExecutor)]

    def kernel_tables(self) -> list[str]:
        """Return a table on the kernels of each program, the latest at the end."""
        return list(filter(None, (executor.selection.table for executor in self.with_kernels())))

    def forget(self) -> None:
        """Drop the programs of the graph that was called last."""
        if self.latest is not None:
            served, _ = self.latest
            served.forget(*served.programs)

    def replaced_by(self, latest: Any) -> None:
        """Drop the programs of graphs for fixed sizes that `latest` has replaced, since Dynamo tries the
        latest graph first."""
        for served in self.graphs:
            if served.programs and latest.region.generalizes(served.region):
                served.forget(*served.programs)

    def close(self) -> None:
        """Stop the worker threads of every program; the next call starts them again."""
        for served in self.graphs:
            for prepared in list(served.programs.values()):
                prepared.close()

    @property
    def root(self) -> nn.Module | None:
        """The compiled module."""
        return self._root() if self._root is not None else None

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        # Copies share it, since it owns threads and devices.
        return self

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Within the block, do not record calls."""
        outer, self.recording = self.recording, None
        try:
            yield
        finally:
            self.recording = outer

    def forked(self) -> None:
        """Reset in a forked child, where a missing thread may hold the lock."""
        self.lock = threading.RLock()
