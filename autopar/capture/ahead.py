"""Ahead-of-time capture of a call without running it; lists of equal modules can be shortened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias

import torch
from torch import fx, nn

from ..errors import CaptureError
from .captured import Captured
from .convert import captured_at
from .dynamo_private import TorchDynamoException, compiled
from .refusals import Untraceable, explain, no_graph, valued
from .region import Region, positional

Rewrite: TypeAlias = Callable[[fx.GraphModule], None]


class _Stopped(Exception):
    """Raised instead of running a graph, before any side effect; holds the graph and its arguments."""


def ahead(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], rewrite: Rewrite | None = None
) -> tuple[Captured, list[torch.Tensor]]:
    """Capture one call of a model or function; return its graph and its input tensors.

    `rewrite` changes Dynamo's graph in place. Grad mode and autocast are the caller's; the graph includes the
    backward if an output requires grad. Nothing runs, not even side effects of `forward`. Raises
    CaptureError, with the line and the change to make, if the call is not one graph.
    """
    name = getattr(model, "__name__", type(model).__name__)
    root = model if isinstance(model, nn.Module) else None

    def backend(module: fx.GraphModule, examples: Sequence[Any], **_: Any) -> Callable[..., NoReturn]:
        made: Region | Exception
        try:
            if rewrite is not None:
                rewrite(module)
            made = Region(module, examples, root, positional(model))
        except Exception as error:
            # Dynamo would wrap an error raised here.
            made = error

        def stop(*args: Any) -> NoReturn:
            raise _Stopped(made, args)

        return stop

    try:
        call, _ = compiled(model, backend, True, None)
        call(*args, **kwargs)
    except _Stopped as stopped:
        made, given = stopped.args
    except TorchDynamoException as error:
        raise no_graph(
            name, error, "use autopar.compile, which runs what lies between graphs as written"
        ) from error
    else:
        raise CaptureError(
            f"{name}: there is nothing to plan: torch.compile found no operation on tensors in this call, or is "
            "switched off"
        )
    if isinstance(made, Exception):
        text = explain(name, made)
        raise CaptureError(text if text.startswith(name) else f"{name}: {text}") from made
    try:
        captured = captured_at(made, given)
    except Untraceable as error:
        raise valued(name, made.module, error) from error
    return captured, captured.flatten(given)


FEWEST = 5
"""Least number of equal modules for which a list is shortened."""


@contextmanager
def shortened(model: nn.Module) -> Iterator[dict[str, int]]:
    """Within the block, shorten each list of equal modules to three; yield the real lengths by the list's path.

    Modules are equal if they have the same class, the same repr, and parameters of the same shapes and dtypes.
    """
    found: dict[str, tuple[nn.Module, dict[str, nn.Module | None]]] = {}
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) >= FEWEST:
            inside = any(path.startswith(f"{other}.") for other in found)
            if path and not inside and len({_form(child) for child in module}) == 1:
                found[path] = module, dict(module._modules)
    try:
        for module, children in found.values():
            module._modules = dict(list(children.items())[:3])
        yield {path: len(children) for path, (_, children) in found.items()}
    finally:
        for module, children in found.values():
            module._modules = children


def _form(module: nn.Module) -> tuple[object, ...]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return type(module), str(module), tuple((name, t.shape, t.dtype, t.requires_grad) for name, t in tensors)
