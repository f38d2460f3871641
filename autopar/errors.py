"""The errors autopar raises, one class per stage: each says what is wrong, where, and what to type next."""

from __future__ import annotations


class AutoparError(RuntimeError):
    """Base of every error raised on purpose."""


class CaptureError(AutoparError):
    """The model cannot be turned into a graph; names the construct, the line and what to change."""


class DeviceError(AutoparError):
    """A device, link or machine description that does not hold on this machine."""


class PlanError(AutoparError):
    """No plan, or an edited plan that is not one: unknown names, cyclic orders, impossible pins."""


class MemoryCapError(PlanError):
    """Nothing fits in the memory the devices have: what is `wrong`, and the `way` out."""

    def __init__(self, wrong: str, way: str = "") -> None:
        super().__init__(f"{wrong}; {way}" if way else wrong)
        self.wrong, self.way = wrong, way


class ProgramError(AutoparError):
    """A program that `Program.check()` refuses: a race, a deadlock, a missing copy or too much memory."""


class RunError(AutoparError):
    """A task failed while it ran; names the task, its module path, its source line and its device."""


class DifferenceError(RunError):
    """The first run did not give eager's answer; names the first task that differs."""


class BoundWarning(RuntimeWarning):
    """A lower bound that a plan refutes: a fault of the planner, which then claims none."""


class LateError(AutoparError):
    """An emulated run could not keep its declared clock, so its figures mean nothing."""
