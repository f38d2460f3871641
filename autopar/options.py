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
    batch_norm: Literal["full", "per_part"] = "full"
    recompute: Literal["auto"] | float | None = None
    reassociate: bool = False
    verify_replicas: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.pins, Mapping):
            raise PlanError(
                f'pins={self.pins!r} names no device; write pins={{"path.of.a.module": "cuda:0"}}'
            )
        _one_of("check", self.check, ("first", "always", "never"))
        _one_of("outputs", self.outputs, ("as_input", "as_placed"))
        _one_of("batch_norm", self.batch_norm, ("full", "per_part"))
        share = isinstance(self.recompute, (int, float)) and 0 <= self.recompute <= 1
        if not share and self.recompute not in (None, "auto"):
            raise PlanError(
                f'recompute={self.recompute!r} is not known; give None, "auto", or the share of the saved bytes that '
                "may stay saved, from 0 to 1"
            )


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PlanError(f"{name}={value!r} is not known; give one of {', '.join(map(repr, allowed))}")
