"""One model on one machine: a plan for each signature it is called with, and the calls."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from torch import nn

from .batches import Batches
from .capture import Captured, Untraceable
from .capture.functions import Function
from .capture.joint import joint
from .capture.private import exporting, transformed, untraced
from .capture.signature import Arguments, take_apart
from .checking import Reference, by_parts, unwanted
from .errors import AutoparError, CaptureError, DifferenceError
from .kept import Kept
from .keys import Lent, Parameters, Tie, call_key, same, ties
from .machine import Machine
from .options import Options
from .plans import Plan
from .recording import Recorded
from .runtime import Executor
from .runtime.ambient import alone, entered, unseen
from .runtime.memory import Replicas
from .stages import Prepared, prepare, rewritten, timed
from .strides import settle
from .timeline import Timeline
from .training.capping import plan_training
from .training.dropin import Training
from .training.gradcheck import Eager

log = logging.getLogger("autopar")

Planned: TypeAlias = Prepared | Training
Made = TypeVar("Made", bound="Planned | AsWritten")


@dataclass(frozen=True)
class AsWritten:
    """A signature that cannot be traced with its backward, and runs as the user wrote it; `why` is a sentence."""

    why: str

    def close(self) -> None:
        """There is nothing to stop."""


_alive: weakref.WeakSet[Session] = weakref.WeakSet()


class Session(Recorded):
    """What a compiled model keeps from call to call. Safe for concurrent callers."""

    def __init__(
        self, model: Callable[..., Any], machine: Machine, options: Options, given: Plan | None
    ) -> None:
        self.model, self.machine, self.options, self.given = model, machine, options, given
        own = type(model) if isinstance(model, nn.Module) else model
        self.kept: Kept[Planned | AsWritten] = Kept(getattr(own, "__name__", type(own).__name__))
        self.latest: Planned | AsWritten | None = None
        self.pool = Replicas()
        self.batches = Batches(model)
        self._ties: list[Tie] = []
        self._parameters, self._lent = Parameters(), Lent()
        self._untraced: dict[Hashable, Hashable] = {}
        self._lock = threading.RLock()
        # Planning ahead (`example_inputs`) makes a signature; its first call is still to be checked.
        self._unchecked: weakref.WeakSet[Executor] = weakref.WeakSet()
        self._running = 0
        self._used: nn.Module | None = model if isinstance(model, nn.Module) else None
        _alive.add(self)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's answer; the first of a signature is held against eager when the options say so."""
        if exporting():
            # A model around this one is captured, and placed as a whole.
            return self.model(*args, **kwargs)
        return self._placed(args, kwargs)

    @untraced
    def _placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if transformed():
            raise CaptureError(
                "a compiled model is called under a torch.func transform (vmap, grad, jvp, …), which its programs "
                "know nothing of; transform the plain model, fast.module, instead"
            )
        prepared, fresh = self.prepared(args, kwargs)
        if isinstance(prepared, AsWritten):
            return self.model(*args, **kwargs)
        if self.options.verify_replicas:
            self.pool.require_verified("refresh() of the compiled model")
        captured, check = prepared.captured, self.options.check
        if fresh and check == "first" and unwanted(prepared.plan, captured):
            self._unchecked.discard(prepared.executor)
            fresh = False
        checked = check == "always" or (check == "first" and fresh)
        if checked and by_parts(prepared.plan, self.options.batch_norm):
            self._unchecked.discard(prepared.executor)
            checked = False
        if not checked and not captured.stateful:
            return self._run(prepared, args, kwargs)
        # A check runs eager on the very buffers and generators that another call would read and write.
        with self._alone() if checked else self._turn():
            before, self._running = self._running, id(prepared.executor)
            try:
                return (self._checked if checked else self._run)(prepared, args, kwargs)
            finally:
                self._running = before

    def _turn(self) -> AbstractContextManager[Any]:
        """The lock, unless this thread is a lane of a call that holds it."""
        return nullcontext() if self._running in entered.stack else self._lock

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The lock, in a process in which nothing else is captured or checked. What holds the lock may have to wait for
        that, so that nobody waits for the lock in it."""
        while True:
            with alone():
                if self._running in entered.stack:
                    yield
                    return
                if self._lock.acquire(blocking=False):
                    try:
                        yield
                        return
                    finally:
                        self._lock.release()
            with self._lock:
                pass

    def _checked(self, prepared: Planned, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(prepared, Training):
            return self._differentiated(prepared, args, kwargs)
        reference = Reference(prepared.captured, self.model, args, kwargs)
        try:
            output = self._run(prepared, args, kwargs)
            reference.judge(output)
            output = reference.settled(output)
        except AutoparError as error:
            # What failed its first check must be checked again.
            self.kept.drop(prepared)
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

    def _differentiated(self, prepared: Training, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call in training whose outputs and gradients are first held against eager."""
        root = self._used or Function(self.model, take_apart(args, kwargs))
        weights = dict(root.named_parameters())
        outer, self.recording = self.recording, None
        try:
            with unseen():
                eager = Eager(prepared.captured, self.model, args, kwargs, weights)
                with eager.restored():
                    eager.judge(*prepared.tried(eager.tensors, eager.tangents))
        except AutoparError:
            # What failed its first check must be checked again.
            self.kept.drop(prepared)
            raise
        finally:
            self.recording = outer
        self._unchecked.discard(prepared.executor)
        return self._run(prepared, args, kwargs)

    def _run(self, prepared: Planned, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        captured = prepared.captured
        inputs = captured.flatten(args, kwargs)
        if isinstance(prepared, Training):
            recording = self.recording
            if recording and recording.calls:
                # The backward of the call before has ended since.
                self.keep_up(prepared, recording.calls[-1])
            outputs = prepared.outputs(inputs)
            self.timeline = recording.calls[-1] if recording and recording.calls else self.timeline
        else:
            outputs = self.executed(prepared, inputs)
            settle(outputs, captured.strides, captured.home.type)
        if self.options.outputs == "as_input":
            # Where eager returns an argument or a parameter itself, so do we: the very object.
            given = dict(zip(captured.graph.inputs, inputs))
            for index, name in captured.same:
                owner, key = captured.state.get(name, (given, name))
                outputs[index] = owner[key]
        return captured.rebuild(outputs)

    def prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Planned | AsWritten, bool]:
        """What serves this call, and whether it has yet to be held against eager."""
        arguments = take_apart(args, kwargs)
        with self._turn():
            key, found = self._known(arguments)
        if found is None:
            with self._alone(), unseen():
                # Another thread may have planned it meanwhile.
                key, found = self._known(arguments)
                if found is None:
                    return self._planned(key, args, kwargs), True
        return found, not isinstance(found, AsWritten) and found.executor in self._unchecked

    def _known(self, arguments: Arguments) -> tuple[tuple[Any, ...], Planned | AsWritten | None]:
        """The signature of a call, and what serves it, which is the latest from now on."""
        key = self._signature(arguments)
        found = self._found(key)
        if found is None and self._retied(arguments):
            key = self._signature(arguments)
            found = self._found(key)
        if found is not None:
            self.latest = found
        return key, found

    def _planned(
        self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Planned | AsWritten:
        """What serves a signature from now on."""
        if True in key[3] and (made := self._trained(args, kwargs)) is not None:
            return self._kept(key, made)
        known = {k: old.captured for k, old in self.kept.items() if isinstance(old, Prepared)}
        return self._keep(key, args, kwargs, self.batches.derive(key, known, args, kwargs))

    def _found(self, key: tuple[Any, ...]) -> Planned | AsWritten | None:
        return self.kept.used(key) or self.kept.used(self._untraced.get(key[:-1]))

    def _retied(self, arguments: Arguments) -> bool:
        """Whether other places of the model hold one tensor than was known; these are looked at from now on."""
        before = self._ties
        self._ties = ties(self._modules(arguments))
        return list(map(same, before)) != list(map(same, self._ties))

    def _trained(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Training | AsWritten | None:
        """What serves a call that may be differentiated; None when nothing that it returns can be."""
        try:
            captured = rewritten(timed("capture", joint, self.model, args, kwargs), self.options)
        except Untraceable as error:
            log.warning("trained as written, on the device it is on, not placed: %s", error)
            return AsWritten(str(error))
        if not captured.tangents:
            return None
        tensors, given, own = captured.flatten(args, kwargs), self._given(training=True), weakref.ref(self)

        def recorded() -> list[Timeline] | None:
            session = own()
            return session.recording.calls if session is not None and session.recording is not None else None

        joint_graph, apart = plan_training(captured, self.machine, self.options, tensors, given)
        return Training(joint_graph, apart, self.pool, recorded)

    def _given(self, training: bool) -> Plan | None:
        """The user's plan where it is for calls of this kind; a plan of forward and backward is for training."""
        given = self.given
        if given is None or training == any(task.phase == "backward" for task in given.costed.graph.tasks):
            return given
        mine, other = ("with", "without") if training else ("without", "with")
        log.warning(
            "plan= is a plan %s a backward, this call of %s is one %s: it is planned anew",
            other, given.costed.graph.name, mine,
        )  # fmt: skip
        return None

    def _keep(
        self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], derived: Captured | None
    ) -> Prepared:
        """Prepare a signature and keep it as the latest."""
        given = self._given(training=False)
        made = prepare(self.model, self.machine, self.options, args, kwargs, given, derived, self.pool)
        self._kept(key, made)
        if made.captured.how == "opaque":
            # It runs as the user wrote it, so that attributes are read as they are at each call.
            self._untraced[key[:-1]] = key
        return made

    def _kept(self, key: tuple[Any, ...], made: Made) -> Made:
        """Keep what serves a signature as the latest."""
        if not isinstance(made, AsWritten):
            self._unchecked.add(made.executor)
        self.latest = made
        self.kept.add(key, made)
        return made

    def _signature(self, arguments: Arguments) -> tuple[Any, ...]:
        """What decides whether a plan made before serves this call."""
        key = call_key(
            self._modules(arguments), arguments, self.machine.torch_types, self._parameters, self._lent
        )
        tied = tuple([same(tie) for tie in self._ties]) if self._ties else ()
        return (*key[:-1], tied, key[-1])

    def _modules(self, arguments: Arguments) -> tuple[nn.Module, ...]:
        """The modules of the model, or those that a function uses in this call."""
        root = self._used
        if root is None:
            root = Function(self.model, arguments)
            if not any(isinstance(constant, nn.Module) for constant in arguments.constants):
                self._used = root
        modules = tuple(root.modules())
        # That of a function is made anew where its modules are arguments: it is no part of a signature.
        return modules[1:] if isinstance(root, Function) else modules

    def refresh(self) -> None:
        """Look at the parameters' shapes and copy them to their devices again at the next call of every plan."""
        self._parameters.forget()
        self.pool.forget()

    def ready(self) -> Planned:
        """What served the last call; AutoparError when nothing has been planned."""
        if isinstance(self.latest, AsWritten):
            raise AutoparError(f"the last call ran as written, without a plan: {self.latest.why}")
        if self.latest is None:
            raise AutoparError(
                "nothing is planned yet: call the compiled model once, or give compile(…, example_inputs=(x,))"
            )
        return self.latest


def _after_fork() -> None:
    # The thread that may have held the lock is not in this process.
    for session in list(_alive):
        session._lock, session._running = threading.RLock(), 0


os.register_at_fork(after_in_child=_after_fork)
