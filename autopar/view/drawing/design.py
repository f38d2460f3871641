"""Design of all pictures: colours, patterns and line styles, and text metrics.

Hue and pattern identify a device, and depth tells forward from backward. Vermilion is waiting, black is the
critical path; no hue has another meaning. A label is placed by the larger of its widths in Inter (tabular
figures) and DejaVu Sans, so that it fits in either font. `widths.json` has widths in thousandths of an em.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files

INK = "#1B2230"
PAPER = "#FFFFFF"
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
    "planned": {"fill": "none", "stroke": INK, "stroke-dasharray": "3 3", "stroke-opacity": "0.6"},
    "ring": {"fill": "#FFFFFF", "stroke": QUIET, "stroke-width": "1.6"},
    "transfer": {"stroke": QUIET, "stroke-width": "1.6"},
    "wait": {"stroke": WAIT, "stroke-width": "2.4", "stroke-dasharray": "0.1 4.6", "stroke-linecap": "round"},
    "wait box": {"rx": "2", "fill": WAIT_FILL, "stroke": WAIT, "stroke-dasharray": "2.5 2"},
}
"""Styles as attributes: some SVG viewers ignore embedded style sheets."""

FAMILY = "Inter, 'DejaVu Sans', Verdana, sans-serif"

_WIDTHS: dict[str, dict[str, int]] = json.loads(
    (files(__package__) / "widths.json").read_text(encoding="utf-8")
)
_OTHER = 1000
_PART = re.compile(r"(, part \d+| #\d+)$")
_PHASE = re.compile(r" (forward|backward)$")
# A match starts at the beginning of a word. Otherwise it would read a long name again from each letter.
_PATH = re.compile(r"(?<!\w)(…\w+|(?=\w*[A-Za-z_])\w+)(\.\w+)+")


@dataclass(frozen=True, slots=True)
class Shade:
    """Colours of one device: full `hue`, `fill` of a box, `deep` fill of a backward one, `text` on white, and
    `pattern`."""

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
    """Return the fill of a box: deeper for the backward, white for sums and updates."""
    return shade.deep if phase == "backward" else shade.fill if phase in ("forward", "") else "#FFFFFF"


def strips(phase: str) -> tuple[bool, bool]:
    """Return whether a box has its device's pattern on its left and right edge: forward left, backward right, sums and
    updates both, so that phases are distinguishable without colour."""
    return phase != "backward", phase not in ("forward", "")


def shades(devices: Iterable[tuple[str, bool]]) -> dict[str, Shade]:
    """Return a shade for each (name, whether it is a CPU): CPUs amber and dotted, accelerators blue, green, rose, sky,
    then the same hues with other patterns."""
    by_name, index = {}, 0
    for name, cpu in devices:
        if cpu:
            by_name[name] = _CPU
        else:
            pattern = _PATTERNS[(index + index // len(_HUES)) % len(_PATTERNS)]
            by_name[name] = Shade(*_HUES[index % len(_HUES)], pattern)
            index += 1
    return by_name


def width(text: str, size: float, bold: bool = False) -> float:
    """Return an upper bound on the pixels of `text` at `size` pixels; a character outside the table counts as one
    em."""
    table = _WIDTHS["bold" if bold else "regular"]
    return sum(table.get(character, _OTHER) for character in text) * size / 1000


def fit(text: str, room: float, size: float, bold: bool = False) -> str:
    """Shorten `text` to `room` pixels with `…` in its middle; empty if not even three characters fit."""
    if width(text, size, bold) <= room:
        return text

    def cut(keep: int) -> str:
        tail = keep // 2
        return f"{text[: keep - tail]}…{text[len(text) - tail :]}"

    keep = bisect_right(range(1, len(text)), room, key=lambda count: width(cut(count), size, bold))
    return cut(keep) if keep >= 3 else ""


def fit_words(text: str, room: float, size: float, bold: bool = False) -> str:
    """Shorten `text` to `room` pixels by omitting redundant words: part of the batch, phase, outer modules; else cut
    its end. Empty if not even three characters fit."""
    for short in _shorter(text):
        if width(short, size, bold) <= room:
            return short
    keep = bisect_right(
        range(1, len(short) + 1), room, key=lambda count: width(f"{short[:count]}…", size, bold)
    )
    return f"{short[:keep].rstrip(' …,.')}…" if keep >= 3 else ""


def _shorter(text: str) -> Iterator[str]:
    yield text
    text = _PART.sub("", text)
    yield text
    text = _PHASE.sub("", text)
    yield text
    least = 2 if text.startswith(("update ", "sum ")) or text.endswith((".grad", ", new")) else 1
    while True:
        paths = [path for path in _PATH.finditer(text) if len(_names(path[0])) > least]
        if not paths:
            break
        longest = max(paths, key=lambda path: len(path[0]))
        rest = longest[0].lstrip("…").partition(".")[2]
        text = f"{text[: longest.start()]}…{rest}{text[longest.end() :]}"
        yield text
    yield f"{text.partition(' … ')[0]} …" if " … " in text else text


def _names(path: str) -> list[str]:
    """Return the names in a path, without a final `grad` or number, which mean nothing alone."""
    return re.sub(r"(\.grad|\.\d+)$", "", path).split(".")
