"""`Entry`: one model of the zoo and how to call it, and the registry the families add theirs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from benchmarks.timed import stacks

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A module or plain function, and the positional and keyword arguments it is called with."""


@dataclass(frozen=True)
class Entry:
    """A model and a call of it: `build()` gives the same weights and arguments every time.

    `train` leaves the model in training mode. Its calls are to be captured as `graphs` graphs at most; `written` is a
    pattern of why some of it runs as written (empty: all of it is to be placed). `quick` entries also run without the
    marker `zoo`. `random` entries draw from a generator in every call. `loose` says why its bits may differ from
    eager's even task by task.
    """

    name: str
    family: str
    make: Callable[[], Call]
    train: bool = False
    graphs: int = 1
    written: str = ""
    quick: bool = False
    random: bool = False
    loose: str = ""

    def build(self) -> Call:
        """Model (weights from seed 0, in the mode asked for), args and kwargs (from seed 1 on)."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, args, kwargs = self.make()
        if isinstance(model, torch.nn.Module):
            model.train(self.train)
        return model, args, kwargs


REGISTRY: dict[str, Entry] = {}
"""All entries by name, in the order they were added."""


def add(name: str, family: str, make: Callable[[], Call], **options: Any) -> None:
    """Register an entry; two of one name are a mistake."""
    assert name not in REGISTRY, name
    REGISTRY[name] = Entry(name, family, make, **options)


def library(name: str) -> Any:
    """Import a model library, or skip the test."""
    try:
        return stacks.library(name)
    except ModuleNotFoundError as lacking:
        pytest.skip(str(lacking), allow_module_level=True)


def tokens(batch: int = 2, length: int = 8, vocabulary: int = 64, seed: int = 1) -> torch.Tensor:
    """Token ids, none of them a special one (those below 5)."""
    return torch.randint(5, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    """Normal float32 numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
