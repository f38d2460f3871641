"""State shared by all graphs of a compiled model: machine, options, replicas of weights, call statistics."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

from torch import nn

from ..ir.machine import Machine
from ..ir.plan import Plan
from ..ir.timeline import Timeline
from ..pipeline.options import Options
from ..runtime.autograd_bridge import Written
from ..runtime.recording import Recorded
from ..runtime.replicas import Replicas
from ..training.dropin import Training

log = logging.getLogger("autopar")


class Session(Recorded):
    """The state of a compiled model `root` (None: of whatever is compiled).

    `parameters` are the names of its positional ones. `served` are its graphs, in the order of their capture, and
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
        self.served: list[Any] = []
        self.latest: tuple[Any, Any] | None = None
        self.entry: CodeType | None = None
        """The code that calls of the user's come through, which has them as `model`, `args`, `kwargs`, `expected`."""
        self.preparing = False
        """Set while a call is to be planned, not run: `Done` is raised in the place of its first graph."""
        self.calls = 0
        self.returned: list[tuple[Any, list[Any]]] | None = None
        """Where set, each graph's short calls, with what they returned."""
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        # It stands for threads and devices, of which there is one set.
        return self

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


_alive: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork() -> None:
    # The thread that may have held a lock is not in this process.
    for session in list(_alive):
        session.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
