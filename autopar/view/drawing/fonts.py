"""Advance widths of the picture's type, so that labels are placed by measure and not by guess.

A width is the greater of those of Inter (tabular figures) and DejaVu Sans, so a label laid out here fits
whichever of the two a viewer has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

FAMILY = "Inter, 'DejaVu Sans', Verdana, sans-serif"
MONO = "'JetBrains Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace"

_EXTRA = "×·–—…→←↓µ≤≥±÷°Δ√├┤éα"

_REGULAR = (
    "318 401 460 838 643 950 780 275 390 390 522 838 318 463 318 368 646 636 636 644 654 636 "
    "636 636 636 636 337 337 838 838 838 531 1000 700 686 735 770 632 586 775 752 295 552 664 "
    "564 898 748 787 639 787 695 643 651 738 700 989 685 685 685 390 368 390 838 500 500 613 "
    "635 568 635 615 369 635 634 278 278 579 278 974 634 612 635 635 411 536 392 634 592 825 "
    "592 592 551 636 342 636 838 838 318 500 1000 1000 955 955 955 637 838 838 838 838 500 700 "
    "645 602 602 615 659 "
)
_BOLD = (
    "348 456 521 838 696 1002 872 306 457 457 565 838 380 469 380 390 696 696 696 696 696 696 "
    "696 696 696 696 400 400 838 838 838 580 1031 774 762 752 830 683 683 821 837 372 570 775 "
    "637 995 837 850 733 850 770 720 682 812 774 1103 771 724 725 457 390 457 838 500 500 675 "
    "716 593 716 678 435 716 712 343 343 665 343 1042 712 687 716 716 493 595 478 712 652 924 "
    "645 652 582 712 374 712 838 838 380 500 1000 1000 955 955 955 736 838 838 838 838 500 774 "
    "674 602 602 678 687 "
)
_CHARACTERS = "".join(map(chr, range(32, 127))) + _EXTRA
_WIDTHS = {
    False: dict(zip(_CHARACTERS, map(int, _REGULAR.split()))),
    True: dict(zip(_CHARACTERS, map(int, _BOLD.split()))),
}
_OTHER = 1000
_PART = re.compile(r"(, part \d+| #\d+)$")
_PHASE = re.compile(r" (forward|backward)$")
# From the beginning of a word on: a name may be long, and from each of its letters on it would be read again.
_PATH = re.compile(r"(?<!\w)(…\w+|(?=\w*[A-Za-z_])\w+)(\.\w+)+")


def width(text: str, size: float, bold: bool = False) -> float:
    """Pixels `text` takes at `size` pixels, at most; a character outside the table counts as one em."""
    table = _WIDTHS[bold]
    return sum(table.get(character, _OTHER) for character in text) * size / 1000


def fit(text: str, room: float, size: float, bold: bool = False) -> str:
    """`text`, shortened with `…` in its middle to fit `room` pixels; empty when not even three
    characters do."""
    if width(text, size, bold) <= room:
        return text
    low, high = 0, len(text) - 1
    while low < high:
        keep = (low + high + 1) // 2
        if width(_keep(text, keep), size, bold) <= room:
            low = keep
        else:
            high = keep - 1
    return _keep(text, low) if low >= 3 else ""


def fit_words(text: str, room: float, size: float, bold: bool = False) -> str:
    """`text`, shortened to fit `room` pixels by what is told elsewhere or goes without saying: the part of the
    batch, the phase, the modules around; else cut at its end. Empty when not even three characters fit."""
    for short in _shorter(text):
        if width(short, size, bold) <= room:
            return short
    text = short
    low, high = 0, len(text)
    while low < high:
        keep = (low + high + 1) // 2
        low, high = (keep, high) if width(f"{text[:keep]}…", size, bold) <= room else (low, keep - 1)
    text = text[:low]
    return f"{text.rstrip(' …,.')}…" if len(text) >= 3 else ""


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


def wrap(text: str, room: float, size: float, lines: int) -> list[str]:
    """`text` in at most `lines` lines of `room` pixels, broken between words; the last is shortened to
    fit."""
    done: list[str] = []
    words = text.split()
    while words and len(done) < lines:
        count = 1
        while count < len(words) and width(" ".join(words[: count + 1]), size) <= room:
            count += 1
        if len(done) == lines - 1:
            count = len(words)
        done.append(fit(" ".join(words[:count]), room, size))
        words = words[count:]
    return done


def _keep(text: str, count: int) -> str:
    head = (count + 1) // 2
    return text[:head] + "…" + (text[len(text) - (count - head) :] if count > head else "")
