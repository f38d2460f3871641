"""A backend of `torch.compile`: what Dynamo captures, placed on a machine."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from torch import fx, nn

from ..errors import AutoparError
from ..machine import Machine
from ..options import Options
from ..pins import unused
from ..plans import Plan
from ..recording import Recorded
from ..runtime.bridge import Written
from ..runtime.memory import Replicas
from ..timeline import Timeline
from ..training.dropin import Training
from .private import broken
from .served import Done, Planned, Served

log = logging.getLogger("autopar")


class Backend(Recorded):
    """Takes each graph that Dynamo captures of `root` (None: of whatever is compiled) and serves its calls.

    `parameters` are the names of its positional ones. `served` are the graphs, in the order of their capture, and
    `latest` the one that was called last with its program. Copies of weights on devices are shared by all of them.
    """

    def __init__(
        self,
        machine: Machine,
        options: Options,
        root: nn.Module | None = None,
        given: Plan | None = None,
        parameters: Sequence[str] = (),
    ) -> None:
        self.machine, self.options, self.given, self.parameters = machine, options, given, parameters
        self._root = weakref.ref(root) if root is not None else None
        self.pool = Replicas()
        self.served: list[Served] = []
        self.latest: tuple[Served, Planned] | None = None
        self.entry: CodeType | None = None
        """The code that calls of the user's come through, which has them as `model`, `args`, `kwargs`, `expected`."""
        self.preparing = False
        """Set while a call is to be planned, not run: `Done` is raised in the place of its first graph."""
        self.calls = 0
        self.unplaced: dict[str, int] = {}
        """Calls that ran as the user wrote them, by the reason."""
        self.breaks: dict[str, None] = {}
        """Graph breaks and functions without a graph, with place and reason, a sentence each."""
        # One capture, one check and one call that changes state at a time.
        self.lock = threading.RLock()
        _alive.add(self)
        own = weakref.ref(self)

        def recorder() -> list[Timeline] | None:
            backend = own()
            return backend.recording.calls if backend is not None and backend.recording is not None else None

        self.recorder = recorder

    @property
    def root(self) -> nn.Module | None:
        """The compiled module."""
        return self._root() if self._root is not None else None

    def __deepcopy__(self, memo: dict[int, Any]) -> Backend:
        # It stands for threads and devices, of which there is one set.
        return self

    def __call__(self, module: fx.GraphModule, examples: Sequence[Any], **_: Any) -> Callable[..., Any]:
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

    def given_for(self, name: str, *, training: bool) -> Plan | None:
        """The user's plan where it is for calls of this kind; a plan of forward and backward is for training."""
        given = self.given
        if given is None or training == any(task.phase == "backward" for task in given.costed.graph.tasks):
            return given
        mine, other = ("with", "without") if training else ("without", "with")
        log.warning(
            "plan= is a plan %s a backward, this call of %s is one %s: it is planned anew", other, name, mine
        )
        return None

    def skipped(self, why: str, place: str) -> None:
        """Note a function of which there is no graph."""
        if not any(why in known for known in list(self.breaks)):
            self.breaks[f"no graph of the function at {place}: {why}"] = None

    def trained(self, prepared: Training, inputs: Sequence[Any], written: Written | None) -> list[Any]:
        """The outputs of one call in training, which is measured while there is a recording; `written` is the call in
        eager."""
        recording = self.recording
        if recording and recording.calls:
            # The backward of the call before has ended since.
            self.keep_up(prepared, recording.calls[-1])
        outputs = prepared.outputs(inputs, written)
        if recording and recording.calls:
            self.timeline = recording.calls[-1]
        return outputs

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Calls that are not measured."""
        outer, self.recording = self.recording, None
        try:
            yield
        finally:
            self.recording = outer

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
        found += [f"{count} calls ran as written: {why}" for why, count in self.unplaced.items()]
        return [*found, *list(self.breaks)]

    def plans(self) -> list[Plan]:
        """The latest plan of each graph that is placed, in the order of their capture."""
        kept = [list(served.programs.values()) for served in self.served]
        return [programs[-1].plan for programs in kept if programs]

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


_alive: weakref.WeakSet[Backend] = weakref.WeakSet()


def _after_fork() -> None:
    # The thread that may have held a lock is not in this process.
    for backend in list(_alive):
        backend.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
