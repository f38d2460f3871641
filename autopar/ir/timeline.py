"""The steps of a plan, `Placed` and `Transfer`; and a measured or predicted execution, `Timeline` with its `Span`s."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from os import PathLike
from pkgutil import resolve_name
from typing import Literal, TypeAlias

from ..errors import LateError

Theme: TypeAlias = Literal["light", "dark"]
"""Colours of a picture: on white or on dark ground."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A cluster on a compute lane (`cpu/0`), from `start` to `end` in predicted seconds."""

    cluster: str
    device: str
    lane: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer of a value from `src` to `dst` in the copy queue `lane`; `ready`: the earliest possible start, in
    seconds."""

    value: str
    src: str
    dst: str
    lane: str
    start: float
    end: float
    ready: float
    bytes: int


Step: TypeAlias = Placed | Transfer


@dataclass(frozen=True, slots=True)
class Span:
    """Activity of one lane from `start` to `end`, in seconds from the start of the call.

    kind: `compute`: the cluster `name`, or a task in it (if `cluster` is set); `copy`: the value `name` from `src` to
    `dst`.
    ready: earliest possible start of a copy.
    called: display name, if it differs from `name`.
    phase: phase of the training step.
    """

    lane: str
    device: str
    kind: Literal["compute", "copy"]
    name: str
    start: float
    end: float
    cluster: str = ""
    module: str = ""
    source: str = ""
    src: str = ""
    dst: str = ""
    bytes: int = 0
    ready: float | None = None
    called: str = ""
    phase: str = ""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.end - self.start

    @property
    def title(self) -> str:
        """Display name; `name` if there is none."""
        return self.called or self.name

    def later(self, shift: float) -> Span:
        """Return the span `shift` seconds later."""
        ready = None if self.ready is None else self.ready + shift
        return replace(self, start=self.start + shift, end=self.end + shift, ready=ready)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in use on one device over time: `steps` are (seconds, bytes) at each change; `cap` None: no limit."""

    device: str
    steps: tuple[tuple[float, int], ...]
    cap: int | None = None

    @property
    def peak(self) -> int:
        """Largest number of bytes in use at once."""
        return max((count for _, count in self.steps), default=0)


@dataclass(frozen=True)
class Timeline:
    """Spans of one call over all lanes.

    makespan: the caller's wall clock (measured) or the end of the plan (predicted), in seconds.
    label: label that figures must carry (emulated, declared).
    late: largest share by which emulated work exceeded its modelled time.
    needs_slow_down: slow-down that would have sufficed; 0: the call was on time.
    predicted: for a measured timeline, that of the plan.
    path: numbers of the spans on the critical path, by start; empty if measured.
    began: `time.perf_counter` at the start of a measured call.
    ranks: number of processes; with several, devices are named `rank 2 (host1)/cpu`.
    """

    title: str
    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    makespan: float
    memory: tuple[Memory, ...] = ()
    label: str = ""
    late: float = 0.0
    predicted: Timeline | None = None
    needs_slow_down: float = 0.0
    path: tuple[int, ...] = ()
    began: float = 0.0
    ranks: int = 1

    def on_time(self) -> Timeline:
        """Return self, or raise LateError if emulated work could not keep its clock."""
        if self.needs_slow_down:
            raise LateError(
                f"{self.title!r} was {self.late:.1%} of its modelled time behind its declared clock, so its figures "
                f"mean nothing; give the machine slow_down={math.ceil(self.needs_slow_down)} or more"
            )
        return self

    def then(self, later: Timeline) -> Timeline:
        """Join this timeline and one that follows it directly, such as a forward and its backward."""
        after = {memory.device: memory for memory in later.memory}
        memory = tuple(
            replace(
                first, steps=(*first.steps, *((at + self.makespan, n) for at, n in after[first.device].steps))
            )
            if first.device in after
            else first
            for first in self.memory
        )
        both = self.predicted.then(later.predicted) if self.predicted and later.predicted else None
        return replace(
            self,
            lanes=tuple(dict.fromkeys((*self.lanes, *later.lanes))),
            spans=(*self.spans, *(span.later(self.makespan) for span in later.spans)),
            makespan=self.makespan + later.makespan,
            memory=memory,
            late=max(self.late, later.late),
            predicted=both,
            needs_slow_down=max(self.needs_slow_down, later.needs_slow_down),
            path=(*self.path, *(number + len(self.spans) for number in later.path)),
        )

    def busy(self, lane: str) -> float:
        """Return the busy seconds of a lane; spans nested in a cluster count once."""
        return sum(span.seconds for span in self.spans if span.lane == lane and not span.cluster)

    def _repr_html_(self) -> str:
        return str(resolve_name("autopar.view.pages:timeline_html")(self))

    def save(
        self, path: str | PathLike[str], *, width: float | None = None, theme: Theme | None = None
    ) -> None:
        """Write for Perfetto or chrome://tracing (`.json`, `.json.gz`) or as a picture (`.html`, `.svg`, `.png`,
        `.pdf`). For the last three, `width` in pixels and `theme` (`light` or `dark`) can be chosen."""
        resolve_name("autopar.view:save_timeline")(self, path, width=width, theme=theme)
