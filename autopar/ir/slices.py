"""`Slice`, a state that is part of a parameter; and the lookup in a part of a table."""

from __future__ import annotations

from dataclasses import dataclass

WORDS = "autopar.embedding.words"
"""Target of a lookup in the rows `first` to `first + count` of a table, zeros for other indices: args `(table,
indices, first, count)`."""


@dataclass(frozen=True, slots=True)
class Slice:
    """`length` rows of the state `of` along `axis`, starting at `start`."""

    of: str
    axis: int
    start: int
    length: int

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of this part of a tensor of shape `whole`; empty if there is no such part."""
        if (
            not 0 <= self.axis < len(whole)
            or not 0 <= self.start <= self.start + self.length <= whole[self.axis]
        ):
            return ()
        return (*whole[: self.axis], self.length, *whole[self.axis + 1 :])
