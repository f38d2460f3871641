"""What `autopar.compile` returns: the user's model, placed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from typing import Any, NoReturn

import torch
from torch import nn

from .errors import DeviceError
from .machine import Machine
from .plans import Plan
from .programs import Program
from .recording import Recording
from .session import Session


class Compiled:
    """A function of tensors that runs on every device of a machine. Call it as the function it was made from.

    A plan is made for each signature (structure, constants, shapes, dtypes and devices of the arguments, and the
    train or eval mode of each module); the last eight are kept. Raises what the stages raise: CaptureError,
    PlanError, MemoryCapError, ProgramError before the run, RunError and DifferenceError from it.
    """

    _session: Session

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._session.call(args, kwargs)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Capture, plan and lower for the signature of these arguments without running."""
        self._session.prepared(args, kwargs)

    @property
    def machine(self) -> Machine:
        """What it runs on."""
        return self._session.machine

    @property
    def plan(self) -> Plan:
        """The plan of the signature used last."""
        return self._session.ready().plan

    @property
    def program(self) -> Program:
        """The program of the signature used last."""
        return self._session.ready().program

    def record(self) -> AbstractContextManager[Recording]:
        """Measure every call inside the block: `with fast.record() as timeline: fast(x)`."""
        return self._session.record()

    def explain(self) -> str:
        """Best single device, lower bound, predicted, measured once recorded, bytes moved, busy, peaks, reasons."""
        from .view import explain

        ready, timeline = self._session.ready(), self._session.timeline
        measured = timeline if timeline and timeline.title == ready.plan.costed.graph.name else None
        return explain(ready.plan, measured, ready.single_s, ready.captured.notes)

    def draw(self, path: str | PathLike[str]) -> None:
        """Draw the placed graph as `.html`, `.svg`, `.png`, `.dot` or `.txt`."""
        from .view import draw

        draw(self.plan, path)

    def refresh(self) -> None:
        """Copy parameters to their devices again at the next call: needed after writes that leave no trace in a
        tensor, through `.data` or a numpy view. All others (optimizers, `load_state_dict`, in place) are seen.
        Parameters whose `.data` has another shape are planned for anew."""
        self._session.refresh()

    def close(self) -> None:
        """Stop the worker threads of every plan; the next call starts them again."""
        self._session.kept.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        had = self._session
        return type(self)(Session(copy.deepcopy(had.model, memo), had.machine, had.options, had.given))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a compiled model cannot be pickled: it holds threads and streams. Save its plan with "
            "fast.plan.save('plan.json') and the weights with torch.save(fast.state_dict(), …), then "
            "autopar.compile(model, devices, plan=autopar.Plan.load('plan.json'))"
        )

    def __repr__(self) -> str:
        machine = self.machine
        label = f" [{machine.label}]" if machine.label else ""
        return f"autopar.compile({self._session.model!r}, [{', '.join(machine.device)}]){label}"


class CompiledModule(Compiled, nn.Module):
    """A compiled `nn.Module`. It shares the module's own parameters, buffers and children, so that `state_dict()`
    has the user's keys, optimizers see the user's parameters, and `fast.module` is always the plain model."""

    def __init__(self, session: Session) -> None:
        nn.Module.__init__(self)
        own = self.__dict__
        own["_session"] = session
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[shared] = session.model.__dict__[shared]
        # Looked up in the plain model from now on, as every attribute that is not here.
        del own["training"]

    # With the hooks that are registered on it.
    __call__ = nn.Module.__call__
    __repr__ = Compiled.__repr__

    @property
    def module(self) -> nn.Module:
        """The plain model."""
        model = self.__dict__["_session"].model
        assert isinstance(model, nn.Module)
        return model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_session" in self.__dict__:
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The same as calling it."""
        return self._session.call(args, kwargs)

    def train(self, mode: bool = True) -> CompiledModule:
        """Set the plain model's mode; the next call captures again for it."""
        self.module.train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The plain model's own."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The plain model's own; copies on other devices are refreshed at the next call."""
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
            where = str(fn(torch.empty(0)).device)
        except (AssertionError, RuntimeError) as error:
            where = f"a device that is not here ({error})"
        if where != "cpu":
            raise DeviceError(
                f"a compiled model is not moved to {where}: its plan says what is where. Name the devices in "
                'autopar.compile(model, ["cpu", "cuda:0", …]), or pin parts of it with pins='
            )
        self.module._apply(fn, recurse)
        self._session.kept.close()
        self._session.kept.clear()
        return self
