"""Design of all pictures: colours, patterns and line styles, and text metrics.

Hue and pattern identify a device, and depth tells forward from backward. Vermilion is waiting, black is the
critical path; no hue has another meaning. A label is placed by the larger of its widths in Inter (tabular
figures) and DejaVu Sans, so that it fits in either font. `widths.json` has widths in thousandths of an em.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import groupby

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
    "bracket": {"fill": "none", "stroke": BRACKET, "stroke-width": "1.2"},
    "bus": {"fill": "none", "stroke-width": "3.4", "stroke-dasharray": "0.1 6.5"},
    "cap": {"stroke": INK, "stroke-width": "1.4", "stroke-dasharray": "5 3"},
    "critical": {"fill": "none", "stroke": INK, "stroke-linejoin": "round", "stroke-linecap": "round"},
    "edge": {"stroke": "#FFFFFF", "stroke-width": "4.5", "stroke-opacity": "0.8"},
    "end": {"stroke": INK, "stroke-width": "1.6"},
    "grid": {"stroke": GRID, "stroke-width": "1"},
    "idle": {"stroke": BRACKET, "stroke-width": "1.2", "stroke-dasharray": "1.5 4"},
    "lane": {"fill": LANE},
    "planned": {"fill": "none", "stroke": INK, "stroke-dasharray": "3 3", "stroke-opacity": "0.6"},
    "ring": {"fill": "#FFFFFF", "stroke": QUIET, "stroke-width": "1.6"},
    "wait": {"stroke": WAIT, "stroke-width": "2.4", "stroke-dasharray": "0.1 4.6", "stroke-linecap": "round"},
    "wait box": {"rx": "2", "fill": WAIT_FILL, "stroke": WAIT, "stroke-dasharray": "2.5 2"},
}
"""Styles as attributes: some SVG viewers ignore embedded style sheets."""

DARK = {
    INK: "#E8EBF0", PAPER: "#14181F", QUIET: "#A3ADBB", BRACKET: "#77818F", GRID: "#2A313C", LANE: "#1B2029",
    WAIT: "#FF9A5C", WAIT_FILL: "#38230F", "#F0B58F": "#8A4A1C", "#8792A3": "#6D7889",
    "#FDF1D8": "#3A2D10", "#FAE3B0": "#5A4312", "#8A5A00": "#F2B83F",
    "#E3F0F8": "#0F2C40", "#C3DEF0": "#124465", "#005483": "#5FB4E8",
    "#E0F3EC": "#0E3327", "#BCE3D5": "#11503C", "#005A42": "#4CC9A0",
    "#FAEEF5": "#3B2231", "#F2D6E5": "#5B3149", "#8A3F69": "#E59AC4",
    "#E9F6FD": "#12303F", "#CBE8F9": "#194A63", "#1B6C9C": "#7CC7F0",
}  # fmt: skip
"""Colours of the dark theme for those of the light one; full hues are equal in both."""

FAMILY = "Inter, 'DejaVu Sans', Verdana, sans-serif"

_WIDTHS: dict[str, dict[str, int]] = json.loads(
    (files(__package__) / "widths.json").read_text(encoding="utf-8")
)
_OTHER = 1000
_PART = re.compile(r"(, part \d+| #\d+)$")
_VERB = re.compile(r"^(update|sum) ")
_WORD = re.compile(r"\b([A-Za-z]{3})[A-Za-z_]{2,}(?=\d)")
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
        return f"{text[: keep - tail].rstrip('… .')}…{text[len(text) - tail :].lstrip('… .')}"

    keep = bisect_right(range(1, len(text)), room, key=lambda count: width(cut(count), size, bold))
    return cut(keep) if keep >= 3 else ""


class Names:
    """Names of one picture, which are shortened to the parts in which they differ."""

    def __init__(self, texts: Iterable[str]) -> None:
        paths = dict.fromkeys(path[0] for text in texts for path in _PATH.finditer(text))
        self._parts = [tuple(path.split(".")) for path in paths]
        self._short: dict[str, list[str]] = {}

    def fit(self, text: str, room: float, size: float, bold: bool = False, *, cut: bool = True) -> str:
        """Shorten `text` to `room` pixels by omitting redundant words: part of the batch, phase, modules that it shares
        with other names, letters before a number; with `cut`, by cutting its middle at last. Empty if nothing fits."""
        short = text
        for short in self._shorter(text):
            if width(short, size, bold) <= room:
                return short
        return fit(short, room, size, bold) if cut else ""

    def _shorter(self, text: str) -> Iterator[str]:
        yield text
        text = _PART.sub("", text)
        yield text
        text = _PHASE.sub("", text).removesuffix(" output")
        yield text
        forms = {path[0]: self._forms(path[0]) for path in _PATH.finditer(text)}
        for step in range(max(map(len, forms.values()), default=0)):
            now = {path: each[min(step, len(each) - 1)] for path, each in forms.items()}
            short = _PATH.sub(partial(_replaced, now), text)
            yield short
        text = short if forms else text
        text = _VERB.sub("", text)
        yield text
        text = _WORD.sub(r"\1", text)
        yield text
        if " … " in text:
            yield f"{text.partition(' … ')[0]} …"

    def _forms(self, path: str) -> list[str]:
        """Return ever shorter forms of a path that no other name of the picture has."""
        if path not in self._short:
            parts = tuple(path.split("."))
            differs = {
                frozenset(at for at, part in enumerate(parts) if at >= len(other) or other[at] != part)
                for other in self._parts
                if other != parts
            }
            differs.discard(frozenset())
            shown = set(range(len(parts)))
            self._short[path] = [path]
            distinct = frozenset().union(*differs)
            last = len(parts) - 1
            numbered = {at - 1 for at in distinct if parts[at].isdecimal()}
            for at in sorted(shown, key=lambda at: (at in distinct, at in numbered, at == last, at)):
                rest = shown - {at}
                if rest and all(rest & each for each in differs):
                    shown = rest
                    self._short[path].append(_elided(parts, shown))
            number = self._short[path][-1].lstrip("…")
            if number.isdecimal() and len(parts) > 1:
                word = parts[min(shown) - 1]
                longer = [form for form in self._short[path][:-1] if form != f"…{word}.{number}"]
                self._short[path] = [*longer, f"{word} {number}", number]
        return self._short[path]


def _replaced(forms: dict[str, str], path: re.Match[str]) -> str:
    return forms[path[0]]


def _elided(parts: Sequence[str], shown: set[int]) -> str:
    """Join the parts at the positions `shown`, with `…` for each row of others."""
    runs = [(visible, list(each)) for visible, each in groupby(range(len(parts)), key=shown.__contains__)]
    return "".join(".".join(parts[at] for at in run) if visible else "…" for visible, run in runs)
