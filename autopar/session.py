"""One model on one machine: a plan for each signature it is called with, and the calls."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from os import PathLike
from typing import Any

import torch
from torch import nn

from .batches import Batches
from .capture import Captured
from .capture.functions import Function
from .capture.signature import Arguments, take_apart
from .checking import Reference, unwanted
from .errors import AutoparError, CaptureError, DifferenceError
from .keys import call_key
from .machine import Machine
from .options import Options
from .plans import Plan
from .runtime import Executor
from .runtime.ambient import entered
from .stages import Prepared, prepare
from .timeline import Timeline

log = logging.getLogger("autopar")

KEPT = 8
"""Signatures whose plans are kept; the least recently used goes first."""


_alive: weakref.WeakSet[Session] = weakref.WeakSet()


class Recording:
    """The timelines of the calls made inside `with fast.record() as timeline`; speaks for the last of them."""

    def __init__(self) -> None:
        self.calls: list[Timeline] = []

    @property
    def last(self) -> Timeline:
        """The timeline of the last call; AutoparError when there was none."""
        if not self.calls:
            raise AutoparError(
                "nothing was recorded; call the compiled model inside `with fast.record() as timeline:`"
            )
        return self.calls[-1]

    @property
    def median(self) -> Timeline:
        """The timeline whose makespan is the median of all calls; AutoparError when there was none."""
        ordered = sorted(self.calls, key=lambda timeline: timeline.makespan)
        return ordered[(len(ordered) - 1) // 2] if ordered else self.last

    def save(self, path: str | PathLike[str]) -> None:
        """Write the median call: `.json`, `.json.gz` for Perfetto, `.svg`, `.html`, `.png` as a picture."""
        self.median.save(path)


class Session:
    """What a compiled model keeps from call to call. Safe for concurrent callers."""

    def __init__(
        self, model: Callable[..., Any], machine: Machine, options: Options, given: Plan | None
    ) -> None:
        self.model, self.machine, self.options, self.given = model, machine, options, given
        self.kept: OrderedDict[Hashable, Prepared] = OrderedDict()
        self.latest: Prepared | None = None
        self.batches = Batches(model)
        self._untraced: dict[Hashable, Hashable] = {}
        self.recording: Recording | None = None
        self.timeline: Timeline | None = None
        self._lock = threading.RLock()
        # Planning ahead (`example_inputs`) makes a signature; its first call is still to be checked.
        self._unchecked: weakref.WeakSet[Executor] = weakref.WeakSet()
        self._running = 0
        self._evicted = False
        self._used: nn.Module | None = model if isinstance(model, nn.Module) else None
        _alive.add(self)
        self._kinds = tuple(dict.fromkeys("cpu" if d.kind == "emulated" else d.kind for d in machine.devices))

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's answer; the first of a signature is held against eager when the options say so."""
        prepared, fresh = self.prepared(args, kwargs)
        captured, check = prepared.captured, self.options.check
        if torch.is_grad_enabled() and captured.needs_grad:
            raise CaptureError(
                f"{captured.graph.name}: the result of this call would require grad, and autopar does not train yet; "
                "call it inside `with torch.no_grad():` (or torch.inference_mode())"
            )
        if fresh and check == "first" and unwanted(prepared.plan, captured):
            self._unchecked.discard(prepared.executor)
            fresh = False
        checked = check == "always" or (check == "first" and fresh)
        if not checked and not prepared.stateful:
            return self._run(prepared, args, kwargs)
        # A check runs eager on the very buffers and generators that another call would read and write.
        with self._turn():
            before, self._running = self._running, id(prepared.executor)
            try:
                return (self._checked if checked else self._run)(prepared, args, kwargs)
            finally:
                self._running = before

    def _turn(self) -> AbstractContextManager[Any]:
        """The lock, unless this thread is a lane of a call that holds it."""
        return nullcontext() if self._running in entered.stack else self._lock

    def _checked(self, prepared: Prepared, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reference = Reference(prepared.captured, self.model, args, kwargs)
        try:
            output = self._run(prepared, args, kwargs)
            reference.judge(output)
        except AutoparError as error:
            # What failed its first check must be checked again.
            self.forget(prepared)
            if not (isinstance(error, DifferenceError) and self.batches.refuse(prepared.captured)):
                raise
            log.warning(
                "%s is captured for each batch size from now on: %s", prepared.captured.graph.name, error
            )
            with reference.restored():
                key = self._signature(take_apart(args, kwargs))
            return self._checked(self._keep(key, args, kwargs, None), args, kwargs)
        self._unchecked.discard(prepared.executor)
        return output

    def _run(self, prepared: Prepared, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        captured = prepared.captured
        inputs = captured.flatten(args, kwargs)
        recording = self.recording
        if recording is None:
            outputs = prepared.executor(inputs)
        else:
            outputs, timeline = prepared.executor.run(inputs)
            assert timeline is not None
            recording.calls.append(timeline)
            self.timeline = timeline
        if self.options.outputs == "as_input":
            # Where eager returns an argument or a parameter itself, so do we: the very object.
            given = dict(zip(captured.graph.inputs, inputs))
            for index, name in captured.same:
                owner, key = captured.state.get(name, (given, name))
                outputs[index] = owner[key]
        return captured.rebuild(outputs)

    def prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Prepared, bool]:
        """What serves this call, and whether it has yet to be held against eager."""
        key = self._signature(take_apart(args, kwargs))
        with self._turn():
            found = self.kept.get(key) or self.kept.get(self._untraced.get(key[:-1]))
            if found is not None:
                if key in self.kept:
                    self.kept.move_to_end(key)
                self.latest = found
                return found, found.executor in self._unchecked
            derived = self.batches.derive(
                key, {k: old.captured for k, old in self.kept.items()}, args, kwargs
            )
            return self._keep(key, args, kwargs, derived), True

    def _keep(
        self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], derived: Captured | None
    ) -> Prepared:
        """Prepare a signature and keep it as the latest."""
        made = prepare(self.model, self.machine, self.options, args, kwargs, self.given, derived)
        self.kept[key] = self.latest = made
        self._unchecked.add(made.executor)
        if made.captured.how == "opaque":
            # It runs as the user wrote it, so that attributes are read as they are at each call.
            self._untraced[key[:-1]] = key
        if len(self.kept) > KEPT:
            self.kept.popitem(last=False)[1].executor.close()
            self._warn_evicted(made.captured.graph.name)
        return made

    def _warn_evicted(self, name: str) -> None:
        if not self._evicted:
            log.warning(
                "%s was called with more than %d signatures; the plan of the oldest was dropped and will be "
                "made again when it is needed. Pad the inputs to fewer shapes to avoid this", name, KEPT,
            )  # fmt: skip
        self._evicted = True

    def _signature(self, arguments: Arguments) -> tuple[Any, ...]:
        """What decides whether a plan made before serves this call."""
        root = self._used
        if root is None:
            root = Function(self.model, arguments)
            if not any(isinstance(constant, nn.Module) for constant in arguments.constants):
                self._used = root
        return call_key(root, arguments, self._kinds)

    def forget(self, prepared: Prepared) -> None:
        """Drop one plan."""
        for key, kept in list(self.kept.items()):
            if kept is prepared:
                del self.kept[key]
        prepared.executor.close()

    def close(self) -> None:
        """Stop the threads of every plan; the next call starts them again."""
        for prepared in tuple(self.kept.values()):
            prepared.executor.close()

    def refresh(self) -> None:
        """Copy parameters to their devices again at the next call of every plan."""
        for prepared in tuple(self.kept.values()):
            prepared.executor.refresh()

    def ready(self) -> Prepared:
        """What served the last call; AutoparError when nothing has been planned."""
        if self.latest is None:
            raise AutoparError(
                "nothing is planned yet: call the compiled model once, or give compile(…, example_inputs=(x,))"
            )
        return self.latest

    @contextmanager
    def record(self) -> Iterator[Recording]:
        """Measure every call inside the block."""
        outer, self.recording = self.recording, Recording()
        try:
            yield self.recording
        finally:
            self.recording = outer


def _after_fork() -> None:
    # The thread that may have held the lock is not in this process.
    for session in list(_alive):
        session._lock, session._running = threading.RLock(), 0


os.register_at_fork(after_in_child=_after_fork)
