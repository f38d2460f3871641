"""The captured graphs of a training step's loss, with programs by sizes; and graphs of steps yet to run."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import fx, nn

from ..capture import Captured
from ..capture.ahead import ahead
from ..capture.convert import captured_at
from ..capture.eager_form import in_eager, warn_of_checkpoints
from ..capture.floats import fixable, numbered, numbers, taking
from ..capture.refusals import Untraceable, explain, valued
from ..capture.region import Region
from ..capture.torch_private import FakeTensorMode
from ..errors import CaptureError, PlanError
from ..ir.plan import Plan
from ..runtime.thread_state import alone
from ..session.kernel_selection import KernelExecutor
from ..session.options import Options
from ..session.own_loop import whole
from ..session.program_cache import ProgramCache
from ..session.stages import timed
from . import optimizers
from .formulas import FORMULAS, entries
from .losses import Loss, only_gradients_of, refused, resident_tangent, the_loss
from .updates import Signature, StepSession

log = logging.getLogger("autopar")

Take = Callable[[Signature, Sequence[Any]], Any]
"""Takes a step, given the arguments of its graph; returns the results of the graph."""
BOUND = 16
"""Limit on the sets of parameters for which the programs of one graph are kept."""


class Signatures:
    """A `torch.compile` backend for the loss of one training step, with one shared pool of weight replicas.

    latest: the signature of the last call.

    Raises CaptureError if the optimizer holds parameters that the model lacks, which would never get a gradient; warns
    of parameters that the optimizer lacks.
    """

    def __init__(self, loss: Loss, session: StepSession) -> None:
        self.loss, self.session, self.name = loss, session, type(loss).__name__
        self._bound: list[_Bound] = []
        self.latest: Signature | None = None
        self.take: Take | None = None
        """The function that takes the step of the call in progress."""
        self.resizes = False
        """True if programs for other sizes may serve calls."""
        self.require_known()
        held = set(map(id, self.session.parameters()))
        left = [path for path, one in loss.named_parameters() if one.requires_grad and id(one) not in held]
        if left:
            log.warning(
                "%s: a step computes no gradient of %s, which requires grad but is not in the optimizer (%d in all); "
                "give one optimizer all that is to be trained, or use autopar.compile and your own loop",
                self.name,
                left[0],
                len(left),
            )

    def __call__(self, module: fx.GraphModule, examples: Sequence[Any], **_: Any) -> Callable[..., Any]:
        """Compile a captured loss; return the callable that takes a step for each call, by a program for its sizes.

        It raises CaptureError if the loss cannot be differentiated.
        """
        floats = numbered(module)
        examples = numbers(examples, floats)
        try:
            first = self._bind(self._region(module, examples), examples)
        except Exception as error:
            if fixable(error, module):
                raise
            # Dynamo would wrap an error raised here, so the call raises it instead.
            text = explain(self.name, error)
            refusal = CaptureError(text if self.name in text else f"{self.name}: {text}")

            def refuse(*_: Any) -> NoReturn:
                raise refusal

            return refuse
        eager = in_eager(module)
        if eager is not module and self.session.options.recompute is None:
            warn_of_checkpoints(self.name)
        # The `_Bound`s of this graph, the most recently used first.
        own = [first]

        def made(bound: _Bound, args: Sequence[Any]) -> Signature:
            self.session.options.living(self.session.machine, self.loss)
            try:
                with alone():
                    captured = timed("capture", captured_at, bound.region, args)
            except Untraceable as error:
                raise valued(self.name, module, error) from error
            return Signature(self.session, captured, eager, bound.region.weights(args), args, bound.plans)

        def serve(*args: Any) -> Any:
            if first.region.aliases_mutated(args):
                raise CaptureError(
                    f"{self.name}: a tensor is changed in place that shares its memory with another; pass a copy "
                    "(clone)"
                )
            bound = own[0] if own[0].fits(args) else self._rebound(first.region, own, args)
            sizes = bound.region.sizes(args)
            programs = bound.programs_for(self.groups())
            found = programs.used(sizes)
            if found is None and self.resizes:
                found = programs.resized(sizes) or programs.resize(sizes, args)
            if found is None:
                found = made(bound, args)
                programs.add(sizes, found)
            self.latest = found
            assert self.take is not None
            return bound.region.numbers.fill(self.take(found, args), args)

        return taking(serve, floats)

    def _bind(self, region: Region, args: Sequence[Any]) -> _Bound:
        """Return a region bound to the parameters of a call, without programs."""
        bound = _Bound(self.name, region, args, self.session.options)
        self._bound.append(bound)
        return bound

    def _rebound(self, captured: Region, own: list[_Bound], args: Sequence[Any]) -> _Bound:
        """Return the `_Bound` for a call with other parameters than the last, and put it first in `own`.

        Dynamo calls one graph, `captured`, for all equal layers, and for parameters that replaced others.
        """
        found = next((bound for bound in own if bound.fits(args)), None)
        if found is None:
            self.require_known()
            found = self._bind(captured.of(args, self.loss), args)
            known = {id(parameter) for parameter in self.loss.parameters()}
            for place, bound in enumerate(own[:]):
                if place >= BOUND - 1 or not bound.within(known):
                    own.remove(bound)
                    self._bound.remove(bound)
                    bound.programs.close()
        else:
            own.remove(found)
        own.insert(0, found)
        return found

    def _region(self, module: fx.GraphModule, examples: Sequence[Any]) -> Region:
        """Return the region of a captured loss. Raises CaptureError if it cannot be differentiated."""
        self.require_known()
        the_loss(module, self.name)
        region = Region(module, examples, self.loss, self.loss.arguments)
        for place in region.places:
            if place.kind == "input" and place.fake.requires_grad:
                raise CaptureError(
                    f"{place.path}, of shape {list(place.fake.shape)}, requires grad, and a training step gives "
                    "gradients to parameters alone; .detach() it, or use autopar.compile and your own loop"
                )
        return region

    def groups(self) -> Hashable:
        """Return the optimizer facts that a program of the whole step assumes: groups and their state entries."""
        return tuple(
            (tuple(map(id, group["params"])), bool(group.get("momentum")), bool(group.get("amsgrad")))
            for group in self.session.optimizer.param_groups
        )

    def drop(self, signature: Signature) -> None:
        """Drop the programs of a signature; the next call plans again."""
        for kept in self.kept:
            kept.drop(signature)

    def with_kernels(self, latest: bool = False) -> list[KernelExecutor]:
        """Return the executors that have kernels, or are to have some; with `latest`, of the last calls alone."""
        signatures = [signature for kept in self.kept for signature in kept.values()]
        if latest:
            executors = [each.latest.executor for each in signatures if each.latest is not None]
        else:
            executors = [executor for each in signatures for executor in each.executors]
        return [executor for executor in executors if isinstance(executor, KernelExecutor)]

    @property
    def kept(self) -> list[ProgramCache[Signature]]:
        """The programs of each captured graph of the loss, by sizes."""
        return [bound.programs for bound in self._bound]

    def close(self) -> None:
        """Stop the threads of all programs; the next call starts them again."""
        for kept in self.kept:
            kept.close()

    def require_known(self) -> None:
        """Raise CaptureError if the optimizer holds a parameter that neither the model nor its criterion has."""
        known = {id(parameter) for parameter in self.loss.parameters()}
        for group in self.session.optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    raise CaptureError(
                        f"the optimizer holds a parameter of shape {list(parameter.shape)} (number {index} of its "
                        f"group) that is neither in {self.name} nor in its criterion; build the optimizer from "
                        "model.parameters(), and the step, after the last change of the model, or make the criterion "
                        "an nn.Module that holds the parameter"
                    )


class _Bound:
    """A captured loss bound to parameters, whose optimizer state its programs read and update.

    plans: placements for other sizes, which new programs follow.
    programs: by sizes, for the optimizer's groups of the last call.
    """

    def __init__(self, name: str, region: Region, args: Sequence[Any], options: Options) -> None:
        self.region = region
        self.plans: dict[Hashable, Plan] = {}
        self._new = partial(ProgramCache[Signature], f"the training step of {name}", region, options)
        self.programs = self._new()
        self._groups: Hashable = None
        self._trained = [
            (at, args[at])
            for at, place in enumerate(region.places)
            if place.kind == "state" and place.owner is not region.held and args[at].requires_grad
        ]

    def fits(self, args: Sequence[Any]) -> bool:
        """Return True if a call has the parameters of these programs. Other state may differ from call to
        call."""
        for at, parameter in self._trained:
            if args[at] is not parameter:
                return False
        return not self.region.is_other_module(args) or self.region.rebind(args)

    def within(self, known: set[int]) -> bool:
        """Return True if the ids of all parameters of these programs are `known`."""
        return all(id(parameter) in known for _, parameter in self._trained)

    def programs_for(self, groups: Hashable) -> ProgramCache[Signature]:
        """Return the programs for these groups of the optimizer, by sizes; those for others are dropped."""
        if groups != self._groups:
            self.programs.close()
            self.programs, self._groups = self._new(), groups
        return self.programs


def step_ahead(
    model: nn.Module,
    criterion: Callable[..., Any] | None,
    optimizer: torch.optim.Optimizer | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[Captured, list[torch.Tensor]]:
    """Return the graph of the step that `train_step` takes with `args`, and its input tensors.

    `args`: the inputs of the model, then the targets. Without a criterion they are only the model's inputs,
    and a task stands for the user's own loss between forward and backward. Without an optimizer the step ends
    with the gradients. Optimizer state that does not exist yet counts as existing. Raises CaptureError, and
    PlanError if the update cannot be planned.
    """
    with torch.enable_grad():
        captured, tensors = _captured(model, criterion, args, kwargs)
    if optimizer is None:
        return captured, tensors
    captured = only_gradients_of(
        captured, {id(held) for group in optimizer.param_groups for held in group["params"]}
    )
    parameters = optimizers.trained_parameters(captured)
    ready = _ready(optimizer, parameters)
    reason = optimizers.obstacle(ready, parameters)
    if reason or not parameters:
        raise PlanError(
            f"the step of {type(optimizer).__name__} cannot be planned: "
            f"{reason or 'it holds no parameter that has a gradient'}; plan without optimizer="
        )
    return optimizers.updated(captured, ready), tensors


def _captured(
    model: nn.Module, criterion: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Captured, list[torch.Tensor]]:
    """Return the joint graph of a call, and its input tensors."""
    name = type(model).__name__
    if criterion is None:
        captured, tensors = ahead(model, args, kwargs)
        if not captured.tangents:
            raise CaptureError(
                f"{name}: nothing that comes back requires grad, so that there is nothing to train; set requires_grad "
                "on what is to be trained"
            )
        return whole(captured), tensors
    if kwargs:
        raise CaptureError(
            f"{name}: with a criterion example_inputs are those of a training step, (inputs, *targets); give keywords "
            "of the model as a dict in the place of the inputs"
        )
    loss, refused.text = Loss(model, criterion, None), ""
    try:
        captured, tensors = ahead(loss, args, {}, partial(the_loss, name=name))
    except CaptureError as error:
        if refused.text:
            raise CaptureError(f"{name}: {refused.text}") from None
        raise error
    return resident_tangent(captured, {}), tensors


def _ready(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]) -> torch.optim.Optimizer:
    """Return a copy of the optimizer as after its first step; state that it lacked has no memory."""
    twin = copy.copy(optimizer)
    twin.state = {parameter: dict(held) for parameter, held in optimizer.state.items()}  # type: ignore[assignment]
    groups = {id(held): group for group in optimizer.param_groups for held in group["params"]}
    for parameter in parameters.values():
        group, held = groups.get(id(parameter), {}), twin.state.setdefault(parameter, {})
        wanted = entries(group) if type(optimizer) in FORMULAS and group else ()
        for entry in wanted:
            held.setdefault(entry, _like(parameter))
        if "betas" in group:
            held.setdefault("step", torch.tensor(0.0))
    return twin


def _like(parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same form and device, without memory."""
    if parameter.is_meta:
        return torch.empty_like(parameter)
    with FakeTensorMode():
        return torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
