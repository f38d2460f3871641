"""What serves the signatures of a model, of which the least recently used is dropped."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol, TypeVar

log = logging.getLogger("autopar")

MOST = 8
"""Signatures that are kept."""


class Closed(Protocol):
    """What has threads to stop."""

    def close(self) -> None:
        """Stop them."""


Made = TypeVar("Made", bound=Closed)


class Kept(OrderedDict[Hashable, Made]):
    """By signature what serves it, of the `most` used last. `called` is what the log calls what is called with them."""

    def __init__(self, called: str, most: int = MOST) -> None:
        super().__init__()
        self.called, self.most, self._said = called, most, False

    def used(self, key: Hashable) -> Made | None:
        """What serves a signature, which is the most recently used from now on; None where nothing does."""
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def add(self, key: Hashable, made: Made) -> None:
        """Keep what serves a signature; the least recently used goes, which is said once."""
        self[key] = made
        if len(self) > self.most:
            self.popitem(last=False)[1].close()
            if not self._said:
                log.warning(
                    "%s was called with more than %d signatures; the plan of the oldest was dropped and will be made "
                    "again when it is needed. Pad the inputs to fewer shapes to avoid this", self.called, self.most,
                )  # fmt: skip
            self._said = True

    def drop(self, made: Made) -> None:
        """Forget what serves a signature; the next call makes it anew."""
        for key, own in list(self.items()):
            if own is made:
                del self[key]
        made.close()

    def close(self) -> None:
        """Stop the threads of all; the next call starts them again."""
        for made in tuple(self.values()):
            made.close()
