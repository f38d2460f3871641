"""The compiled model that `autopar.compile` returns."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, NoReturn

import torch
from torch import fx, nn
from torch.compiler import is_dynamo_compiling

from ..capture.dynamo_private import compiled
from ..capture.refusals import redefined
from ..capture.region import positional
from ..capture.torch_private import transformed
from ..errors import AutoparError, CaptureError, DeviceError, DifferenceError
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..ir.program import Program
from ..ir.timeline import Theme
from ..runtime.record import Recording
from ..system.text import wrapped
from .classes import sharing
from .model_check import CALL, Call, CallForm
from .model_session import ModelSession
from .options import Options, one_of
from .plain_model import PlainModel
from .stages import Prepared

log = logging.getLogger("autopar")

TRIES = 5
"""Number of comparisons of a call with the model that must all find a difference."""


class _Placement:
    """A model or function, its session, its entry into `torch.compile`, and the function that compiles another model in
    the same way."""

    def __init__(
        self,
        model: Callable[..., Any],
        session: ModelSession,
        run: Callable[..., Any],
        compile_alike: Callable[[Any], Compiled],
    ) -> None:
        self.model, self.session, self.run, self.compile_alike = model, session, run, compile_alike
        self.plain = PlainModel(model, session)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output, placed if a graph can be captured."""
        if is_dynamo_compiling():
            # A model around this one is being captured, and is placed as a whole.
            return self.model(*args, **kwargs)
        model, session, values = self.model, self.session, (*args, *kwargs.values())
        for value in values:
            if isinstance(value, fx.Proxy):
                raise CaptureError(
                    "torch.fx.symbolic_trace cannot trace a compiled model; give it the plain one, fast.module"
                )
        active = transformed()
        why = f"{active} is active" if active else redefined(values)
        if why:
            self.unplaced(why)
            return model(*args, **kwargs)
        call, before = Call(model, args, kwargs), session.calls
        outer = CALL.set(call)
        try:
            output = self._compared(call)
        finally:
            CALL.reset(outer)
        self._note(args, kwargs)
        if session.calls == before:
            self.unplaced("torch.compile captured no graph")
        elif self.plain.wins(self.call, args, kwargs):
            return model(*args, **kwargs)
        return output

    def _note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the form of the first call of the latest program."""
        prepared = self.session.latest and self.session.latest[1]
        if isinstance(prepared, Prepared) and prepared.example is None:
            prepared.example = CallForm.of(args, kwargs)

    def _compared(self, call: Call) -> Any:
        """Return the placed model's output, compared with the model's own in first calls. Raises DifferenceError."""
        for tries in reversed(range(TRIES)):
            try:
                output = self.run(*call.args, **call.kwargs)
                call.judge(output, self.session.machine)
                return output
            except DifferenceError:
                if call.answer is None:
                    raise
                with call.answer.snapshot.restored():
                    # Another thread may have changed the model during the check: only a fault differs each time.
                    if not tries:
                        # Programs that failed their first check must be checked again.
                        self.session.forget()
                        raise
                    call.answer.doubt()
                    call.answer = None
        raise AssertionError("unreachable: the last try returns or raises")

    def unplaced(self, why: str) -> None:
        """Count a call that ran as written, by its reason; warn the first time."""
        unplaced = self.session.unplaced
        unplaced[why] = unplaced.get(why, 0) + 1
        if unplaced[why] == 1:
            log.warning("a call ran as written, not placed: %s", "; ".join((why, *self.session.breaks)))

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Capture and plan for these arguments without running."""
        with self.session.planning():
            self.run(*args, **kwargs)
        self._note(args, kwargs)
        self.plain.wins(self.call, args, kwargs)


class Compiled:
    """A function of tensors that runs on every device of a machine. Call it like the original.

    `torch.compile` captures and guards it: changes of inputs and state are detected, and varying sizes become
    open. Raises PlanError, MemoryCapError or ProgramError before a run, RunError or DifferenceError from it.
    """

    __slots__ = ("__weakref__", "_placement")
    _placement: _Placement

    def __init__(self, placement: _Placement) -> None:
        self._placement = placement

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program for these arguments and return the outputs of the model."""
        placement = self._placement
        if placement.plain.kinds and not is_dynamo_compiling() and placement.plain.answers(args, kwargs):
            return placement.model(*args, **kwargs)
        return placement.call(*args, **kwargs)

    def __dir__(self) -> list[str]:
        # torch.jit.trace and inspect read every name, and these two raise before the first placed call.
        missing = () if self._placement.session.latest else ("plan", "program")
        return [name for name in super().__dir__() if name not in missing]

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Capture, plan and lower for these arguments, and build and choose kernels, as the first call would, without
        running."""
        self._placement.prepare(*args, **kwargs)

    @property
    def serving(self) -> str:
        """Kernel libraries of the programs, each once, separated by ";", such as "onnxruntime"; "eager" for PyTorch's
        kernels; "the model itself" if the plain model is faster."""
        serving = {executor.serving: None for executor in self._placement.session.with_kernels()}
        return "; ".join(serving) or "eager"

    @property
    def machine(self) -> Machine:
        """The machine that runs the model."""
        return self._placement.session.machine

    @property
    def plan(self) -> Plan:
        """The plan of the last call; with several graphs, of the last graph."""
        plan: Plan = self._placement.session.ready()[1].plan
        return plan

    @property
    def program(self) -> Program:
        """The program of the last call."""
        program: Program = self._placement.session.ready()[1].program
        return program

    def record(self) -> AbstractContextManager[Recording]:
        """Measure every call inside the block: `with fast.record() as timeline: fast(x)`."""
        return self._placement.session.record()

    def explain(self, *names: str) -> str:
        """Return the report: what serves and why, predicted and recorded seconds, kernels, devices, and what would
        help; at most 50 lines of 100 columns.

        names: sections in full ("costs", "notes", "kernels", "devices", "phases", "candidates", "path", "reasons",
            "hardware", or "all"), or any name that a report or a picture shows, such as "fc1 #0".

        For a plan with one lane, the operations are timed now, about 1 s, once. Without a plan, it is the reason why
        there is none. Raises PlanError for a name that nothing has.
        """
        from ..view import Report, explain

        session = self._placement.session
        try:
            _, ready = session.ready()
        except AutoparError as reason:
            return Report(wrapped(str(reason)))
        if isinstance(ready, Prepared) and session.options.explains(session.machine):
            ready.measure()
        timeline = session.timeline
        measured = timeline if timeline and timeline.title == ready.plan.costed.graph.name else None
        kernels = session.kernel_tables()
        return explain(
            ready.plan,
            measured,
            ready.single_s,
            session.notes(),
            *names,
            kernels=kernels,
            serving=self.serving,
        )

    def draw(
        self, path: str | PathLike[str], *, width: float | None = None, theme: Theme | None = None
    ) -> None:
        """Draw the placed graph as `.html`, `.svg`, `.png` or `.pdf`. For `.svg`, `.png` and `.pdf`, `width` in
        pixels and `theme` (`light` or `dark`) can be chosen."""
        from ..view import draw

        draw(self.plan, path, width=width, theme=theme)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write all that has been prepared or called without gradients to a folder, which `autopar.load` serves in
        other processes without a capture: plans, programs, kernels and the weights of now.

        A folder that `save` wrote earlier is replaced in one step; processes that serve it keep it. Raises
        AutoparError for a model that no folder can hold: graph breaks, side effects in Python, functions of its own.
        """
        from .saved import save

        save(self._placement.session, self._placement.run, folder)

    def refresh(self) -> None:
        """Copy parameters to their devices again in the next call. Needed only after writes through `.data`
        or a numpy view: others (optimizers, `load_state_dict`, in place) leave a trace and are detected."""
        self._placement.session.pool.forget()

    def close(self) -> None:
        """Stop the worker threads of every plan. The next call starts them again."""
        self._placement.session.close()

    def __copy__(self) -> Compiled:
        return self._placement.compile_alike(copy.copy(self._placement.model))

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return self._placement.compile_alike(copy.deepcopy(self._placement.model, memo))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a compiled model cannot be pickled: it holds threads and streams. For inference elsewhere: "
            "fast.save(folder), then autopar.load(folder). For training, save its plan with "
            "fast.plan.save('plan.json') and the weights with torch.save(fast.state_dict(), …), then "
            "autopar.compile(model, devices, plan=autopar.Plan.load('plan.json'))"
        )

    def __prepare_scriptable__(self) -> NoReturn:
        raise CaptureError(
            "torch.jit.script cannot take a compiled model; give it the plain one, fast.module"
        )

    def _repr_html_(self) -> str:
        from ..view.pages import plan_html, text_html

        if self._placement.session.latest is None:
            return text_html(repr(self))
        return plan_html(self.plan)

    def __repr__(self) -> str:
        machine = self.machine
        label = f" [{machine.label}]" if machine.label else ""
        return f"autopar.compile({self._placement.model!r}, [{', '.join(machine.device)}]){label}"


class CompiledModule(Compiled):
    """A compiled `nn.Module`, also an instance of the module's own class.

    It shares the module's attributes: `state_dict()` has the user's keys, optimizers get the user's parameters, and
    `generate` or `save_pretrained` are the model's own. `fast.module` is always the plain model.
    """

    __slots__ = ()

    @property
    def module(self) -> nn.Module:
        """The plain model."""
        model = self._placement.model
        assert isinstance(model, nn.Module)
        return model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled module."""
        return self(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load into the plain model; the next call refreshes replicas on other devices."""
        try:
            return self.module.load_state_dict(*args, **kwargs)
        except RuntimeError as error:
            state = args[0] if args else kwargs.get("state_dict")
            if not state or not all(key.startswith("module.") for key in state):
                raise
            raise RuntimeError(
                'every key begins with "module.", as those of nn.DataParallel do, and this model has none such: load '
                '{key.removeprefix("module."): value for key, value in state.items()}, or into autopar.DataParallel, '
                f"which takes both. {error}"
            ) from None

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> CompiledModule:
        try:
            where = str(fn(torch.empty(0, device="cpu")).device)
        except (AssertionError, RuntimeError) as error:
            where = f"a device that is not here ({error})"
        if where != "cpu":
            raise DeviceError(
                f"a compiled model cannot be moved to {where}: its plan decides where tensors are. Name the devices in "
                'autopar.compile(model, ["cpu", "cuda:0", …]), or pin parts of it with pins='
            )
        self.module._apply(fn, recurse)
        return self


def placed(
    model: Callable[..., Any],
    machine: Machine,
    options: Options,
    user_plan: Plan | None,
    fullgraph: bool,
    dynamic: bool | None,
) -> Compiled:
    """Return the compiled form of a function or module. Raises PlanError if the last two are invalid."""
    one_of("fullgraph", fullgraph, (True, False))
    one_of("dynamic", dynamic, (None, True, False))
    root = model if isinstance(model, nn.Module) else None
    session = ModelSession(machine, options, root, user_plan, positional(model), runs_as_written=True)
    run = compiled(model, session, fullgraph, dynamic, session.skipped)

    def compile_alike(other: Any) -> Compiled:
        return placed(other, machine, options, user_plan, fullgraph, dynamic)

    placement = _Placement(model, session, run, compile_alike)
    if root is None:
        return Compiled(placement)
    fast = sharing(CompiledModule, root, type(root))
    object.__setattr__(fast, "_placement", placement)
    return fast
