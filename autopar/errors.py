"""The errors autopar raises, one class per stage; each message says what is wrong, where, and what to type next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self


class AutoparError(RuntimeError):
    """Base class of all errors raised by autopar.

    An error of the user's own code in a call keeps its class: what is raised is also of that class (`like`).
    """

    @classmethod
    def like(cls, error: BaseException, text: str) -> Self:
        """Return an error with this text that `except` of the class of `error` catches too, with its attributes."""
        # The error may itself be one of these.
        kind = getattr(error, "_kind", type(error))
        if not isinstance(error, Exception) or issubclass(cls, kind):
            return cls(text)
        # Printed and pickled as its base class.
        own = {
            "_kind": kind,
            "__module__": cls.__module__,
            "__str__": AutoparError.__str__,
            "__reduce__": lambda _: (cls, (text,)),
        }
        try:
            both = type(cls.__name__, (kind,) if issubclass(kind, cls) else (cls, kind), own)
            # Without its `__init__`, which may take other arguments.
            made: Self = kind.__new__(both, *error.args)
        except TypeError:  # classes such as ExceptionGroup have a layout of their own
            return cls(text)
        made.args = (text,)
        vars(made).update(vars(error))
        return made

    def __str__(self) -> str:
        # A terminal would obey control characters in names that come from a file.
        return "".join(
            c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in BaseException.__str__(self)
        )


class CaptureError(AutoparError):
    """A model that cannot be captured as a graph; names the construct, the line and the change to make."""


class DeviceError(AutoparError):
    """An invalid device, link or machine, or one that this machine lacks."""


class PlanError(AutoparError):
    """No valid plan exists: unknown names, cyclic orders, impossible pins."""


class MemoryCapError(PlanError):
    """A graph that does not fit in the memory of its devices.

    wrong: what does not fit. way: what to change so that it fits. needs: bytes of each device above its cap that the
    nearest plan needs, if that is known.
    """

    def __init__(self, wrong: str, way: str = "", needs: Mapping[str, int] | None = None) -> None:
        super().__init__(f"{wrong}; {way}" if way else wrong)
        self.wrong, self.way, self.needs = wrong, way, dict(needs or {})


class TooLongError(PlanError):
    """No plan can be shorter than one already found."""


class ProgramError(AutoparError):
    """A program that its check refuses: a race, a deadlock, a missing copy or too much memory."""


class RunError(AutoparError):
    """A task that failed while it ran; names the task, its module path, source line and device."""


class DifferenceError(RunError):
    """A call whose result differs from eager; names the first task that differs."""


class BoundWarning(RuntimeWarning):
    """A lower bound above the makespan of a plan: a bug in the planner, which then claims no bound."""


class LateError(AutoparError):
    """An emulated run that could not keep its declared clock, so that its figures are invalid."""
