"""A whole training step on every device: what `autopar.train_step` returns."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from os import PathLike
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture import autocast as casting
from ..capture.dynamo_private import TorchDynamoException, compiled
from ..capture.refusals import no_graph
from ..capture.torch_private import forget_unscaled
from ..costs.pins import unused
from ..errors import AutoparError, CaptureError, DifferenceError
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..ir.program import Program
from ..pipeline.calls import Done
from ..pipeline.options import Options
from ..pipeline.stages import Prepared
from ..runtime.record import Recorded
from .group import Group
from .losses import Loss, in_rule, refused
from .signatures import Signatures, Take
from .updates import Signature


class TrainStep(Recorded):
    """`loss = step(inputs, *targets)`: forward, backward, the sum of gradients, clipping and the optimizer's update.

    It does what the plain loop does, `loss.backward(); clip; optimizer.step(); optimizer.zero_grad()`, and leaves
    what that leaves: parameters, buffers and optimizer state in the user's own objects. A step that raises leaves
    them, and each `.grad`, as they were; where the optimizer's own `step()` is what raises, it alone has parameters
    and state, and may have updated some.

    inputs: what the model is called with; a tuple is spread over its arguments, a dict over its keywords.
    targets: what the criterion is called with after the model's output.
    With `step_fn` it is `step(*batch)`, for `step_fn(model, *batch)`.

    Returns what the criterion returns, detached, on the device of the first input: the loss, or a tuple that begins
    with it, or a dict that has it under "loss"; the loss alone is differentiated.

    `torch.compile` captures model and loss as one graph, and again where what it took for fixed changes (modes of the
    modules, dtypes, constants, what requires grad); from the second size of an axis on one graph serves all sizes. A
    program is made for each set of sizes. The first call of each gives gradients, which are held against eager, and
    lets the optimizer itself step; later ones are one program where the optimizer allows it.

    Random numbers: a seed gives the same losses run after run, and the plain loop's on the CPU, its lanes and
    stand-ins. Accelerators draw from their own generators, in the order of the program.

    With a process group, gradients are averaged over its ranks once a step, before they are clipped; the loss is that
    of this rank's own rows. Every rank takes the same number of steps; `accumulate` asks nothing of the others.

    Raises CaptureError, PlanError, MemoryCapError or ProgramError before a run, RunError and DifferenceError from it.
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
        self._signatures = Signatures(loss, optimizer, machine, options)
        self.group = None if process_group is None else Group(process_group, loss, optimizer)
        self._loss = compiled(loss, self._signatures, True, None)
        self._lock = threading.RLock()
        self._adding = False

    def __call__(self, *batch: Any, accumulate: bool = False) -> Any:
        """Take a step. With `accumulate` gradients are added to `.grad` and nothing is updated; the next step without
        it uses them with its own, as `backward` twice before `optimizer.step()` does."""
        adds = accumulate or self._adding

        def take(signature: Signature, args: Sequence[Any]) -> Any:
            if adds:
                with signature.undone(args):
                    return self._accumulated(signature, args, stale=False, anew=False)
            return self._stepped(signature, args)

        with self._lock:
            if self.options.verify_replicas:
                self._signatures.pool.require_verified("step.refresh()")
            return self._called(batch, take)

    def _called(self, batch: tuple[Any, ...], take: Take) -> Any:
        """The result of the loss function; its graph is served by `take`."""
        batch, name = self._arguments(batch), type(self.loss).__name__
        refused.text = ""
        try:
            with torch.enable_grad(), self._casting(batch), self._signatures.taking(take):
                return self._loss(*batch)
        except TorchDynamoException as error:
            if refused.text:
                raise CaptureError(f"{name}: {refused.text}") from None
            whose = self.loss.called if in_rule(error) else name
            raise no_graph(whose, error, "use autopar.compile(model, devices) and your own loop") from error

    def _stepped(self, signature: Signature, args: Sequence[Any]) -> Any:
        """A step: in one program where it can be, else gradients, with those that wait in `.grad`, then torch's own
        clipping, scaler and optimizer."""
        waits = any(parameter.grad is not None for parameter in self._signatures.parameters())
        whole = self._whole(signature) if signature.checked and not waits else None
        if whole is not None:
            return signature.taken(args, self.executed, whole, self.optimizer)
        with signature.undone(args):
            result = self._by_itself(signature, args, stale=not waits)
        self.optimizer.zero_grad(set_to_none=True)
        return result

    def _by_itself(self, signature: Signature, args: Sequence[Any], *, stale: bool) -> Any:
        """A step of the optimizer's own; when it raises each `.grad` is what it was."""
        before = [(parameter, parameter.grad) for parameter in self._signatures.parameters()]
        try:
            result = self._accumulated(signature, args, stale=stale, anew=True)
            if self.group is not None:
                self.group.average()
            # An optimizer may multiply matrices, and autocast is for the forward.
            with casting.off({parameter.device.type for parameter in self._signatures.parameters()}):
                self._update()
        except BaseException:
            for parameter, waiting in before:
                parameter.grad = waiting
            if self.scaler is not None:
                forget_unscaled(self.scaler, self.optimizer)
            raise
        return result

    def _accumulated(self, signature: Signature, args: Sequence[Any], *, stale: bool, anew: bool) -> Any:
        """The result of a call whose gradients are added to `.grad`: into a tensor that waits there, or `anew`.

        Then the hooks that want a parameter are called, without gradients as autograd does.
        """
        if self.scaler is not None and self._scaling:
            # The backward starts from the scaler's scale.
            start = signature.start["tangent"]
            with torch.no_grad():
                start.copy_(self.scaler.scale(torch.ones_like(start)))
        try:
            result, gradients = signature.differentiated(args, self.executed, stale)
        except DifferenceError:
            self._signatures.drop(signature)
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

    def _whole(self, signature: Signature) -> Prepared | None:
        """The program of the whole step, where the optimizer, the scaler and other ranks leave it to us."""
        alone = not self._scaling and self.group is None
        return signature.whole(self.optimizer, self.clip_norm) if alone else None

    @property
    def _scaling(self) -> bool:
        return self.scaler is not None and self.scaler.is_enabled()

    def _update(self) -> None:
        """Unscale, clip and step, as the plain loop does after the backward."""
        scaler = self.scaler
        if self.clip_norm is not None:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            # In the order of the model, in which the program of the whole step adds the norms too.
            held = {id(parameter) for parameter in self._signatures.parameters()}
            trained = [parameter for parameter in self.loss.parameters() if id(parameter) in held]
            nn.utils.clip_grad_norm_(trained, self.clip_norm)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()

    def _arguments(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call; mappings that are no dict become one."""
        if torch.is_inference_mode_enabled():
            raise CaptureError(
                "a training step inside torch.inference_mode() cannot update anything; leave it"
            )
        try:
            inspect.signature(self.loss.forward).bind(*batch)
        except TypeError as error:
            raise CaptureError(f"{type(self.loss).__name__}: step() {error}") from None
        return tuple(
            dict(item) if isinstance(item, Mapping) and not isinstance(item, dict) else item for item in batch
        )

    def _casting(self, batch: tuple[Any, ...]) -> AbstractContextManager[Any]:
        """Autocast as asked for, on the device type of the first tensor."""
        if self.autocast is None:
            return nullcontext()
        tensors = (leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor))
        kind = next((tensor.device.type for tensor in tensors), "cpu")
        return torch.autocast(kind, self.autocast)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, every call accumulates: `with step.no_sync(): step(x, y)`."""
        outer, self._adding = self._adding, True
        try:
            yield
        finally:
            self._adding = outer

    def prepare(self, *batch: Any) -> None:
        """Capture, plan and lower for the signature of these arguments without running."""

        def take(signature: Signature, _: Any) -> NoReturn:
            if not signature.checked:
                _ = signature.gradients
            elif self._whole(signature) is None:
                _ = signature.overlapped
            raise Done

        with self._lock, suppress(Done):
            self._called(batch, take)

    def ready(self) -> Signature:
        """The signature of the last call; AutoparError when nothing has been planned."""
        if self._signatures.latest is None:
            raise AutoparError("nothing is planned yet: take a step, or call step.prepare(x, y)")
        return self._signatures.latest

    @property
    def module(self) -> nn.Module:
        """The plain model, always current."""
        return self.loss.model

    @property
    def plan(self) -> Plan:
        """The plan of the signature used last: of the whole step, or of the gradients where the optimizer steps by
        itself. What caps are held against is said at `Plan.peaks`."""
        return self._shown().plan

    @property
    def program(self) -> Program:
        """The program of `plan`."""
        return self._shown().program

    def _shown(self) -> Prepared:
        """The program that a step of the signature used last takes."""
        ready = self.ready()
        with self._lock:
            return self._whole(ready) or ready.overlapped

    def explain(self) -> str:
        """As of a compiled model, and how the weights are updated and why."""
        from ..view import explain

        plan = self.plan
        measured = self.timeline if self.timeline and self.timeline.title == plan.costed.graph.name else None
        ready = self.ready()
        notes = [*unused([ready.captured.graph], self.options.pins), self._updated()]
        notes += [executor.note for executor in self._signatures.tuned() if executor.note]
        return explain(plan, measured, None, notes)

    def _updated(self) -> str:
        """One sentence on how the weights are updated, and why so."""
        kind = type(self.optimizer).__name__
        if self.group is not None:
            return f"updates: {kind}.step() after the gradients are averaged over {self.group}"
        if self._scaling:
            return f"updates: {kind}.step() after the last backward, since the scaler decides whether to step"
        if self._whole(self.ready()) is None:
            return f"updates: {kind}.step() after the last backward, since {self.ready().refusal}"
        when = "as soon as its gradient is whole"
        if self.clip_norm is not None:
            when = "once all gradients are whole, since their norm clips them"
        if self.plan.costed.graph.flat:
            when += " (small ones in buckets)"
        return f"updates: part of the program, each weight {when}, into second buffers that take its place at the end"

    def draw(self, path: str | PathLike[str]) -> None:
        """Draw the placed step as `.html`, `.svg`, `.png`, `.dot` or `.txt`."""
        from ..view import draw

        draw(self.plan, path)

    def refresh(self) -> None:
        """Copy parameters to their devices again at the next call: needed after writes that leave no trace in a
        tensor, through `.data` or a numpy view."""
        self._signatures.pool.forget()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the kernels of all steps so far are compiled and chosen, or for so many seconds each: the fastest
        of those that are there serves."""
        for executor in self._signatures.tuned():
            executor.wait(seconds)

    def close(self) -> None:
        """Stop the worker threads of every plan, which the next call starts again, and the compiling of kernels."""
        self._signatures.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a training step can be neither pickled nor copied: it holds threads and streams. Save "
            "step.module.state_dict(), optimizer.state_dict() and torch.get_rng_state(), then build the step again"
        )

    def __repr__(self) -> str:
        label = f" [{self.machine.label}]" if self.machine.label else ""
        kind = type(self.optimizer).__name__
        return f"autopar.train_step({self.module!r}, {kind}, [{', '.join(self.machine.device)}]){label}"
