"""A backend of `torch.compile`: what Dynamo captures, placed on a machine."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import fx

from ..capture.dynamo_private import broken
from ..capture.refusals import waiting
from ..costs.pins import unused
from ..errors import AutoparError
from ..ir.plan import Plan
from ..pipeline.plan_cache import Done
from ..runtime.tuned import TunedExecutor
from .served import Planned, Served
from .session import Session

log = logging.getLogger("autopar")


class Backend(Session):
    """Takes each graph that Dynamo captures and serves its calls."""

    def __call__(self, module: fx.GraphModule, examples: Sequence[Any], **_: Any) -> Callable[..., Any]:
        """Compile a graph that Dynamo has captured: the callable of its calls. Raises Untraceable where it waits for
        other processes, for Dynamo to run what it is of as the user wrote it."""
        waits = waiting(module) if self.entry is not None else None
        if waits is not None:
            # Not as captured: the derivative of an autograd.Function that does so is wrong in a graph of torch 2.11.
            if str(waits) not in self.breaks:
                log.warning("runs as written, not placed: %s", waits)
            self.breaks[str(waits)] = None
            raise waits
        served = Served(self, module, examples)
        why, place = broken(module)
        # Dynamo captures in one thread at a time, under a lock: to wait for another one here could be for ever.
        self.served.append(served)
        if why:
            self.breaks[f"graph break at {place}: {why}"] = None
        # Dynamo may keep what it is given for as long as the process lives.
        own = weakref.ref(served)

        def call(*args: Any) -> Any:
            return own()(*args)  # type: ignore[misc]

        return call

    def skipped(self, why: str, place: str) -> None:
        """Note a function of which there is no graph."""
        if not any(why in known for known in list(self.breaks)):
            self.breaks[f"no graph of the function at {place}: {why}"] = None

    @contextlib.contextmanager
    def planning(self) -> Iterator[None]:
        """Calls that end where the first graph is planned."""
        self.preparing = True
        try:
            yield
        except Done:
            pass
        finally:
            self.preparing = False

    def ready(self) -> tuple[Served, Planned]:
        """The graph and the program of the last call that was placed. Raises AutoparError where there was none."""
        if self.latest is not None:
            return self.latest
        if self.calls or self.unplaced:
            raise AutoparError("nothing was placed, the model runs as written: " + "; ".join(self.notes()))
        raise AutoparError(
            "nothing is planned yet: call the compiled model once, or give compile(…, example_inputs=(x,))"
        )

    def notes(self) -> list[str]:
        """Remarks for the reader of one plan: the other graphs, and calls that were not placed."""
        found = [
            f"{served.name} runs as written, not placed: {served.written}"
            for served in self.served
            if served.written
        ]
        if len(self.served) > 1:
            tasks = [len(plan.costed.graph.tasks) for plan in self.plans()]
            found.append(
                f"torch.compile captured {len(self.served)} graphs, {len(tasks)} of them placed, with "
                f"{', '.join(map(str, tasks))} tasks; this is the one that ran last"
            )
        if self.root is not None:
            found += unused([plan.costed.graph for plan in self.plans()], self.options.pins)
        found += [executor.note for executor in self.tuned() if executor.note]
        found += [f"{count} calls ran as written: {why}" for why, count in self.unplaced.items()]
        return [*found, *list(self.breaks)]

    def plans(self) -> list[Plan]:
        """The latest plan of each graph that is placed, in the order of their capture."""
        kept = [list(served.programs.values()) for served in self.served]
        return [programs[-1].plan for programs in kept if programs]

    def tuned(self) -> list[TunedExecutor]:
        """The executors that compile kernels."""
        programs = [planned for served in self.served for planned in served.programs.values()]
        executors = [executor for planned in programs for executor in planned.executors]
        return [executor for executor in executors if isinstance(executor, TunedExecutor)]

    def forget(self) -> None:
        """Drop the programs of the graph that was called last."""
        if self.latest is not None:
            served, _ = self.latest
            for key in list(served.programs):
                served.forget(key)

    def close(self) -> None:
        """Stop the worker threads of every program; the next call starts them again."""
        for served in self.served:
            for prepared in list(served.programs.values()):
                prepared.close()
