"""`Slice`: which part of a parameter a state is; the lookup in a part of a table."""

from __future__ import annotations

from dataclasses import dataclass

WORDS = "autopar.embedding.words"
"""Target of a lookup in rows of a table, from `first` on, of `count` in all; zeros for what is in the others: args
`(table, indices, first, count)`."""


@dataclass(frozen=True, slots=True)
class Slice:
    """`length` rows of the state `of` along `axis`, from `start` on."""

    of: str
    axis: int
    start: int
    length: int

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of that part of a tensor of the shape `whole`; the empty one where there is no such part."""
        if (
            not 0 <= self.axis < len(whole)
            or not 0 <= self.start <= self.start + self.length <= whole[self.axis]
        ):
            return ()
        return (*whole[: self.axis], self.length, *whole[self.axis + 1 :])
