"""Ahead-of-time capture of a call without running it, also for any number of rows; lists of equal modules can be
shortened."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, NoReturn, TypeAlias

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from ..errors import CaptureError, PlanError
from ..ir.graph import Graph
from .captured import Captured
from .convert import captured_at
from .dynamo_private import TorchDynamoException, compiled, numbers_on_meta, open_first_axis
from .refusals import Untraceable, explain, no_graph, valued
from .region import Region, positional
from .symbols import extents_of
from .torch_private import pytree

Rewrite: TypeAlias = Callable[[fx.GraphModule], None]


class _Stopped(Exception):
    """Raised instead of running a graph, before any side effect; holds the graph and its arguments."""


def ahead(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], rewrite: Rewrite | None = None
) -> tuple[Captured, list[torch.Tensor]]:
    """Capture one call of a model or function; return its graph and its input tensors.

    `rewrite` changes Dynamo's graph in place. Grad mode and autocast are the caller's; the graph includes the
    backward if an output requires grad. Nothing runs, not even side effects of `forward`. Tensors may be on the meta
    device. Raises CaptureError, with the line and the change to make, if the call is not one graph.
    """
    name, (region, arguments) = _name(model), _region(model, args, kwargs, rewrite)
    try:
        captured = captured_at(region, arguments)
    except Untraceable as error:
        raise valued(name, region.module, error) from error
    return captured, captured.flatten(arguments)


def ahead_for_rows(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rows: int,
    dtype: torch.dtype | None = None,
) -> Callable[[int], Graph]:
    """Capture one call of a model on the meta device; return a function from any number of rows to its graph.

    The rows are the first axis of the tensors in `args` and `kwargs` that are `rows` long. No tensor is read; `dtype`
    replaces that of the floating-point ones. The function raises PlanError for another number than `rows` if the
    model computes otherwise for each. Raises CaptureError if the call is not one graph.
    """
    # No other size is likely to equal this one, which has the divisors of `rows`.
    many = 11 * rows
    try:
        region, arguments = _region(model, *_on_meta(args, kwargs, rows, many, dtype), None)
        places = [
            (position, place)
            for position, place, _ in region.symbols
            if extents_of(arguments[position])[place] == many
        ]
    except CaptureError:
        places = []
    if not places:
        region, arguments = _region(model, *_on_meta(args, kwargs, rows, rows, dtype), None)

    def graph(number: int) -> Graph:
        if not places and number != rows:
            raise PlanError(
                f"{_name(model)} computes differently for each number of rows, and was captured with the {rows} of its "
                f"example; give micro-batches of {rows} rows (--micro-batch {rows}), or an example with the rows of a "
                "micro-batch"
            )
        sized = [*arguments]
        for position, place in places:
            item = sized[position]
            sized[position] = number
            if isinstance(item, torch.Tensor):
                sized[position] = item.new_empty([*item.shape[:place], number, *item.shape[place + 1 :]])
        return captured_at(region, sized, divisible=False).graph

    return graph


def _on_meta(
    args: Sequence[Any], kwargs: Mapping[str, Any], rows: int, many: int, dtype: torch.dtype | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    with _OnMeta(rows, many, dtype):
        return copy.deepcopy((tuple(args), dict(kwargs)))


class _OnMeta(TorchFunctionMode):
    """Within the block, deep copies of tensors are on the meta device, without memory, and have `many` rows instead of
    `rows`, which a capture leaves open."""

    def __init__(self, rows: int, many: int, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.rows, self.many, self.dtype = rows, many, dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Copy a tensor; call other functions as they are."""
        if func is not torch.Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            memo[id(tensor)] = self._copy(tensor.detach()).requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self.dtype if tensor.is_floating_point() and self.dtype else tensor.dtype
        if not tensor.dim() or tensor.shape[0] != self.rows:
            return torch.empty_like(tensor, dtype=dtype, device="meta")
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        opened = torch.empty_permuted((self.many, *tensor.shape[1:]), order, dtype=dtype, device="meta")
        if self.many != self.rows:
            open_first_axis(opened)
        return opened


def _name(model: Callable[..., Any]) -> str:
    return getattr(model, "__name__", type(model).__name__)


def _region(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], rewrite: Rewrite | None
) -> tuple[Region, Sequence[Any]]:
    """Return the region of a call, which must be one graph, and the arguments of the region."""
    name = _name(model)
    root = model if isinstance(model, nn.Module) else None

    def backend(module: fx.GraphModule, examples: Sequence[Any], **_: Any) -> Callable[..., NoReturn]:
        region: Region | Exception
        try:
            if rewrite is not None:
                rewrite(module)
            region = Region(module, examples, root, positional(model))
        except Exception as error:
            # Dynamo would wrap an error raised here.
            region = error

        def stop(*args: Any) -> NoReturn:
            raise _Stopped(region, args)

        return stop

    try:
        call = compiled(model, backend, True, None)
        with numbers_on_meta() if _meta(root, args, kwargs) else nullcontext():
            call(*args, **kwargs)
    except _Stopped as stopped:
        region, arguments = stopped.args
    except TorchDynamoException as error:
        raise no_graph(
            name, error, "use autopar.compile, which runs what lies between graphs as written"
        ) from error
    else:
        raise CaptureError(
            f"{name}: there is nothing to plan: torch.compile found no operation on tensors in this call, or is "
            "switched off"
        )
    if isinstance(region, Exception):
        text = explain(name, region)
        raise CaptureError(text if text.startswith(name) else f"{name}: {text}") from region
    return region, arguments


def _meta(root: nn.Module | None, args: Any, kwargs: Any) -> bool:
    """Return True if a tensor of a model or of its arguments is on the meta device."""
    state = chain(root.parameters(), root.buffers()) if root is not None else ()
    leaves = chain(state, pytree.tree_leaves((args, kwargs)))
    return any(leaf.is_meta for leaf in leaves if isinstance(leaf, torch.Tensor))


FEWEST = 5
"""Least number of equal modules for which a list is shortened."""


@contextmanager
def shortened(model: nn.Module) -> Iterator[dict[str, int]]:
    """Within the block, shorten each list of equal modules to three; yield the real lengths by the list's path.

    Modules are equal if they have the same class, the same repr, and parameters of the same shapes and dtypes.
    """
    lists: dict[str, tuple[nn.Module, dict[str, nn.Module | None]]] = {}
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) >= FEWEST:
            inside = any(path.startswith(f"{other}.") for other in lists)
            if path and not inside and len({_form(child) for child in module}) == 1:
                lists[path] = module, dict(module._modules)
    try:
        for module, children in lists.values():
            module._modules = dict(list(children.items())[:3])
        yield {path: len(children) for path, (_, children) in lists.items()}
    finally:
        for module, children in lists.values():
            module._modules = children


def _form(module: nn.Module) -> tuple[object, ...]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return type(module), str(module), tuple((name, t.shape, t.dtype, t.requires_grad) for name, t in tensors)
