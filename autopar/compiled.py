"""What `autopar.compile` returns: the user's model, placed."""

from __future__ import annotations

import copy
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch
from torch import nn

from .capture.functions import Function
from .capture.signature import Arguments, take_apart
from .checking import Reference, too_long
from .errors import AutoparError, CaptureError, DeviceError
from .machine import Machine
from .options import Options
from .plans import Plan
from .programs import Program
from .stages import Prepared, prepare
from .timeline import Timeline

log = logging.getLogger("autopar")

KEPT = 8
"""Signatures whose plans are kept; the least recently used goes first."""


class Recording:
    """The timelines of the calls made inside `with fast.record() as timeline`; speaks for the last of them."""

    def __init__(self) -> None:
        self.calls: list[Timeline] = []

    @property
    def last(self) -> Timeline:
        """The timeline of the last call; AutoparError when there was none."""
        if not self.calls:
            raise AutoparError("nothing was recorded; call the compiled model inside `with fast.record() as timeline:`")
        return self.calls[-1]

    @property
    def median(self) -> Timeline:
        """The timeline whose makespan is the median of all calls."""
        self.last  # noqa: B018
        return sorted(self.calls, key=lambda timeline: timeline.makespan)[(len(self.calls) - 1) // 2]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the median call: `.json`, `.json.gz` for Perfetto, `.svg`, `.html`, `.png` as a picture."""
        self.median.save(path)


class Compiled:
    """A function of tensors that runs on every device of a machine. Call it as the function it was made from.

    A plan is made for each signature (structure, constants, shapes, dtypes and devices of the arguments, and the
    train or eval mode of each module); the last `KEPT` are kept. Raises what the stages raise: CaptureError,
    PlanError, MemoryCapError, ProgramError before the run, RunError and DifferenceError from it.
    """

    def __init__(self, model: Callable[..., Any], machine: Machine, options: Options, given: Plan | None = None) -> None:
        self._init(model, machine, options, given)

    def _init(self, model: Callable[..., Any], machine: Machine, options: Options, given: Plan | None) -> None:
        own = self.__dict__
        own["_model"], own["_machine"], own["_options"], own["_given"] = model, machine, options, given
        own["_kept"] = OrderedDict()
        own["_latest"] = own["_recording"] = own["_timeline"] = None
        own["_lock"] = threading.RLock()
        own["_evicted"] = False
        own["_used"] = None
        own["_kinds"] = tuple(dict.fromkeys("cpu" if d.kind == "emulated" else d.kind for d in machine.devices))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        prepared, fresh = self._prepared(args, kwargs)
        captured, check = prepared.captured, self._options.check
        if torch.is_grad_enabled() and captured.needs_grad:
            raise CaptureError(
                f"{captured.graph.name}: the result of this call would require grad, and autopar does not train yet; "
                "call it inside `with torch.no_grad():` (or torch.inference_mode())"
            )
        if check == "always" or (fresh and check == "first" and not too_long(_single(prepared.plan))):
            with self._lock:
                reference = Reference(captured, self._model, args, kwargs)
                output = self._run(prepared, args, kwargs)
                try:
                    reference.judge(output)
                except AutoparError:
                    self._forget(prepared)
                    raise
                return output
        return self._run(prepared, args, kwargs)

    def _run(self, prepared: Prepared, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        captured = prepared.captured
        inputs = captured.flatten(args, kwargs)
        recording = self._recording
        if recording is None:
            return captured.rebuild(prepared.executor(inputs))
        outputs, timeline = prepared.executor.run(inputs, record=True)
        recording.calls.append(timeline)
        self.__dict__["_timeline"] = timeline
        return captured.rebuild(outputs)

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Prepared, bool]:
        arguments = take_apart(args, kwargs)
        key = self._signature(arguments)
        with self._lock:
            kept = self._kept
            found = kept.get(key)
            if found is not None:
                kept.move_to_end(key)
                self.__dict__["_latest"] = found
                return found, False
            prepared = prepare(self._model, self._machine, self._options, args, kwargs, self._given)
            kept[key] = prepared
            self.__dict__["_latest"] = prepared
            if len(kept) > KEPT:
                kept.popitem(last=False)[1].executor.close()
                if not self._evicted:
                    log.warning(
                        "%s was called with more than %d signatures; the plan of the oldest was dropped and will be "
                        "made again when it is needed. Pad the inputs to fewer shapes to avoid this",
                        prepared.captured.graph.name, KEPT,
                    )  # fmt: skip
                    self.__dict__["_evicted"] = True
            return prepared, True

    def _signature(self, arguments: Arguments) -> Hashable:
        """What decides whether a plan made before serves this call."""
        model = self._model
        if isinstance(model, nn.Module):
            root = model
        elif any(isinstance(constant, nn.Module) for constant in arguments.constants):
            root = Function(model, arguments)
        else:
            if self._used is None:
                self.__dict__["_used"] = Function(model, arguments)
            root = self._used
        modes = tuple([(id(module), module.training) for module in root.modules()])
        grad = torch.is_grad_enabled()
        needed = grad and (any(t.requires_grad for t in arguments.tensors) or any(p.requires_grad for p in root.parameters()))
        cast = tuple((kind, torch.get_autocast_dtype(kind)) for kind in self._kinds if torch.is_autocast_enabled(kind))
        return arguments.key, modes, grad, needed, cast

    def _forget(self, prepared: Prepared) -> None:
        for key, kept in list(self._kept.items()):
            if kept is prepared:
                del self._kept[key]
        prepared.executor.close()

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Capture, plan and lower for the signature of these arguments without running."""
        self._prepared(args, kwargs)

    def _ready(self) -> Prepared:
        if self._latest is None:
            raise AutoparError(
                "nothing is planned yet: call the compiled model once, or give compile(…, example_inputs=(x,))"
            )
        return self._latest

    @property
    def plan(self) -> Plan:
        """The plan of the signature used last."""
        return self._ready().plan

    @property
    def program(self) -> Program:
        """The program of the signature used last."""
        return self._ready().program

    @property
    def captured_by(self) -> str:
        """The route by which the signature used last was captured: export, symbolic trace or opaque."""
        return self._ready().captured.how

    @contextmanager
    def record(self) -> Iterator[Recording]:
        """Measure every call inside the block: `with fast.record() as timeline: fast(x)`."""
        outer, recording = self._recording, Recording()
        self.__dict__["_recording"] = recording
        try:
            yield recording
        finally:
            self.__dict__["_recording"] = outer

    def explain(self) -> str:
        """Best single device, lower bound, predicted, measured (once recorded), bytes moved, busy shares, peaks, reasons."""
        from .view import explain

        ready = self._ready()
        timeline = self._timeline if self._timeline and self._timeline.title == ready.captured.graph.name else None
        return explain(ready.plan, timeline, notes=ready.captured.notes)

    def draw(self, path: str | PathLike[str]) -> None:
        """Draw the placed graph as `.html`, `.svg`, `.png`, `.dot` or `.txt`."""
        from .view import draw

        draw(self.plan, path)

    def close(self) -> None:
        """Stop the worker threads of every plan; the next call starts them again."""
        for prepared in self._kept.values():
            prepared.executor.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return type(self)(copy.deepcopy(self._model, memo), self._machine, self._options, self._given)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a compiled model cannot be pickled: it holds threads and streams. Save its plan with "
            "fast.plan.save('plan.json') and the weights with torch.save(fast.state_dict(), …), then "
            "autopar.compile(model, devices, plan=autopar.Plan.load('plan.json'))"
        )

    __reduce_ex__ = lambda self, _: self.__reduce__()  # noqa: E731

    def __repr__(self) -> str:
        where = ", ".join(self._machine.device)
        return f"autopar.compile({self._model!r}, [{where}])" + (f" [{self._machine.label}]" if self._machine.label else "")


class CompiledModule(Compiled, nn.Module):
    """A compiled `nn.Module`. It shares the module's own parameters, buffers and children, so that `state_dict()`
    has the user's keys, optimizers see the user's parameters, and `fast.module` is always the plain model."""

    def __init__(self, model: nn.Module, machine: Machine, options: Options, given: Plan | None = None) -> None:
        nn.Module.__init__(self)
        self._init(model, machine, options, given)
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[shared] = model.__dict__[shared]
        del self.__dict__["training"]

    __call__ = Compiled.__call__
    __repr__ = Compiled.__repr__

    @property
    def module(self) -> nn.Module:
        """The plain model."""
        return self._model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_model"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_model"], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__dict__["_model"], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The same as calling it."""
        return Compiled.__call__(self, *args, **kwargs)

    def train(self, mode: bool = True) -> CompiledModule:
        """Set the plain model's mode; the next call captures again for it."""
        self._model.train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The plain model's own."""
        return self._model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The plain model's own; copies on other devices are refreshed at the next call."""
        return self._model.load_state_dict(*args, **kwargs)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> CompiledModule:
        probe = fn(torch.empty(0, dtype=torch.float32))
        if probe.device.type != "cpu":
            raise DeviceError(
                f"a compiled model is not moved to {probe.device}: its plan says what is where. Name the devices in "
                f'autopar.compile(model, ["cpu", "{probe.device}", …]), or pin parts of it with pins='
            )
        self._model._apply(fn, recurse)
        self.__dict__["_kept"].clear()
        return self


def _single(plan: Plan) -> float | None:
    """Predicted seconds of the best single device, unless they are those of a declared chip."""
    best = plan.best_single
    return best[1] if best and plan.costed.machine.clock == "real" else None
