"""Advance widths of the picture's type, and text shortened to a width, so that labels are placed by measure.

A width is the greater of those of Inter (tabular figures) and DejaVu Sans, so a label laid out here fits whichever
of the two a viewer has. `widths.json` holds them in thousandths of an em.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from importlib.resources import files

FAMILY = "Inter, 'DejaVu Sans', Verdana, sans-serif"

_WIDTHS: dict[str, dict[str, int]] = json.loads(
    (files(__package__) / "widths.json").read_text(encoding="utf-8")
)
_OTHER = 1000
_PART = re.compile(r"(, part \d+| #\d+)$")
_PHASE = re.compile(r" (forward|backward)$")
# From the beginning of a word on: a name may be long, and from each of its letters on it would be read again.
_PATH = re.compile(r"(?<!\w)(…\w+|(?=\w*[A-Za-z_])\w+)(\.\w+)+")


def width(text: str, size: float, bold: bool = False) -> float:
    """Pixels `text` takes at `size` pixels, at most; a character outside the table counts as one em."""
    table = _WIDTHS["bold" if bold else "regular"]
    return sum(table.get(character, _OTHER) for character in text) * size / 1000


def fit(text: str, room: float, size: float, bold: bool = False) -> str:
    """`text`, shortened with `…` in its middle to fit `room` pixels; empty when not even three characters do."""
    if width(text, size, bold) <= room:
        return text

    def cut(keep: int) -> str:
        tail = keep // 2
        return f"{text[: keep - tail]}…{text[len(text) - tail :]}"

    keep = bisect_right(range(1, len(text)), room, key=lambda count: width(cut(count), size, bold))
    return cut(keep) if keep >= 3 else ""


def fit_words(text: str, room: float, size: float, bold: bool = False) -> str:
    """`text`, shortened to fit `room` pixels by what is told elsewhere or goes without saying: the part of the
    batch, the phase, the modules around; else cut at its end. Empty when not even three characters fit."""
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
    """The names in a path, without `grad` and a number at its end, which say nothing alone."""
    return re.sub(r"(\.grad|\.\d+)$", "", path).split(".")
