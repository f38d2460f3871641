"""Colours, patterns and styles of lines. Hue and pattern name a device, depth says forward or backward, vermillion is
waiting, black ink is the critical path; no hue is spent on anything else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

INK = "#1B2230"
QUIET = "#5A6475"
BRACKET = "#8892A2"
GRID = "#E6EAEF"
LANE = "#F6F7F9"
WAIT = "#B34700"
WAIT_FILL = "#FFF6EF"

STYLES: dict[str, dict[str, str]] = {
    "badge": {"fill": WAIT_FILL, "stroke": "#F0B58F", "stroke-width": "1.2"},
    "band": {"fill": QUIET, "stroke": "#FFFFFF", "stroke-width": "0.5"},
    "bracket": {"fill": "none", "stroke": BRACKET, "stroke-width": "1.2"},
    "bus": {"fill": "none", "stroke-width": "3.4", "stroke-dasharray": "0.1 6.5"},
    "cap": {"stroke": INK, "stroke-width": "1.4", "stroke-dasharray": "5 3"},
    "critical": {"fill": "none", "stroke": INK, "stroke-linejoin": "round", "stroke-linecap": "round"},
    "edge": {"stroke": "#FFFFFF", "stroke-width": "4.5", "stroke-opacity": "0.8"},
    "end": {"stroke": INK, "stroke-width": "1.6"},
    "grid": {"stroke": GRID, "stroke-width": "1"},
    "idle": {"stroke": "#C5CBD5", "stroke-width": "1.2", "stroke-dasharray": "1.5 4"},
    "lane": {"fill": LANE},
    "leader": {"fill": "none", "stroke": BRACKET, "stroke-width": "1"},
    "planned": {"fill": "none", "stroke": INK, "stroke-dasharray": "3 3", "stroke-opacity": "0.6"},
    "ring": {"fill": "#FFFFFF", "stroke": QUIET, "stroke-width": "1.6"},
    "transfer": {"stroke": QUIET, "stroke-width": "1.6"},
    "wait": {"stroke": WAIT, "stroke-width": "2.4", "stroke-dasharray": "0.1 4.6", "stroke-linecap": "round"},
    "wait box": {"rx": "2", "fill": WAIT_FILL, "stroke": WAIT, "stroke-dasharray": "2.5 2"},
}
"""Styles as attributes: not every viewer of SVG reads a style sheet in it."""


@dataclass(frozen=True, slots=True)
class Shade:
    """The look of one device: full `hue`, `fill` of a box, `deep` fill of a backward one, `text` on
    white, `pattern`."""

    hue: str
    fill: str
    deep: str
    text: str
    pattern: str


_CPU = Shade("#E69F00", "#FDF1D8", "#FAE3B0", "#8A5A00", "dots")
_HUES = (
    ("#0072B2", "#E3F0F8", "#C3DEF0", "#005483"),
    ("#007D5C", "#E0F3EC", "#BCE3D5", "#005A42"),
    ("#CC79A7", "#FAEEF5", "#F2D6E5", "#8A3F69"),
    ("#56B4E9", "#E9F6FD", "#CBE8F9", "#1B6C9C"),
)
_PATTERNS = ("slash", "backslash", "cross", "level", "upright")


def fill_of(shade: Shade, phase: str) -> str:
    """Fill of a box: deeper for the backward, white for sums and updates."""
    return shade.deep if phase == "backward" else shade.fill if phase in ("forward", "") else "#FFFFFF"


def strips(phase: str) -> tuple[bool, bool]:
    """True if a box has its device's pattern at its left, and at its right edge: the forward at the left, the
    backward at the right, sums and updates at both, so that phases are told without colour."""
    return phase != "backward", phase not in ("forward", "")


def shades(devices: Iterable[tuple[str, bool]]) -> dict[str, Shade]:
    """A shade for each (name, whether it is a CPU): CPUs amber and dotted, accelerators blue, green,
    rose, sky, then the same hues with new patterns."""
    found, index = {}, 0
    for name, cpu in devices:
        if cpu:
            found[name] = _CPU
        else:
            pattern = _PATTERNS[(index + index // len(_HUES)) % len(_PATTERNS)]
            found[name] = Shade(*_HUES[index % len(_HUES)], pattern)
            index += 1
    return found
