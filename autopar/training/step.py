"""A whole training step on all devices, as returned by `autopar.train_step`."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from typing import Any, NoReturn

import torch
from torch import nn

from ..capture import autocast as casting
from ..capture.dynamo_private import TorchDynamoException, compiled
from ..capture.refusals import no_graph
from ..capture.torch_private import forget_unscaled, set_grad_mode, transformed
from ..capture.trace_state import leave_inference_modes
from ..costs.pins import unused
from ..errors import AutoparError, CaptureError, DifferenceError
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..ir.program import Program
from ..ir.timeline import Theme
from ..runtime.record import Recording
from ..session.options import Options
from ..session.stages import Prepared
from ..system.text import wrapped
from .facts import step_facts
from .group import AveragingGroup
from .losses import Loss, in_rule, refused
from .updates import Signature, StepSession, Take


class TrainStep:
    """`loss = step(inputs, *targets)`: forward, backward, sum of gradients, clipping and the optimizer's update.

    Equivalent to the plain loop, `loss.backward(); clip; optimizer.step(); optimizer.zero_grad()`: parameters, buffers
    and optimizer state are updated in the user's own objects. Parameters that the optimizer does not hold get no
    gradient. A step that raises an error leaves all of them, and each `.grad`, unchanged, unless the optimizer's own
    `step()` raises, which may have updated some of them. An interrupt (KeyboardInterrupt, or what another signal
    handler raises) may fall between two updates, as in the plain loop: continue from a checkpoint.

    inputs: arguments of the model; a tuple is unpacked as positional arguments, a dict as keywords.
    targets: arguments of the criterion after the model's output.
    With `step_fn` it is `step(*batch)`, for `step_fn(model, *batch)`.

    Returns the criterion's result, detached, on the device of the first input: the loss, a tuple that begins with it,
    or a dict with "loss"; only the loss is differentiated.

    `torch.compile` captures model and loss as one graph, and again when an assumption changes (module modes, dtypes,
    constants, requires_grad). From the second size of an axis on, one graph serves all sizes, and usually one
    program does. The first call of a program, and of the first few other sizes that it serves, computes
    gradients, compares them with eager, and lets the optimizer itself step. Later calls are one program if
    the optimizer allows it.

    Random numbers: a seed gives the same losses in every run. On the CPU, its lanes and emulated devices,
    they equal the plain loop's. Accelerators draw from their own generators, in program order.

    With a process group, gradients are averaged over its ranks once a step, before clipping; the loss is that of this
    rank's rows. Every rank takes the same number of steps; `accumulate` does not communicate.

    Raises CaptureError, PlanError, MemoryCapError or ProgramError before a run, RunError or DifferenceError from it.
    """

    def __init__(
        self,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        machine: Machine,
        options: Options,
        *,
        clip_norm: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        autocast: torch.dtype | None = None,
        process_group: Any = None,
    ) -> None:
        self.loss, self.optimizer, self.machine, self.options = loss, optimizer, machine, options
        self.clip_norm, self.scaler, self.autocast = clip_norm, scaler, autocast
        agreed = step_facts(loss.function, clip_norm, scaler, autocast)
        self.group, by_itself = None, ""
        if process_group is not None:
            self.group = AveragingGroup(process_group, loss, optimizer, agreed)
            by_itself = f"gradients are averaged over {self.group}"
        elif self._scaling:
            by_itself = "the scaler decides whether to step"
        self._session = StepSession(loss, optimizer, clip_norm, by_itself, machine, options)
        self._loss = compiled(loss, self._session, True, None)
        self._lock, self._adding = threading.RLock(), False
        self._signature = inspect.signature(loss.forward)

    def __call__(self, *batch: Any, accumulate: bool = False, **named: Any) -> Any:
        """Take a step; return the loss.

        With `accumulate`, add gradients to `.grad` and update nothing. The next step without `accumulate`
        uses them too, like two `backward` calls before `optimizer.step()`. Raises TypeError for other keywords.
        """
        if named:
            raise TypeError(
                f"step() takes a batch by position, and got {', '.join(named)}=; give keywords of the model as a dict "
                f"in the place of the inputs, step({{..., {next(iter(named))!r}: ...}}, y)"
            )
        adds = accumulate or self._adding

        def take(signature: Signature, args: Sequence[Any]) -> Any:
            if adds:
                with signature.undone(args):
                    return self._accumulated(signature, args, anew=False)
            return self._step(signature, args)

        with self._lock:
            try:
                return self._called(batch, take)
            except CaptureError as error:
                if isinstance(error.__cause__, TorchDynamoException):
                    self.loss.raise_own(self._arguments(batch), self.autocast)
                raise

    def _called(self, batch: tuple[Any, ...], take: Take | None) -> Any:
        """Return the result of the loss function, whose graph is served by `take`."""
        batch, name, refused.text = self._arguments(batch), type(self.loss).__name__, ""
        grad_mode = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(True)
            self._session.take = take
            self._session.follow_optimizer()
            with casting.on(batch, self.autocast):
                return self._loss(*batch)
        except TorchDynamoException as error:
            if refused.text:
                raise CaptureError(f"{name}: {refused.text}") from None
            whose = self.loss.called if in_rule(getattr(error, "real_stack", None) or ()) else name
            raise no_graph(whose, error, "use autopar.compile(model, devices) and your own loop") from error
        except BaseException as error:
            leave_inference_modes(error)
            raise
        finally:
            # Not by `torch.enable_grad()`, which an interrupt may leave before it has restored the mode.
            set_grad_mode(grad_mode)
            self._session.take = None

    def _step(self, signature: Signature, args: Sequence[Any]) -> Any:
        """Take a step in one program if possible; otherwise compute gradients, add those in `.grad`, and call
        torch's clipping, scaler and optimizer."""
        waits = any(parameter.grad is not None for parameter in self._session.parameters())
        whole = signature.whole() if signature.checked and not waits else None
        if whole is not None:
            return signature.take_step(args, whole)
        with signature.undone(args):
            result = self._by_itself(signature, args)
        self.optimizer.zero_grad(set_to_none=True)
        return result

    def _by_itself(self, signature: Signature, args: Sequence[Any]) -> Any:
        """Take a step by the optimizer itself, with gradients averaged over the group; if it raises, restore each
        `.grad`."""
        before = [(parameter, parameter.grad) for parameter in self._session.parameters()]
        try:
            result = self._accumulated(signature, args, anew=True)
            if self.group is not None:
                self.group.average()
            # An optimizer may multiply matrices; autocast is only for the forward.
            with casting.off({parameter.device.type for parameter, _ in before}):
                self._update()
        except BaseException:
            for parameter, waiting in before:
                parameter.grad = waiting
            if self.scaler is not None:
                forget_unscaled(self.scaler, self.optimizer)
            raise
        return result

    def _accumulated(self, signature: Signature, args: Sequence[Any], *, anew: bool) -> Any:
        """Return the result of a call; add its gradients to `.grad`, in place or as a new tensor (`anew`).

        Then call the parameters' post-accumulate hooks, as autograd does.
        """
        if self.scaler is not None and self._scaling:
            # The backward starts from the scaler's scale.
            start = signature.start["tangent"]
            with torch.no_grad():
                start.copy_(self.scaler.scale(torch.ones_like(start)))
        try:
            result, gradients = signature.differentiated(args)
        except DifferenceError:
            self._session.forget()
            raise
        with torch.no_grad():
            for parameter, gradient in zip(signature.parameters, gradients):
                waiting = parameter.grad
                if waiting is None:
                    parameter.grad = gradient
                elif anew:
                    parameter.grad = gradient.add_(waiting)
                else:
                    waiting.add_(gradient)
            for parameter in signature.parameters:
                for hook in tuple((parameter._post_accumulate_grad_hooks or {}).values()):
                    hook(parameter)
        return result

    @property
    def _scaling(self) -> bool:
        return self.scaler is not None and self.scaler.is_enabled()

    def _update(self) -> None:
        """Unscale, clip and step, as the plain loop does after the backward."""
        scaler = self.scaler
        if self.clip_norm is not None:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            # The program of the whole step also adds the norms in the order of the model.
            known = {id(parameter) for parameter in self._session.parameters()}
            trained = [parameter for parameter in self.loss.parameters() if id(parameter) in known]
            nn.utils.clip_grad_norm_(trained, self.clip_norm)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()

    def _arguments(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a call; mappings that are not dicts become dicts."""
        if torch.is_inference_mode_enabled():
            raise CaptureError(
                "a training step inside torch.inference_mode() cannot update anything; leave it"
            )
        if active := transformed():
            raise CaptureError(f"a training step cannot be taken while {active} is active; leave it")
        try:
            self._signature.bind(*batch)
        except TypeError as error:
            raise CaptureError(f"{type(self.loss).__name__}: step() {error}") from None
        return tuple(
            dict(item) if isinstance(item, Mapping) and not isinstance(item, dict) else item for item in batch
        )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the block, accumulate in every call: `with step.no_sync(): step(x, y)`."""
        outer, self._adding = self._adding, True
        try:
            yield
        finally:
            self._adding = outer

    def prepare(self, *batch: Any) -> None:
        """Capture, plan and lower for these arguments without running."""
        with self._lock, self._session.planning():
            self._called(batch, None)

    def ready(self) -> Signature:
        """Return the last signature. Raises AutoparError if nothing has been planned."""
        if self._session.latest is None:
            raise AutoparError("nothing is planned yet: take a step, or call step.prepare(x, y)")
        signature: Signature = self._session.latest[1]
        return signature

    def record(self) -> AbstractContextManager[Recording]:
        """Measure every call within the block: `with step.record() as timeline: step(x, y)`."""
        return self._session.record()

    @property
    def module(self) -> nn.Module:
        """The plain model, always up to date."""
        return self.loss.model

    @property
    def plan(self) -> Plan:
        """The plan of the last signature: of the whole step, or of the gradients if the optimizer steps by itself.
        `Plan.peaks` explains how it is compared with caps."""
        return self._shown().plan

    @property
    def program(self) -> Program:
        """The program of `plan`."""
        return self._shown().program

    def _shown(self) -> Prepared:
        """Return the program of a step with the last signature."""
        ready = self.ready()
        with self._lock:
            return ready.whole() or ready.gradients

    def explain(self, *names: str) -> str:
        """Return the report on the step and how the weights are updated; without a plan, why there is none.

        names: sections, or names that a report or a picture shows, as in `Plan.explain`.
        """
        from ..view import Report, explain

        try:
            plan = self.plan
        except AutoparError as reason:
            return Report(wrapped(str(reason)))
        timeline = self._session.timeline
        recorded = timeline if timeline and timeline.title == plan.costed.graph.name else None
        notes = [*unused([self.ready().captured.graph], self.options.pins), self._updated()]
        kernels = [each.selection.table for each in self._session.with_kernels() if each.selection.table]
        return explain(plan, recorded, None, notes, *names, kernels=kernels, serving=self.serving)

    def _updated(self) -> str:
        """Return one sentence on how the weights are updated, and why."""
        kind = type(self.optimizer).__name__
        if self.ready().whole() is None:
            return f"updates: {kind}.step() after the last backward, since {self.ready().refusal}"
        when = "as soon as its gradient is whole"
        if self.clip_norm is not None:
            when = "once all gradients are whole, since their norm clips them"
        if self.plan.costed.graph.flat:
            when += " (small ones in buckets)"
        program, buffer = self.program, self.program.buffer
        if any(buffer[buffer[new].storage].kind == "given" for new, _ in program.updates):
            how = "large ones in place after everything else, the others into buffers that are written back at the end"
            return f"updates: part of the program, {how}"
        return f"updates: part of the program, each weight {when}, into second buffers that take its place at the end"

    def draw(
        self, path: str | PathLike[str], *, width: float | None = None, theme: Theme | None = None
    ) -> None:
        """Draw the placed step as `.html`, `.svg`, `.png` or `.pdf`. For `.svg`, `.png` and `.pdf`, `width` in
        pixels and `theme` (`light` or `dark`) can be chosen."""
        from ..view import draw

        draw(self.plan, path, width=width, theme=theme)

    def refresh(self) -> None:
        """Copy parameters to their devices again in the next call. Needed only after writes through `.data`
        or a numpy view, which leave no trace in a tensor."""
        self._session.pool.forget()

    @property
    def serving(self) -> str:
        """Kernel libraries that serve the programs of a step, each once, separated by ";"; "eager" for PyTorch's
        kernels."""
        return self._session.serving

    def close(self) -> None:
        """Stop the worker threads of every plan. The next call starts them again."""
        self._session.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a training step can be neither pickled nor copied: it holds threads and streams. Save "
            "step.module.state_dict(), optimizer.state_dict() and torch.get_rng_state(), then build the step again"
        )

    def __repr__(self) -> str:
        label = f" [{self.machine.label}]" if self.machine.label else ""
        kind = type(self.optimizer).__name__
        return f"autopar.train_step({self.module!r}, {kind}, [{', '.join(self.machine.device)}]){label}"
