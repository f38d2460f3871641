"""`OpenSize`: an integer argument of a task that depends on the sizes of a call."""

from __future__ import annotations


class OpenSize(int):
    """An integer argument of a task with its value in the call that the graph was made for. In a call with other sizes
    it is the number at `place` among the sizes of that call, or its `share`: (rows of a part, rows of the batch)."""

    place: int
    share: tuple[int, int]

    def __new__(cls, value: int, place: int, share: tuple[int, int] = (1, 1)) -> OpenSize:
        """Return the number `value`, which is at `place` among the sizes of a call, or its share."""
        made = super().__new__(cls, value)
        made.place, made.share = place, share
        return made

    def of_part(self, rows: int, batch: int) -> OpenSize:
        """Return the number for a part with `rows` rows of the batch."""
        assert self.share == (1, 1), "a graph is split once"
        return OpenSize(self // batch * rows, self.place, (rows, batch))

    @property
    def code(self) -> str:
        """The Python expression for it; `n` are the sizes of the call."""
        number, (rows, batch) = f"n[{self.place}]", self.share
        return number if rows == batch else f"{number} // {batch} * {rows}"

    def __repr__(self) -> str:
        # Equal numbers at other places are other arguments.
        return f"OpenSize({int(self)}, {self.place}, {self.share})"

    __str__ = int.__repr__

    def __getnewargs__(self) -> tuple[int, int, tuple[int, int]]:  # type: ignore[override]
        return int(self), self.place, self.share
