"""Colours and patterns. Hue and pattern name a device, depth says forward or backward, vermillion is waiting,
black ink is the critical path; no hue is spent on anything else."""

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
BAR = "#3B4558"
BAR_PALE = "#DDE1E8"


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
    """What a box is filled with: deeper for the backward, white for sums and updates."""
    return shade.deep if phase == "backward" else shade.fill if phase in ("forward", "") else "#FFFFFF"


def strips(phase: str) -> tuple[bool, bool]:
    """Whether a box has its device's pattern at its left, and at its right edge: the forward at the left, the
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
