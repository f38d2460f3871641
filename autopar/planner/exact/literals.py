"""Literals of a model made from others, each combination once, with what the best known schedule makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ortools.sat.python import cp_model

Literal = Any
"""True, False, a Boolean variable or its negation."""


class Literals:
    """Boolean variables of `cp`, hinted as they are given."""

    def __init__(self, cp: cp_model.CpModel) -> None:
        self.cp = cp
        self._known: dict[int, bool] = {}
        self._made: dict[tuple[int, ...], Literal] = {}

    def new(self, name: str, hint: bool) -> Literal:
        """A variable that the best known schedule sets to `hint`."""
        variable = self.cp.new_bool_var(name)
        self.cp.add_hint(variable, hint)
        self._known[variable.index] = hint
        return variable

    def hint(self, literal: Literal) -> bool:
        """What the best known schedule makes of a literal."""
        if isinstance(literal, bool):
            return literal
        index = literal.index
        return self._known[index] if index >= 0 else not self._known[-index - 1]

    def no(self, literal: Literal) -> Literal:
        """The negation."""
        return not literal if isinstance(literal, bool) else ~literal

    def any(self, literals: Iterable[Literal], name: str = "any") -> Literal:
        """True where one of `literals` is."""
        some: dict[int, Literal] = {}
        for literal in literals:
            if literal is True:
                return True
            if literal is not False:
                some[literal.index] = literal
        if any(-index - 1 in some for index in some):
            return True
        if len(some) < 2:
            return next(iter(some.values()), False)
        key = tuple(sorted(some))
        if key not in self._made:
            found = self.new(name, any(self.hint(literal) for literal in some.values()))
            self.cp.add_bool_or(*some.values(), ~found)
            for literal in some.values():
                self.cp.add_implication(literal, found)
            self._made[key] = found
        return self._made[key]

    def all(self, literals: Iterable[Literal], name: str = "all") -> Literal:
        """True where all of `literals` are."""
        return self.no(self.any([self.no(literal) for literal in literals], name))
