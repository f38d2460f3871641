"""Submodules that cannot be traced, kept whole: one task each, run as the user wrote it on the device of the
call.

While the rest is traced, an island's forward is one call of the operator `autopar::island`, whose results
have the shapes that an eager run has shown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import library, nn

from .. import casting
from ..errors import RunError
from .private import pytree
from .refusals import Untraceable
from .signature import Arguments, refuse_hidden, take_apart
from .states import Before, slots

library.define("autopar::island", "(str key, Tensor[] given) -> Tensor[]")


@dataclass(frozen=True)
class Island:
    """One call of a module that is not traced, as an eager run has shown it.

    `likes` are the output's tensors as meta tensors, `leaves` its other leaves (None for a tensor).
    """

    key: str
    path: str
    forward: Callable[..., Any]
    arguments: Arguments
    leaves: tuple[Any, ...]
    spec: Any
    likes: tuple[torch.Tensor, ...]
    casts: tuple[tuple[str, torch.dtype], ...]
    random: bool

    def __call__(self, *given: torch.Tensor) -> list[torch.Tensor]:
        """Run it as the user wrote it; RunError when a result is not of the shape seen at capture."""
        args, kwargs = self.arguments.join(given)
        with contextlib.ExitStack() as stack:
            for kind, dtype in self.casts:
                stack.enter_context(torch.autocast(kind, dtype))
            output = self.forward(*args, **kwargs)
        made = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        for tensor, like in zip(made, self.likes):
            if tensor.shape != like.shape or tensor.dtype != like.dtype:
                raise RunError(
                    f"{self.path} made {list(tensor.shape)} {tensor.dtype} where the call that was captured "
                    f"made {list(like.shape)} {like.dtype}: the shape depends on the values in a tensor, and "
                    "the rest of the model was planned for the first; pad the result to a fixed shape"
                )
        owned = {tensor.untyped_storage().data_ptr() for tensor in given}
        return [tensor.clone() if tensor.untyped_storage().data_ptr() in owned else tensor for tensor in made]

    def rebuild(self, tensors: list[torch.Tensor]) -> Any:
        """The module's output with these tensors in it."""
        rest = iter(tensors)
        return pytree.tree_unflatten(
            [next(rest) if leaf is None else leaf[0] for leaf in self.leaves], self.spec
        )


class Islands:
    """The modules of one model, by path, that are kept whole, and each of their calls."""

    def __init__(self, model: nn.Module, paths: tuple[str, ...]) -> None:
        self.modules = {path: model.get_submodule(path) for path in paths}
        self.calls: dict[str, Island] = {}
        self.order: dict[str, list[Island]] = {path: [] for path in paths}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record every call while the model runs eagerly; Untraceable for one that changes tensors in
        place.
        """
        with self._forwards(
            lambda path, forward: lambda *args, **kwargs: self._record(path, forward, args, kwargs)
        ):
            yield

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Let every call be the operator instead, in the order recorded."""
        turns = {path: iter(calls) for path, calls in self.order.items()}

        def stand_in(path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                island = next(turns[path])
                state = [slot.tensor for slot in slots(self.modules[path])]
                given = [*take_apart(args, kwargs).tensors, *state]
                return island.rebuild(torch.ops.autopar.island(island.key, given))

            return call

        with self._forwards(stand_in), _known(self.calls):
            yield

    @contextlib.contextmanager
    def _forwards(self, stand_in: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
        before = {path: vars(module).get("forward") for path, module in self.modules.items()}
        try:
            for path, module in self.modules.items():
                vars(module)["forward"] = stand_in(path, module.forward)
            yield
        finally:
            for path, module in self.modules.items():
                if before[path] is None:
                    vars(module).pop("forward", None)
                else:
                    vars(module)["forward"] = before[path]

    def _record(
        self, path: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        arguments = take_apart(args, kwargs)
        held = [*arguments.tensors, *(slot.tensor for slot in slots(self.modules[path]))]
        before = Before(held)
        state = torch.get_rng_state()
        output = forward(*args, **kwargs)
        if before.changed():
            raise Untraceable(f"{path} changes a buffer or an argument in place")
        leaves, spec = pytree.tree_flatten(output)
        for leaf in leaves:
            refuse_hidden(leaf, f"the output of {path}")
        calls = self.order[path]
        island = Island(
            f"autopar.island.{path}" + (f".{len(calls)}" if calls else ""),
            path,
            forward,
            arguments,
            tuple(None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves),
            spec,
            tuple(
                torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
                for leaf in leaves
                if isinstance(leaf, torch.Tensor)
            ),
            tuple(
                (kind, torch.get_autocast_dtype(kind))
                for kind in dict.fromkeys(("cpu", *(tensor.device.type for tensor in held)))
                if casting.enabled(kind)
            ),
            not torch.equal(state, torch.get_rng_state()),
        )
        calls.append(island)
        self.calls[island.key] = island
        return output


_CALLS: dict[str, Island] = {}


@contextlib.contextmanager
def _known(calls: dict[str, Island]) -> Iterator[None]:
    _CALLS.update(calls)
    try:
        yield
    finally:
        _CALLS.clear()


@library.register_fake("autopar::island")
def _island(key: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    return [
        torch.empty_strided(
            like.shape, like.stride(), dtype=like.dtype, device=given[0].device if given else "cpu"
        )
        for like in _CALLS[key].likes
    ]
