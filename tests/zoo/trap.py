"""`trap`: a decorator that adds a small model of our own to the zoo."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from .entry import Call, add


class Does(nn.Module):
    """A module whose forward is `body(self, *args, **kwargs)`; keyword arguments become parts of it."""

    def __init__(self, body: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.body = body
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self, *args, **kwargs)


def trap(name: str, *args: Any, call: dict[str, Any] | None = None, **options: Any) -> Callable[..., Any]:
    """Decorate a maker of a model or plain function, to be called with fresh copies of `args` and `call`."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        def built() -> Call:
            fresh, names = copy.deepcopy((args, call or {}))
            return make(), fresh, names

        add(name, "trap", built, **options)
        return make

    return register
