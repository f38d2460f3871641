"""Reasons that are worked out when they are asked for, as most plans never are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...ir.plan import Reason


class Lazily(Sequence[Reason]):
    """A reason for each of the `clusters`, in their order; each is worked out once, when it is first asked for."""

    def __init__(self, clusters: Iterable[str]) -> None:
        self.clusters = tuple(clusters)
        self.known: dict[int, Reason] = {}

    @abstractmethod
    def work_out(self, r: int) -> Reason:
        """The reason of cluster `r`."""

    def __len__(self) -> int:
        return len(self.clusters)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[r] for r in range(*index.indices(len(self))))
        r = range(len(self))[index]
        if r not in self.known:
            self.known[r] = self.work_out(r)
        return self.known[r]

    def __iter__(self) -> Iterator[Reason]:
        return (self[r] for r in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
