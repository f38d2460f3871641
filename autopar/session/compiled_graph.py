"""One captured region as Dynamo calls it: its programs by sizes, and the calls."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..capture import Captured, Untraceable
from ..capture import autocast as casting
from ..capture.captured import restore_strides
from ..capture.convert import captured_at
from ..capture.dynamo_private import broken, has_side_effects, outermost
from ..capture.eager_form import in_eager, unprinted, warn_of_checkpoints
from ..capture.floats import fixable
from ..capture.refusals import explain
from ..capture.region import Region
from ..errors import AutoparError, MemoryCapError, PlanError
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..runtime.autograd_bridge import Written, placed
from ..runtime.thread_state import alone_with, unseen
from ..system.process import uncollected
from .check_wanted import wanted
from .compare import Snapshot
from .eager_check import Eager
from .kernel_selection import build_kernels
from .model_check import CALL, answer, compared
from .options import Options
from .own_loop import Training, plan_training
from .program_cache import CHECKED, Done, ProgramCache, Short, again
from .session import Planned, Session
from .stages import plan_captured, prepare, proved, timed
from .twins import owners, twin_of
from .would_fit import advised

log = logging.getLogger("autopar")

TWICE = "its gradients are differentiated once more"


class CompiledGraph:
    """The callable that Dynamo calls instead of a graph, safe for concurrent callers.

    `written`: the reason why it runs as written; "" if it is placed.
    """

    def __init__(self, session: Session, module: fx.GraphModule, examples: Sequence[Any]) -> None:
        self._session, self.module = weakref.ref(session), in_eager(module)
        self.name = type(session.root).__name__ if session.root is not None else "graph"
        self.written = ""
        if self.module is not module and torch.is_grad_enabled() and session.options.recompute is None:
            warn_of_checkpoints(self.name)
        self._part = not outermost() or bool(broken(module)[0])
        # If a call leaves no side effects in Python, the check may also call the model itself.
        self.whole = not self._part and not has_side_effects()
        self.twins: list[CompiledGraph] = []
        self.twin: dict[int, CompiledGraph] = {}
        """Twins by the `id` of the first state tensor of a call (`twin_of`)."""
        self.begin(None)
        try:
            region = timed("capture", Region, module, examples, session.root, session.parameters)
        except Exception as error:
            if session.runs_as_written and fixable(error, module):
                raise
            # Dynamo's own graph is a correct fallback, unless it is malformed: `lint` then raises, and Dynamo
            # runs the frame as the user wrote it.
            module.graph.lint()
            self.as_written(explain(self.name, error))
            return
        self.name = region.name
        self.begin(region)

    def begin(self, region: Region | None) -> None:
        """Begin without programs; if `region` is None, without a graph to place."""
        self.programs: ProgramCache[Planned] = ProgramCache(self.name, region, self.session.options)
        if region is not None:
            self.region = region
        self.placed: Plan | None = None
        self.calls = 0
        self.right = 0
        """Number of programs that were compared with eager and found equal."""
        self.unchecked: set[Hashable] = set()
        """Sizes whose next call must be checked, such as those that `prepare` has planned."""
        # Their check drew other random numbers than eager, perhaps for another thread: the next is checked.
        self._disturbed: set[Hashable] = set()
        self._shorts = self.programs.shorts
        self.owners = owners(region, self.session.root) if region is not None else []

    @property
    def session(self) -> Session:
        """The session it was captured for."""
        session = self._session()
        assert session is not None
        return session

    def as_written(self, why: str) -> None:
        """Run as written from now on, on the current device."""
        known = any((each.name, each.written) == (self.name, why) for each in self.session.graphs)
        self.written = why
        log.log(
            logging.DEBUG if known else logging.WARNING, "%s runs as written, not placed: %s", self.name, why
        )

    def __call__(self, *args: Any) -> Any:
        """Return the outputs of the graph for these arguments."""
        session = self.session
        session.calls += 1
        short = self._shorts.get(self.region.sizes(args)) if self._shorts else None
        plain = session.recording is None and not session.preparing
        if (
            short is not None
            and plain
            and not short.prepared.executor.due
            and (short.own or short.prepared.any_size)
        ):
            results = self._by(short, args)
            if results is not None:
                session.latest = self, short.prepared
                return results
        return self._answer(args)

    def _answer(self, args: tuple[Any, ...]) -> Any:
        session = self.session
        if self.written:
            return self._plain(args)
        region = self.region
        if region.aliases_mutated(args):
            return self._plain(args)
        if region.rebound or region.is_other_module(args):
            return self._rebound(args)
        return self._placed(session, args)

    def _placed(self, session: Session, args: tuple[Any, ...]) -> Any:
        key = self.region.sizes(args)
        prepared = self.programs.used(key) or (None if self._asked else self.programs.resized(key))
        checked = session.options.check == "always" and prepared is not None and self._wants_check(prepared)
        if prepared is None:
            first = self._first(key, args)
            if first is None:
                return self._plain(args)
            prepared, checked = first
        self.calls += 1
        session.latest = self, prepared
        if prepared.executor.due:
            # Before the locks of a check or of changing state: it takes Dynamo's own.
            build_kernels(prepared.executor, self.region.inputs(args))
        if session.preparing:
            self.unchecked.add(key)
            raise Done
        if self.unchecked and key in self.unchecked:
            self.unchecked.discard(key)
            checked = checked or self._wants_check(prepared)
        if checked:
            return self._checked(key, prepared, args)
        short = self.programs.shorten(key, prepared, args) if session.recording is None else None
        results = None if short is None else self._by(short, args)
        if results is None:
            with session.lock if prepared.captured.stateful else nullcontext():
                results = self.run(prepared, args)
        return results

    def _by(self, short: Short, args: tuple[Any, ...]) -> list[Any] | None:
        """Return the results of a call by a short path; None if it must take the long way."""
        if not short.stateful:
            return short(args)
        with self.session.lock:
            return None if self.region.aliases_mutated(args) else short(args)

    def _plain(self, args: Sequence[Any]) -> Any:
        if self.session.preparing:
            raise Done
        return unprinted(self.module)(*args)

    def _rebound(self, args: tuple[Any, ...]) -> Any:
        """Run a call whose state is not the state that the graph reads."""
        with alone_with(self.session.lock):
            self._renew()
            if self.region.rebind(args):
                return self._placed(self.session, args)
            twin = twin_of(self, args)
        return twin._answer(args)

    @property
    def _asked(self) -> bool:
        """True if the user looks at the plan of a call, which must then be for the call's own sizes."""
        session = self.session
        return session.recording is not None or session.preparing or session.given is not None

    def _first(self, key: tuple[Any, ...], args: Sequence[Any]) -> tuple[Planned, bool] | None:
        """Return the program for new sizes, and whether to compare it with eager; None if there is no program."""
        with alone_with(self.session.lock), unseen(), uncollected():
            if (known := self.programs.get(key)) is not None:
                return known, self.session.options.check == "always" and self._wants_check(known)
            try:
                prepared = None if self._asked else self.programs.resize(key, args)
                if prepared is None:
                    prepared = self._planned(args)
                    if self.programs.add(key, prepared):
                        self._renew()
                    self.session.replaced_by(self)
            except Untraceable as error:
                self.as_written(str(error))
                return None
            except AutoparError:
                raise
            except ArithmeticError as error:
                # Python cannot compute a number of this call either, such as a quotient, and raises the user's error.
                log.info("%s: a call runs as written: %s", self.name, error)
                return None
            except Exception as error:
                self.as_written(f"{type(error).__name__}: {error}; a fault of autopar, please report it")
                return None
            return prepared, self._wants_check(prepared)

    def _renew(self) -> None:
        """Drop what leads to programs: it would keep the memory of dropped ones, and start their threads again."""
        self._shorts.clear()
        self.programs.drop_resized()

    def forget(self, *keys: Hashable) -> None:
        """Drop the programs for these sizes."""
        self._renew()
        for key in keys:
            if (old := self.programs.pop(key, None)) is not None:
                old.close()

    def _wants_check(self, prepared: Planned) -> bool:
        options = self.session.options
        if options.check == "never" or (options.check != "always" and self.right >= CHECKED):
            return False
        runs = prepared.halves.forward.plan if isinstance(prepared, Training) else prepared.plan
        return wanted(_whole(prepared), runs, prepared.captured, options)

    def _planned(self, args: Sequence[Any]) -> Planned:
        session = self.session
        options = session.options
        options.living(session.machine, session.root)
        if self.placed is not None:
            options = again(options, self.placed)
        captured = captured_at(self.region, args, options.split is not None)
        if session.root is not None:
            # The pins were checked against the whole model.
            options = options.within(captured.graph)
        try:
            prepared = self._prepared(captured, options, args)
        except MemoryCapError as error:
            asked = session.options if session.root is None else session.options.within(captured.graph)
            if self.placed is None:
                raise self._advised(error, captured, asked, args) from None
            # A placement that fits at one size may not fit at another.
            try:
                prepared = self._prepared(captured, asked, args)
            except MemoryCapError as refusal:
                raise self._advised(refusal, captured, asked, args) from None
        except PlanError as error:
            if not (self._part or session.latest) or options.split in (None, "auto"):
                raise
            # The user asked for a split of the model; not every part between graph breaks has a batch, and where
            # that of an earlier call could be split, this one is too short.
            log.warning("%s of %s stays whole: %s", "a part" if self._part else "a batch", self.name, error)
            prepared = self._prepared(captured, replace(options, split=None), args)
        self.placed = self.placed or _whole(prepared)
        return prepared

    def _prepared(self, captured: Captured, options: Options, args: Sequence[Any]) -> Planned:
        session = self.session
        given = session.given_for(self.name, training=bool(captured.tangents))
        if not captured.tangents:
            return prepare(captured, session.machine, options, tuple(args), given, session.pool)
        tensors = captured.flatten(args)
        joint, halves = plan_training(captured, session.machine, options, tensors, given)
        return Training(joint, halves, session.pool, session.recorder, session.exclusive, options.kernels)

    def _advised(
        self, error: MemoryCapError, captured: Captured, options: Options, args: Sequence[Any]
    ) -> MemoryCapError:
        given = self.session.given_for(self.name, training=bool(captured.tangents))
        tensors = captured.flatten(args)

        def planned(machine: Machine) -> Any:
            if captured.tangents:
                return plan_training(captured, machine, options, tensors, given)
            return proved(plan_captured(captured, machine, options, tensors, given))

        return advised(error, self.session.machine, planned)

    def run(self, prepared: Planned, args: Sequence[Any]) -> Any:
        """Return the results of one call."""
        captured = prepared.captured
        inputs = self.region.inputs(args)
        if isinstance(prepared, Training):
            outputs = self.session.trained(prepared, inputs, self._written(prepared, args))
        else:
            outputs = self.session.executed(prepared, inputs)
            restore_strides(outputs, captured.strides, captured.home.type)
        for index, name in captured.same:
            # Where eager returns an argument or a parameter itself, return the same object.
            at: tuple[Any, Any] = captured.state.get(name) or (inputs, captured.graph.inputs.index(name))
            outputs[index] = at[0][at[1]]
        return self.region.numbers.fill(captured.rebuild(outputs), args)

    def _written(self, prepared: Training, args: Sequence[Any]) -> Written | None:
        """Return the call in eager, to be run again for a second derivative; None if that would not give the same
        result."""
        if not prepared.repeatable or casting.anywhere():
            return None
        unplaced, before = self.session.unplaced, _versions(args)

        def written(others: Mapping[int, torch.Tensor]) -> list[torch.Tensor] | None:
            if _versions(args) != before:
                return None
            unplaced[TWICE] = unplaced.get(TWICE, 0) + 1
            given = [others.get(id(item), item) for item in args]
            with casting.off({item.device.type for item in given if isinstance(item, torch.Tensor)}):
                made = unprinted(self.module)(*given)
            return [item for item in made if isinstance(item, torch.Tensor)]

        return written

    def _checked(self, key: Hashable, prepared: Planned, args: Sequence[Any]) -> Any:
        try:
            with alone_with(self.session.lock):
                call = CALL.get() if self.whole else None
                captured = prepared.captured
                if key not in self.programs:
                    # The program serves other sizes than its own: capture the graph of these for eager.
                    exact = captured_at(self.region, args, False)
                    captured = replace(exact, strides=captured.strides)
                eager: list[Snapshot] = []
                before = self._state(args)
                if call is not None and not call.expected:
                    # The model itself answers the user's call, for `judge` to compare with the placed answer.
                    eager.append(Snapshot(captured, args))
                    with self.session.unrecorded(), unseen():
                        answer(call, eager[0], partial(self._doubt, key))
                    before = before if self._state(args) == before else None
                reference = None
                if isinstance(prepared, Training):
                    outputs = self._differentiated(prepared, captured, args)
                else:
                    eager.append(
                        reference := Eager(captured, self.module, args, machine=self.session.machine)
                    )
                    outputs = reference.outputs
                output = self.run(prepared, args)
                # Other threads may change the model, or draw numbers, during the check.
                changed = before is None or self._state(args) != before
                if changed or (key not in self._disturbed and not all(each.comparable() for each in eager)):
                    self.unchecked.add(key)
                    if not changed:
                        self._disturbed.add(key)
                    if call is not None:
                        call.expected.clear()
                else:
                    if reference is not None:
                        reference.judge(pytree.tree_leaves(output))
                    compared(call, output, outputs)
                    self.right += 1
                return output if reference is None else reference.settled(output)
        except AutoparError:
            # A program that failed its first check must be checked again.
            self.forget(key)
            raise

    def _doubt(self, key: Hashable) -> None:
        """Compare the next call of these sizes with eager again."""
        self.right = 0
        self.unchecked.add(key)

    def _state(self, args: Sequence[Any]) -> list[Any] | None:
        """Return a key of the state of a call; None if the model holds other state by now."""
        return None if self.region.is_other_module(args) else _versions(self.region.constant(args))

    def _differentiated(self, prepared: Training, captured: Captured, args: Sequence[Any]) -> list[Any]:
        """Compare outputs and gradients of a call with those of the captured graph in eager; return eager's outputs."""
        with self.session.unrecorded(), unseen():
            weights = self.region.weights(args)
            eager = Eager(captured, self.module, args, weights, machine=self.session.machine)
            with eager.restored():
                eager.judge(*prepared.dry_run(eager.tensors, eager.tangents))
        return eager.outputs


def _versions(args: Sequence[Any]) -> list[Any]:
    """Return the versions and places of the tensors among the arguments of a call; those of inference mode have no
    version."""
    tensors = [item for item in args if isinstance(item, torch.Tensor)]
    return [(-1 if item.is_inference() else item._version, placed(item)) for item in tensors]


def _whole(prepared: Planned) -> Plan:
    """Return the plan of a program; in training the joint plan, without the memory of the halves."""
    return prepared.halves.joint if isinstance(prepared, Training) else prepared.plan
