"""What the user asked `compile` for, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import PlanError


@dataclass(frozen=True)
class Options:
    """The keywords of `autopar.compile`; see there. Raises PlanError for a value that is none of the allowed."""

    pins: Mapping[str, str] = field(default_factory=dict)
    policy: Any = "auto"
    split: Any = "auto"
    measure: bool = False
    check: Literal["first", "always", "never"] = "first"
    outputs: Literal["as_input", "as_placed"] = "as_input"

    def __post_init__(self) -> None:
        _one_of("check", self.check, ("first", "always", "never"))
        _one_of("outputs", self.outputs, ("as_input", "as_placed"))


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PlanError(f"{name}={value!r} is not known; give one of {', '.join(map(repr, allowed))}")
