"""The session of a training step, and its programs for one set of sizes: one computes gradients, one takes the whole
step."""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import fx

from ..capture import Captured
from ..capture.floats import fixable
from ..capture.refusals import Untraceable, explain, valued
from ..capture.region import Region
from ..capture.results import with_sizes
from ..errors import CaptureError, DifferenceError, MemoryCapError
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..planner import replan
from ..runtime.executor import Executor
from ..runtime.thread_state import capture_lock
from ..session.compare import Snapshot
from ..session.compiled_graph import CompiledGraph
from ..session.eager_check import Eager, wanted
from ..session.kernel_selection import KernelExecutor, build_kernels
from ..session.options import Options
from ..session.program_cache import CHECKED, Done, reuse_placement
from ..session.session import Session
from ..session.stages import Prepared, bind, plan_captured, proved, timed
from ..session.would_fit import advised
from . import optimizers
from .losses import Loss, only_gradients_of, resident_tangent, the_loss

log = logging.getLogger("autopar")

Take = Callable[["Signature", Sequence[Any]], Any]


class StepSession(Session):
    """The calls of the loss of one training step, all of which are placed. Raises CaptureError if the optimizer holds
    parameters that the model lacks, which would never get a gradient; warns of parameters that the optimizer lacks.

    by_itself: the reason why the optimizer must step by itself; "" if steps may be one program.
    take: takes the step of the call in progress by a signature, for the arguments of its graph.
    """

    trains = True

    def __init__(
        self,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        clip_norm: float | None,
        by_itself: str,
        machine: Machine,
        options: Options,
    ) -> None:
        super().__init__(CompiledGraph, machine, options, loss, arguments=loss.arguments)
        self.optimizer, self.clip_norm, self.by_itself = optimizer, clip_norm, by_itself
        self.name = type(loss).__name__
        self.take: Take | None = None
        self._groups: Hashable = None
        self.check_state()
        known = set(map(id, self.parameters()))
        others = [path for path, one in loss.named_parameters() if one.requires_grad and id(one) not in known]
        if others:
            log.warning(
                "%s: a step computes no gradient of %s, which requires grad but is not in the optimizer (%d in all); "
                "give one optimizer all that is to be trained, or use autopar.compile and your own loop",
                self.name,
                others[0],
                len(others),
            )

    def parameters(self) -> list[torch.Tensor]:
        """Return all parameters of the optimizer."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def follow_optimizer(self) -> None:
        """Drop all programs if the facts of the optimizer that they assume have changed: its groups and their state
        entries."""
        groups = tuple(
            (tuple(map(id, group["params"])), bool(group.get("momentum")), bool(group.get("amsgrad")))
            for group in self.optimizer.param_groups
        )
        if groups != self._groups:
            for graph in self.graphs:
                graph.forget(*graph.programs)
            self._groups = groups

    def region(self, module: fx.GraphModule, examples: Sequence[Any]) -> Region:
        """Return the region of a captured loss. Raises CaptureError if it cannot be differentiated."""
        self.check_state()
        the_loss(module, self.name)
        region = super().region(module, examples)
        for place in region.places:
            if place.kind == "input" and place.fake.requires_grad:
                raise CaptureError(
                    f"{place.path}, of shape {list(place.fake.shape)}, requires grad, and a training step gives "
                    "gradients to parameters alone; .detach() it, or use autopar.compile and your own loop"
                )
        return region

    def uncaptured(self, graph: CompiledGraph, module: fx.GraphModule, error: Exception) -> None:
        """Have the calls of the graph raise the error, which Dynamo would wrap."""
        if fixable(error, module):
            raise error
        text = explain(self.name, error)
        graph.written = text if self.name in text else f"{self.name}: {text}"

    def check_state(self) -> None:
        """Raise CaptureError if the optimizer holds a parameter that neither the model nor its criterion has."""
        assert self.root is not None
        known = {id(parameter) for parameter in self.root.parameters()}
        for group in self.optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    raise CaptureError(
                        f"the optimizer holds a parameter of shape {list(parameter.shape)} (number {index} of its "
                        f"group) that is neither in {self.name} nor in its criterion; build the optimizer from "
                        "model.parameters(), and the step, after the last change of the model, or make the criterion "
                        "an nn.Module that holds the parameter"
                    )

    def rebinding(self) -> AbstractContextManager[Any]:
        """Return an empty context: steps are taken one by one."""
        return nullcontext()

    def program(self, graph: CompiledGraph, captured: Captured, args: Sequence[Any]) -> Signature:
        """Return the programs for the sizes of a step, which are planned when they are first used."""
        return Signature(self, captured, graph.module, graph.region.weights(args), args, graph.plans)

    def unplanned(self, graph: CompiledGraph, error: Exception) -> None:
        """Raise the error, with the line of the model that no graph can hold."""
        if isinstance(error, Untraceable):
            raise valued(self.name, graph.region.module, error) from error
        raise error

    def plain(self, graph: CompiledGraph, _args: tuple[Any, ...]) -> NoReturn:
        """Raise CaptureError: a step is placed or refused."""
        shared = f"{self.name}: a tensor is changed in place that shares its memory with another; pass a copy (clone)"
        raise CaptureError(graph.written or shared)

    def serve(
        self, graph: CompiledGraph, _key: Hashable, signature: Signature, args: tuple[Any, ...], _new: bool
    ) -> Any:
        """Return the results of the graph in a step."""
        if self.preparing:
            if not signature.checked or signature.whole() is None:
                _ = signature.gradients
            raise Done
        assert self.take is not None
        return graph.region.numbers.fill(self.take(signature, args), args)

    def executed(self, prepared: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs of one call, measured during a recording; before the first, kernels are built."""
        build_kernels(prepared.executor, inputs)
        return super().executed(prepared, inputs)

    @property
    def serving(self) -> str:
        """Kernel libraries of the programs that were called last, each once, separated by ";"; "eager" for PyTorch's
        kernels."""
        latest = [signature.latest for graph in self.graphs for signature in graph.programs.values()]
        executors = [prepared.executor for prepared in latest if prepared is not None]
        return "; ".join({e.serving: None for e in executors if isinstance(e, KernelExecutor)}) or "eager"


class Signature:
    """The programs for calls of one graph of the loss with the same sizes.

    raw: joint graph as captured from `module`, whose arguments are `args`.
    captured: the graph that is placed: `start` holds the gradient of the loss as state, and only trained
    parameters have gradients.
    weights: state that requires grad, by path.
    parameters: those with a gradient, in the order of `Captured.gradients`.
    checked: no further comparison of gradients with eager is due.
    latest: the program of the last call.
    plans: placements for other sizes, which new programs follow.
    """

    def __init__(
        self,
        session: StepSession,
        raw: Captured,
        module: Callable[..., Any],
        weights: Mapping[str, torch.Tensor],
        args: Sequence[Any],
        plans: dict[Hashable, Plan],
    ) -> None:
        # The session holds its signatures: in a circle, memory would wait for the garbage collector.
        self._owner, self.raw, self.module = weakref.ref(session), raw, module
        self.start: dict[str, Any] = {}
        trained = {id(parameter) for parameter in session.parameters()}
        self.weights = {path: tensor for path, tensor in weights.items() if id(tensor) in trained}
        self.captured = only_gradients_of(resident_tangent(raw, self.start), trained)
        self.options = session.options.within(self.captured.graph)
        self.devices = [torch.empty(0, device=tensor.device) for tensor in self.captured.flatten(args)]
        self.count = len(self.captured.graph.outputs) - len(self.captured.gradients)
        self.checked = self.options.check == "never"
        self.refusal = self._too_big = ""
        self.latest: Prepared | None = None
        self._whole: Prepared | None = None
        self._plans = plans
        self._origin: Signature | None = None
        """The signature made for other sizes whose programs this one uses."""
        self._others = 0
        """Number of signatures for other sizes that use this one's programs."""
        self._trained = optimizers.trained_parameters(self.captured)
        self.parameters = list(self._trained.values())

    @property
    def _session(self) -> StepSession:
        session = self._owner()
        assert session is not None
        return session

    @cached_property
    def gradients(self) -> Prepared:
        """The program that computes outputs and gradients without changing the weights."""
        if self._origin is not None:
            return self._origin.gradients.resized(self.captured)
        return self._placed("gradients", self.captured)

    def whole(self) -> Prepared | None:
        """Return the program of the whole step, made on first use; None, with a reason in `refusal`, if the optimizer
        must step by itself."""
        optimizer, origin = self._session.optimizer, self._origin
        self.refusal = (
            self._session.by_itself or self._too_big or optimizers.obstacle(optimizer, self._trained)
        )
        if self.refusal or self._whole is not None:
            return None if self.refusal else self._whole
        if origin is not None:
            known = origin.whole()
            if known is None or not (known.resizable and known.keeps_caps(self.captured.sizes)):
                self.refusal = origin.refusal or "the program of the whole step is for other sizes"
                return None
            self._whole = known.resized(self.captured)
            return self._whole
        try:
            updated = optimizers.updated(self.captured, optimizer, clip_norm=self._session.clip_norm)
            self._whole = self._placed("whole", updated)
        except MemoryCapError as error:
            self._too_big = self.refusal = f"second buffers for the new weights do not fit: {error}"
            log.warning(
                "%s: %s steps by itself: %s", self.captured.graph.name, type(optimizer).__name__, error
            )
        return self._whole

    @property
    def resizable(self) -> bool:
        """True if its programs also compute steps of other sizes."""
        return all(program.resizable for program in self._programs())

    def keeps_caps(self, sizes: Sequence[float]) -> bool:
        """Return True if its programs surely keep every memory cap in steps of other sizes (`Captured.sizes`)."""
        return all(program.keeps_caps(sizes) for program in self._programs())

    def _programs(self) -> tuple[Prepared, ...]:
        whole = self.whole()
        return (self.gradients,) if whole is None else (self.gradients, whole)

    @property
    def plan(self) -> Plan:
        """The plan of the whole step; while there is none, that of the gradients."""
        return (self._whole or self.gradients).plan

    @property
    def any_size(self) -> bool:
        """True if its kernels serve calls of all sizes, or may do so once they are built."""
        return any(executor.any_size for executor in self.executors)

    def resized(self, source: Captured) -> Signature:
        """Return a signature for the sizes of `source` with the programs of this one. The first `CHECKED` of
        them are compared with eager."""
        other = copy.copy(self)
        vars(other).pop("gradients", None)
        self._others += 1
        other._origin, other._whole, other.latest = self, None, None
        other.captured, other.raw = source, with_sizes(self.raw, source)
        if self.options.check == "first":
            other.checked = self._others > CHECKED
        return other

    def take_step(self, args: Sequence[Any], whole: Prepared) -> list[Any]:
        """Take one whole step; return the results of the graph."""
        self.latest = whole
        outputs = self._session.executed(whole, self.captured.flatten(args))
        optimizers.committed(self._session.optimizer, self._trained.values())
        return self._results(outputs)

    def _placed(self, kind: str, captured: Captured) -> Prepared:
        machine = self._session.machine

        def planned(machine: Machine) -> Any:
            return proved(plan_captured(captured, machine, self.options, self.devices))

        try:
            plan = timed("plan", self._planned, kind, captured)
            self._plans.setdefault(kind, plan)
            return bind(captured, plan, self._session.pool, self.options.kernels, changing=True)
        except MemoryCapError as error:
            raise advised(error, machine, planned) from None

    def _planned(self, kind: str, captured: Captured) -> Plan:
        changing, ways = captured, [(captured, self.options)]
        if not captured.graph.carried:
            # The optimizer changes all weights after each call that computes gradients alone.
            weights = tuple(target for target, _ in captured.gradients)
            changing = replace(captured, graph=replace(captured.graph, changing=weights))
            ways.insert(0, (changing, self.options))
        if kind in self._plans:
            # A placement that fits at one size may not fit at another.
            ways.insert(0, (changing, reuse_placement(self.options, self._plans[kind])))
        for source, options in ways:
            try:
                return refreshed(plan_captured(source, self._session.machine, options, self.devices))
            except MemoryCapError as error:
                refusal = error
        raise refusal

    def differentiated(self, args: Sequence[Any]) -> tuple[list[Any], list[torch.Tensor]]:
        """Run one forward and backward; return the results of the graph and the gradients, each in its own memory.

        In the first call, eager runs before, on snapshots; if the results differ, raises DifferenceError with buffers
        restored.
        """
        eager = None if self.checked else self._eager(args)
        self.latest = self.gradients
        # While alone, no kernels are built: later steps have other programs than the one that is checked.
        with capture_lock() if eager is not None else nullcontext():
            results = self._session.executed(self.gradients, self.captured.flatten(args))
        if eager is not None:
            gradient_of = dict(zip((target for target, _ in self.captured.gradients), results[self.count :]))
            outputs = [value for value in results[: self.count] if isinstance(value, torch.Tensor)]
            try:
                with capture_lock():
                    eager.judge(outputs, [gradient_of.get(target) for target, _ in self.raw.gradients])
            except DifferenceError:
                with eager.restored():
                    raise
        self.checked = self.options.check != "always"
        with torch.no_grad():
            gradients = [
                _hooked(parameter, as_grad(gradient, parameter, shared))
                for gradient, parameter, shared in zip(results[self.count :], self.parameters, self._shared)
            ]
        return self._results(results[: self.count]), gradients

    def _results(self, outputs: Sequence[Any]) -> list[Any]:
        """Return the results of Dynamo's graph, detached, since they may include parameters."""
        results: list[Any] = self.captured.rebuild(
            [value.detach() if isinstance(value, torch.Tensor) else value for value in outputs]
        )
        return results

    @contextmanager
    def undone(self, args: Sequence[Any]) -> Iterator[None]:
        """Restore buffers and arguments changed by a call if the block raises."""
        snapshot = Snapshot(self.captured, args) if self.captured.graph.mutated else None
        try:
            yield
        except BaseException:
            with snapshot.restored() if snapshot is not None else nullcontext():
                raise

    def _eager(self, args: Sequence[Any]) -> Eager | None:
        """Return eager's result for this call; None if the user's options make it differ."""
        plan = self.gradients.plan
        if not wanted(plan, plan, self.captured, self.options):
            return None
        ((tangent, _),) = self.raw.tangents
        with capture_lock():
            start = {tangent: self.start["tangent"]}
            return Eager(self.raw, self.module, args, self.weights, start, self._session.machine)

    @cached_property
    def _shared(self) -> list[bool]:
        """For each gradient, whether it may share memory with another value."""
        graph = self.captured.graph
        storages = {
            graph.value[name].storage for name in (*graph.inputs, *graph.state, *graph.outputs[: self.count])
        }
        shared = []
        for _, name in self.captured.gradients:
            storage = graph.value[name].storage
            shared.append(storage in storages)
            storages.add(storage)
        return shared

    @property
    def executors(self) -> list[Executor | KernelExecutor]:
        """Executors of the programs that were called."""
        programs = (vars(self).get("gradients"), self._whole)
        return [prepared.executor for prepared in programs if prepared is not None]

    def close(self) -> None:
        """Stop the threads of its programs."""
        for executor in self.executors:
            executor.close()


def refreshed(plan: Plan) -> Plan:
    """Return a plan whose changed weights are transferred before each call, with the placement of one that counts these
    transfers."""
    graph = plan.costed.graph
    costed = replace(plan.costed, graph=replace(graph, changing=()))
    if not any(transfer.value in graph.refreshed for transfer in plan.transfers):
        return replace(plan, costed=costed)
    rested = replan(costed, plan)
    others = tuple(each for each in rested.candidates if each.policy != rested.policy)
    return replace(rested, policy=plan.policy, singles=plan.singles, candidates=others)


def _hooked(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient after the parameter's own hooks, called as in autograd."""
    for hook in tuple((parameter._backward_hooks or {}).values()):
        result = hook(gradient)
        gradient = gradient if result is None else result
    return gradient


def as_grad(gradient: torch.Tensor, parameter: torch.Tensor, shared: bool) -> torch.Tensor:
    """Return a gradient as autograd would leave it: in its own memory, with the layout of the parameter."""
    if shared or gradient.stride() != parameter.stride():
        return torch.empty_like(parameter).copy_(gradient)
    return gradient
