"""The session of a compiled model: its calls by programs for inference or for the user's own training loop, compared
with eager at first; as written where there is no program."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import fx, nn

from ..capture import Captured
from ..capture import autocast as casting
from ..capture.captured import restore_strides
from ..capture.convert import captured_at
from ..capture.eager_form import unprinted
from ..capture.floats import fixable
from ..capture.refusals import Untraceable, explain
from ..capture.region import Region
from ..capture.torch_private import pytree
from ..errors import AutoparError, MemoryCapError, PlanError
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..runtime.autograd_bridge import EagerCall, memory_key
from ..runtime.thread_state import capture_lock_and, no_saved_tensor_hooks
from .compare import Snapshot
from .compiled_graph import CompiledGraph
from .eager_check import Eager, wanted
from .kernel_selection import build_kernels
from .model_check import CALL
from .options import Options
from .own_loop import Training, plan_training
from .program_cache import CHECKED, Done, reuse_placement
from .session import Session
from .stages import Prepared, plan_captured, prepare, proved
from .would_fit import advised

log = logging.getLogger("autopar")

Planned: TypeAlias = Prepared | Training

TWICE = "its gradients are differentiated once more"


class ModelSession(Session):
    """The calls of a compiled model or function.

    `runs_as_written`: graphs of which only the user's code is right are refused, so that Dynamo runs the code.
    """

    def __init__(
        self,
        machine: Machine,
        options: Options,
        root: nn.Module | None = None,
        user_plan: Plan | None = None,
        arguments: Sequence[str] = (),
        runs_as_written: bool = False,
    ) -> None:
        super().__init__(CompiledGraph, machine, options, root, user_plan, arguments)
        self.runs_as_written = runs_as_written

    def uncaptured(self, graph: CompiledGraph, module: fx.GraphModule, error: Exception) -> None:
        """Have the graph run as written."""
        if self.runs_as_written and fixable(error, module):
            raise error
        # Dynamo's own graph is a correct fallback, unless it is malformed: `lint` then raises, and Dynamo
        # runs the frame as the user wrote it.
        module.graph.lint()
        self._as_written(graph, explain(graph.name, error))

    def _as_written(self, graph: CompiledGraph, why: str) -> None:
        """Have a graph run as written from now on, on the current device."""
        known = any((each.name, each.written) == (graph.name, why) for each in self.graphs)
        graph.written = why
        log.log(
            logging.DEBUG if known else logging.WARNING, "%s runs as written, not placed: %s", graph.name, why
        )

    def unplanned(self, graph: CompiledGraph, error: Exception) -> None:
        """Raise the error if it is the user's, or have the graph run as written."""
        if isinstance(error, Untraceable):
            self._as_written(graph, str(error))
        elif isinstance(error, AutoparError):
            raise error
        elif isinstance(error, ArithmeticError):
            # Python cannot compute a number of this call either, such as a quotient, and raises the user's error.
            log.info("%s: a call runs as written: %s", graph.name, error)
        else:
            self._as_written(graph, f"{type(error).__name__}: {error}; a fault of autopar, please report it")

    def plain(self, graph: CompiledGraph, args: tuple[Any, ...]) -> Any:
        """Return the results of a call by Dynamo's graph."""
        if self.preparing:
            raise Done
        return unprinted(graph.module)(*args)

    def serve(
        self, graph: CompiledGraph, key: Hashable, prepared: Planned, args: tuple[Any, ...], new: bool
    ) -> Any:
        """Return the results of a call, compared with eager if that is due."""
        if prepared.executor.due:
            # Before the locks of a check or of changing state: it takes Dynamo's own.
            build_kernels(prepared.executor, graph.region.inputs(args))
        if self.preparing:
            graph.unchecked.add(key)
            raise Done
        if new or self.options.check == "always" or key in graph.unchecked:
            graph.unchecked.discard(key)
            if self._wants_check(graph, prepared):
                return self._checked(graph, key, prepared, args)
        if prepared.captured.stateful:
            with self.lock:
                return self.run(graph, prepared, args)
        return self.run(graph, prepared, args)

    def _wants_check(self, graph: CompiledGraph, prepared: Planned) -> bool:
        options = self.options
        if options.check == "never" or (options.check != "always" and graph.right >= CHECKED):
            return False
        runs = prepared.halves.forward.plan if isinstance(prepared, Training) else prepared.plan
        return wanted(_whole(prepared), runs, prepared.captured, options)

    def program(self, graph: CompiledGraph, captured: Captured, args: Sequence[Any]) -> Planned:
        """Return a new program for the sizes of a call, placed like those for other sizes."""
        # The pins were checked against the whole model.
        asked = self.options if self.root is None else self.options.within(captured.graph)
        known = graph.plans.get("call")
        options = asked if known is None else reuse_placement(asked, known)
        try:
            prepared = self._prepared(graph, captured, options, args)
        except MemoryCapError:
            try:
                if known is None:
                    raise
                # A placement that fits at one size may not fit at another.
                prepared = self._prepared(graph, captured, asked, args)
            except MemoryCapError as refusal:
                raise self._advised(graph, refusal, captured, asked, args) from None
        except PlanError as error:
            if not (graph.part or self.latest) or options.split in (None, "auto"):
                raise
            # The user asked for a split of the model; not every part between graph breaks has a batch, and where
            # that of an earlier call could be split, this one is too short.
            log.warning("%s of %s stays whole: %s", "a part" if graph.part else "a batch", graph.name, error)
            prepared = self._prepared(graph, captured, replace(options, split=None), args)
        graph.plans.setdefault("call", _whole(prepared))
        return prepared

    def _prepared(
        self, graph: CompiledGraph, captured: Captured, options: Options, args: Sequence[Any]
    ) -> Planned:
        user_plan = self._user_plan_for(graph.name, training=bool(captured.tangents))
        if not captured.tangents:
            return prepare(captured, self.machine, options, tuple(args), user_plan, self.pool)
        tensors = captured.flatten(args)
        joint, halves = plan_training(captured, self.machine, options, tensors, user_plan)
        return Training(joint, halves, self)

    def _user_plan_for(self, name: str, *, training: bool) -> Plan | None:
        """Return the user's plan if it is for calls of this kind: for training, a plan with a backward."""
        user_plan = self.user_plan
        if user_plan is None or training == any(
            task.phase == "backward" for task in user_plan.costed.graph.tasks
        ):
            return user_plan
        mine, other = ("with", "without") if training else ("without", "with")
        log.warning(
            "plan= is a plan %s a backward, this call of %s is one %s: a new plan is made", other, name, mine
        )
        return None

    def _differentiable(
        self, prepared: Training, inputs: Sequence[Any], written: EagerCall | None
    ) -> list[Any]:
        """Return the outputs of one training call, measured during a recording; `written` is the call in eager."""
        recording = self.recording
        if recording and recording.calls:
            # By now the backward of the previous call has ended.
            self.keep_up(prepared, recording.calls[-1])
        outputs = prepared.outputs(inputs, written)
        if recording and recording.calls:
            self.timeline = recording.calls[-1]
        return outputs

    def _advised(
        self,
        graph: CompiledGraph,
        error: MemoryCapError,
        captured: Captured,
        options: Options,
        args: Sequence[Any],
    ) -> MemoryCapError:
        user_plan = self._user_plan_for(graph.name, training=bool(captured.tangents))
        tensors = captured.flatten(args)

        def planned(machine: Machine) -> Any:
            if captured.tangents:
                return plan_training(captured, machine, options, tensors, user_plan)
            return proved(plan_captured(captured, machine, options, tensors, user_plan))

        return advised(error, self.machine, planned)

    def run(self, graph: CompiledGraph, prepared: Planned, args: Sequence[Any]) -> Any:
        """Return the results of one call."""
        captured = prepared.captured
        inputs = graph.region.inputs(args)
        if isinstance(prepared, Training):
            outputs = self._differentiable(prepared, inputs, self._written(graph, prepared, args))
        else:
            outputs = self.executed(prepared, inputs)
            restore_strides(outputs, captured.strides, captured.home.type)
        for index, name in captured.same:
            # Where eager returns an argument or a parameter itself, return the same object.
            at: tuple[Any, Any] = captured.state.get(name) or (inputs, captured.graph.inputs.index(name))
            outputs[index] = at[0][at[1]]
        return graph.region.numbers.fill(captured.rebuild(outputs), args)

    def _written(self, graph: CompiledGraph, prepared: Training, args: Sequence[Any]) -> EagerCall | None:
        """Return the call in eager, to be run again for a second derivative; None if that would not give the same
        result."""
        if not prepared.repeatable or casting.anywhere():
            return None
        unplaced, before = self.unplaced, _versions(args)

        def written(others: Mapping[int, torch.Tensor]) -> list[torch.Tensor] | None:
            if _versions(args) != before:
                return None
            unplaced[TWICE] = unplaced.get(TWICE, 0) + 1
            leaves = [others.get(id(item), item) for item in args]
            with casting.off({item.device.type for item in leaves if isinstance(item, torch.Tensor)}):
                results = unprinted(graph.module)(*leaves)
            return [item for item in results if isinstance(item, torch.Tensor)]

        return written

    def _checked(self, graph: CompiledGraph, key: Hashable, prepared: Planned, args: Sequence[Any]) -> Any:
        try:
            with capture_lock_and(self.lock):
                call = CALL.get() if graph.whole else None
                captured = prepared.captured
                if key not in graph.programs:
                    # The program serves other sizes than its own: capture the graph of these for eager.
                    exact = captured_at(graph.region, args, False)
                    captured = replace(exact, strides=captured.strides)
                eager: list[Snapshot] = []
                before = _state(graph.region, args)
                if call is not None and call.answer is None:
                    # The model itself answers the user's call, for `judge` to compare with the placed answer.
                    eager.append(Snapshot(captured, args))
                    with self.unrecorded(), no_saved_tensor_hooks():
                        call.run_model(eager[0], partial(_doubt, graph, key))
                    before = before if _state(graph.region, args) == before else None
                reference = None
                if isinstance(prepared, Training):
                    outputs = self._differentiated(graph, prepared, captured, args)
                else:
                    eager.append(reference := Eager(captured, graph.module, args, machine=self.machine))
                    outputs = reference.outputs
                output = self.run(graph, prepared, args)
                # Other threads may change the model, or draw numbers, during the check.
                changed = before is None or _state(graph.region, args) != before
                if changed or (key not in graph.disturbed and not all(each.comparable() for each in eager)):
                    graph.unchecked.add(key)
                    if not changed:
                        graph.disturbed.add(key)
                    if call is not None:
                        call.answer = None
                else:
                    if reference is not None:
                        reference.judge(pytree.tree_leaves(output))
                    if call is not None:
                        call.compared(output, outputs)
                    graph.right += 1
                return output if reference is None else reference.with_eager_strides(output)
        except AutoparError:
            # A program that failed its first check must be checked again.
            graph.forget(key)
            raise

    def _differentiated(
        self, graph: CompiledGraph, prepared: Training, captured: Captured, args: Sequence[Any]
    ) -> list[Any]:
        """Compare outputs and gradients of a call with those of the captured graph in eager; return eager's outputs."""
        with self.unrecorded(), no_saved_tensor_hooks():
            weights = graph.region.weights(args)
            eager = Eager(captured, graph.module, args, weights, machine=self.machine)
            with eager.restored():
                eager.judge(*prepared.dry_run(eager.tensors, eager.tangents))
        return eager.outputs


def _doubt(graph: CompiledGraph, key: Hashable) -> None:
    """Compare the next call of these sizes with eager again."""
    graph.right = 0
    graph.unchecked.add(key)


def _state(region: Region, args: Sequence[Any]) -> list[Any] | None:
    """Return a key of the state of a call; None if the model holds other state by now."""
    return None if region.is_other_module(args) else _versions(region.constant(args))


def _versions(args: Sequence[Any]) -> list[Any]:
    """Return the versions and places of the tensors among the arguments of a call; those of inference mode have no
    version."""
    tensors = [item for item in args if isinstance(item, torch.Tensor)]
    return [(-1 if item.is_inference() else item._version, memory_key(item)) for item in tensors]


def _whole(prepared: Planned) -> Plan:
    """Return the plan of a program; in training the joint plan, without the memory of the halves."""
    return prepared.halves.joint if isinstance(prepared, Training) else prepared.plan
