"""Functions that are captured again and again, because a constant that they read changes from call to call."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from .torch_private import failed_guards

log = logging.getLogger("autopar")

LIMIT = 64
"""Number of captures of one function, after which it is not captured again."""
SOON = 8
"""Number of captures for values of one constant, after which a warning tells what changes."""
_EQUAL = re.compile(r"(?:not |len\()?(L\[.*?)\)?(?: == .*)?")
_WORDS = (
    (re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]"), r".\1"),
    (re.compile(r"^L\['function'\](?:\.model\b)?"), "model"),
    (re.compile(r"^L\['(\w+)'\]"), r"\1"),
)
"""Dynamo's names of what a call reads, and the user's."""


def recaptured(frame: Any) -> tuple[str, str]:
    """Return why a function that is captured for a call will not be, and the user's line; empty texts if it will be.

    Logs a warning when the function has been captured `SOON` times for values of one constant.
    """
    guards = failed_guards(frame)
    if len(guards) != SOON and len(guards) < LIMIT:
        return "", ""
    name, place = changing(guards)
    if len(guards) < LIMIT:
        if name:
            log.warning(
                "%s, read at %s, changes from call to call, and each of its values is captured and planned anew, "
                "%d times at most; pass a tensor instead, or keep it out of what is compiled",
                name, place, LIMIT,
            )  # fmt: skip
        return "", ""
    why = f"{name} changes from call to call" if name else "what it reads changes from call to call"
    return f"captured {LIMIT} times, since {why}", place


def changing(guards: Sequence[str]) -> tuple[str, str]:
    """Return the constant, as `args[1]`, that has another value in each capture of a function, and the user's line.

    `guards`: for each capture the first guard that fails for the next call. Empty texts if it is not one constant.
    """
    found = set()
    for guard in guards:
        checked, *comments = re.split(r"\s+# ", guard)
        equal = _EQUAL.fullmatch(checked)
        if equal is None or "()" in equal[1]:
            return "", ""
        found.add((equal[1], comments[-1].partition(" in ")[0] if comments else ""))
    if len(found) != 1:
        return "", ""
    ((name, place),) = found
    for dynamos, users in _WORDS:
        name = dynamos.sub(users, name)
    return name, place
