"""Programs from the text that `str(program)` gives, so that tests can write programs by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import cast, get_args

from autopar.errors import ProgramError
from autopar.ir.program import (
    FORMAT,
    Buffer,
    Compute,
    Copy,
    Free,
    Kind,
    Lane,
    Piece,
    Program,
    Record,
    Step,
    Wait,
)


def parse(text: str) -> Program:
    """Return the program of a text; empty lines and lines that start with `#` are skipped.

    Raises ProgramError, which names the line that cannot be read. `check` says whether the program is valid.
    """
    return _Reader(text).program()


_TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*\"|\S+")


class _Reader:
    """Reader of the text form, line by line."""

    def __init__(self, text: str):
        self.lines = text.split("\n")
        self.number = 0

    def wrong(self, text: str) -> ProgramError:
        return ProgramError(
            f"line {self.number} of the program: {text}: {self.lines[self.number - 1].strip()!r}"
        )

    def rows(self) -> Iterator[list[str]]:
        """Yield the words of each non-empty line; names keep their quotes, so that none looks like a mark."""
        for number, line in enumerate(self.lines, 1):
            self.number, words = number, _TOKEN.findall(line)
            if words and not words[0].startswith("#"):
                yield words

    def name(self, word: str) -> str:
        try:
            return str(json.loads(word)) if word[0] == '"' else word
        except json.JSONDecodeError:
            raise self.wrong("a quoted name that does not end, or is not JSON") from None

    def count(self, text: str) -> int:
        if not text.isascii() or not text.isdigit():
            raise self.wrong(f"expected a number of bytes, found {text!r}")
        return int(text)

    def program(self) -> Program:
        name: str | None = None
        lanes: list[tuple[str, str, list[Step]]] = []
        buffers: list[Buffer] = []
        outputs: list[str] = []
        pairs: dict[str, list[tuple[str, str]]] = {"update": [], "keep": []}
        counts: dict[str, list[tuple[str, int]]] = {"workspace": [], "cap": []}
        for words in self.rows():
            if name is None:
                if " ".join(words[:3]) != FORMAT or len(words) != 4:
                    raise self.wrong(f"expected {FORMAT!r} and a name")
                name = self.name(words[3])
                continue
            match words:
                case ["cap" | "workspace" as what, of, count]:
                    counts[what].append((self.name(of), self.count(count)))
                case ["output", buffer]:
                    outputs.append(self.name(buffer))
                case ["update" | "keep" as what, buffer, "->", target]:
                    pairs[what].append((self.name(buffer), self.name(target)))
                case ["buffer", buffer, value, device, kind, count, *rest] if len(rest) in (0, 2):
                    if kind not in get_args(Kind):
                        raise self.wrong(f"{kind!r} is none of {', '.join(get_args(Kind))}")
                    if rest and rest[0] != "in":
                        raise self.wrong("expected 'in' and the buffer whose storage it shares")
                    name_of, value, device = map(self.name, (buffer, value, device))
                    storage = self.name(rest[1]) if rest else name_of
                    buffers.append(
                        Buffer(name_of, value, device, self.count(count), storage, cast(Kind, kind))
                    )
                case ["lane", lane, device]:
                    lanes.append((self.name(lane), self.name(device), []))
                case _ if lanes:
                    lanes[-1][2].append(self.step(words))
                case _:
                    raise self.wrong("expected cap, output, update, keep, workspace, buffer or lane")
        if name is None:
            raise ProgramError(f"the text is empty; a program starts with {FORMAT!r} and its name")
        return Program(
            name,
            tuple(Lane(lane, device, tuple(steps)) for lane, device, steps in lanes),
            tuple(buffers),
            tuple(outputs),
            updates=tuple(pairs["update"]),
            workspace=tuple(counts["workspace"]),
            caps=tuple(counts["cap"]),
            keeps=tuple(pairs["keep"]),
        )

    def step(self, words: list[str]) -> Step:
        match words[1:] if words[0].isdigit() else words:
            case ["compute" | "piece" as kind, *rest] if rest.count(":") == rest.count("->") == 1:
                colon, arrow = rest.index(":"), rest.index("->")
                parts = rest[:colon], rest[colon + 1 : arrow], rest[arrow + 1 :]
                tasks, read, made = (tuple(map(self.name, part)) for part in parts)
                if tasks and kind == "piece":
                    return Piece(tasks, read, made)
                if len(tasks) == 1:
                    return Compute(tasks[0], read, made)
            case ["copy", src, "->", dst]:
                return Copy(self.name(src), self.name(dst))
            case ["record", event]:
                return Record(self.name(event))
            case ["wait", event]:
                return Wait(self.name(event))
            case ["free", buffer]:
                return Free(self.name(buffer))
        raise self.wrong(
            "expected 'compute TASK : READS -> WRITES', 'piece TASKS : READS -> WRITES', 'copy SRC -> DST', "
            "'record EVENT', 'wait EVENT' or 'free BUFFER'"
        )
