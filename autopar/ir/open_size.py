"""`OpenSize`: an integer argument of a task that depends on the sizes of a call."""

from __future__ import annotations


class OpenSize(int):
    """An integer argument of a task with its value in the call that the graph was made for. In a call with other sizes
    it is the number at `place` among the sizes of that call."""

    place: int

    def __new__(cls, value: int, place: int) -> OpenSize:
        """Return the number `value`, which is at `place` among the sizes of a call."""
        made = super().__new__(cls, value)
        made.place = place
        return made

    def __repr__(self) -> str:
        # Equal numbers at other places are other arguments.
        return f"OpenSize({int(self)}, {self.place})"

    __str__ = int.__repr__

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return int(self), self.place
