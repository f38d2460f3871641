"""Results of a contest: a row with an outcome for each rival, as a table, as JSON, and many rows in a few figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..costs.blocks import Block, counted, disturbed, median
from ..system.text import seconds, table
from .rivals import EAGER


@dataclass(frozen=True)
class Outcome:
    """One rival's blocks, or the `reason` why it has none; `built_s` are seconds to build and answer first."""

    name: str
    versions: dict[str, str]
    reason: str = ""
    built_s: float | None = None
    error: float | None = None
    blocks: tuple[Block, ...] = ()

    @property
    def median(self) -> float:
        """Seconds of a call; NaN without a block."""
        return median(self.blocks) if self.blocks else math.nan

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile of seconds of a call; twice NaN without a block."""
        times = [block.seconds for block in counted(self.blocks)]
        if len(times) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        return low, high

    def remark(self) -> str:
        """Why there is no time, or why not to believe it, "" for neither."""
        if not self.blocks:
            return self.reason
        if any(block.disturbed is None for block in self.blocks):
            return "perhaps disturbed: this system does not tell"
        return "DISTURBED by other work" if disturbed(self.blocks) else ""


@dataclass(frozen=True)
class Row:
    """A contest: its title, and outcomes of which eager's is the first."""

    title: str
    train: bool
    outcomes: tuple[Outcome, ...]

    def ratio(self, name: str) -> float:
        """A rival's seconds ÷ eager's; NaN where it has none."""
        return {outcome.name: outcome.median for outcome in self.outcomes}.get(
            name, math.nan
        ) / self.outcomes[0].median

    def best(self) -> Outcome:
        """The fastest that is not autopar's."""
        return min(
            (one for one in self.outcomes if one.blocks and not one.name.startswith("autopar")),
            key=lambda one: one.median,
        )

    def __str__(self) -> str:
        """The table."""
        unit = "step" if self.train else "call"
        rows = [("", f"a {unit}", "quartiles", f"÷ {EAGER}", "build", "error", "")]
        for one in self.outcomes:
            figures = ("-", "-", "-")
            if one.blocks:
                spread = " to ".join(map(seconds, one.quartiles))
                figures = (seconds(one.median), spread, f"{self.ratio(one.name):.3f}")
            built = "-" if one.built_s is None else f"{one.built_s:.1f} s"
            error = "-" if one.error is None else f"{one.error:.1e}"
            rows.append((one.name, *figures, built, error, one.remark()))
        return f"{self.title}\n\n{table(rows, right=(1, 2, 3, 4, 5), widest=130)}"

    def data(self) -> dict[str, Any]:
        """The row as plain data, its medians and ratios included."""
        outcomes = [
            {**asdict(one), **({"median_s": one.median, "quartiles_s": one.quartiles} if one.blocks else {}),
             **({"ratio": self.ratio(one.name)} if one.blocks else {}), "remark": one.remark()}
            for one in self.outcomes
        ]  # fmt: skip
        return {"title": self.title, "train": self.train, "outcomes": outcomes}


def read(data: dict[str, Any]) -> Row:
    """The row that `Row.data` gave."""
    outcomes = (
        Outcome(one["name"], one["versions"], one["reason"], one["built_s"], one["error"],
                tuple(Block(**block) for block in one["blocks"]))
        for one in data["outcomes"]
    )  # fmt: skip
    return Row(data["title"], data["train"], tuple(outcomes))


def summary(rows: Sequence[Row]) -> str:
    """For each row the fastest rival and each of autopar's entries against it; the worst of these, and the geometric
    mean over eager."""
    names = list(
        dict.fromkeys(one.name for row in rows for one in row.outcomes if one.name.startswith("autopar"))
    )
    lines: list[tuple[str, ...]] = [
        ("", "best rival", f"÷ {EAGER}", *(f"{name} ÷ {over}" for name in names for over in (EAGER, "best")))
    ]
    for row in rows:
        best = row.ratio(row.best().name)
        found = [figure for name in names for figure in (row.ratio(name), row.ratio(name) / best)]
        lines.append((row.title, row.best().name, f"{best:.3f}", *map(_figure, found)))
    ratios = {name: [row.ratio(name) for row in rows if not math.isnan(row.ratio(name))] for name in names}
    worst = {name: [row.ratio(name) / row.ratio(row.best().name) for row in rows] for name in names}
    lines.append(("largest", "", "", *(
        _figure(max((x for x in found if not math.isnan(x)), default=math.nan))
        for name in names for found in (ratios[name], worst[name])
    )))  # fmt: skip
    lines.append(("geometric mean", "", _figure(_mean([row.ratio(row.best().name) for row in rows])), *(
        text for name in names for text in (_figure(_mean(ratios[name])), "")
    )))  # fmt: skip
    return table(lines, right=range(2, 3 + 2 * len(names)))


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _mean(ratios: Sequence[float]) -> float:
    return statistics.geometric_mean(ratios) if ratios else math.nan
