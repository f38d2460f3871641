"""A model or a function as one Module of flat tensors, so that export meets every call in the same form."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import torch
from torch import nn

from ..strides import strides_of
from .private import pytree
from .signature import Arguments, refuse_hidden
from .states import slots, store
from .untouched import Attributes


@dataclass(frozen=True)
class Returned:
    """What a call gave back, apart from its tensors.

    `leaves` has None where `dynamic` says that a value of the graph goes. `grads`, `same` and `strides` are for
    those alone: whether each would require grad, (index, path or input number) of those that are a tensor of the
    caller's, and the strides of each (None: it has none). `changed` are the attributes that forward set, with what
    it set them to; they are set back.
    """

    leaves: tuple[Any, ...]
    dynamic: tuple[bool, ...]
    spec: Any
    grads: tuple[bool, ...]
    same: tuple[tuple[int, str | int], ...]
    changed: dict[str, Any]
    strides: tuple[tuple[Any, ...] | None, ...]

    def rebuild(self, values: list[Any]) -> Any:
        """The user's structure with these values in it."""
        given = iter(values)
        leaves = [next(given) if dynamic else leaf for leaf, dynamic in zip(self.leaves, self.dynamic)]
        return pytree.tree_unflatten(leaves, self.spec)

    def without_strides(self) -> Returned:
        """The same where nothing is known of strides."""
        return replace(self, strides=(None,) * len(self.strides))


class Call(nn.Module):
    """`forward(*tensors)` makes the user's call and returns the tensors of its output, flat, then those it
    kept.

    `returned` is what the last run gave back besides. Kept are tensors that forward stored in an attribute.
    """

    returned: Returned

    def __init__(self, function: Callable[..., Any], arguments: Arguments) -> None:
        super().__init__()
        self.arguments = arguments
        self.function = (function,)
        self.model = function if isinstance(function, nn.Module) else Function(function, arguments)

    @property
    def home(self) -> torch.device:
        """The device the call comes from: that of its first tensor, else of the model's, else the default
        device.
        """
        for tensor in (*self.arguments.tensors, *self.model.parameters(), *self.model.buffers()):
            return tensor.device
        return torch.get_default_device()

    def grads(self, count: int) -> tuple[bool, ...]:
        """For so many outputs whether each may require grad, where no trace can tell."""
        tensors = (*self.arguments.tensors, *self.model.parameters())
        return (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors),) * count

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self.arguments.join(tensors)
        held = [(slot, slot.tensor) for slot in slots(self.model)]
        attributes = Attributes(self.model, registered=False)
        try:
            output = self.model(*args, **kwargs)
        finally:
            changed = attributes.put_back()
        known: dict[int, str | int] = {}
        for slot, tensor in reversed(held):
            known[id(tensor)] = known[id(slot.owner.get(slot.key))] = slot.path
        known.update({id(tensor): index for index, tensor in enumerate(tensors)})
        store(held)
        leaves, spec = pytree.tree_flatten(output, is_leaf=_whole)
        dynamic = tuple(isinstance(leaf, VALUES) for leaf in leaves)
        for leaf, is_value in zip(leaves, dynamic):
            if not is_value:
                refuse_hidden(leaf, "the output, or a part of it,")
        flat = [leaf for leaf, is_value in zip(leaves, dynamic) if is_value]
        self.returned = Returned(
            tuple(None if is_value else leaf for leaf, is_value in zip(leaves, dynamic)),
            dynamic,
            spec,
            tuple(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in flat),
            tuple((index, known[id(leaf)]) for index, leaf in enumerate(flat) if id(leaf) in known),
            changed,
            tuple(map(strides_of, flat)),
        )
        kept = [
            leaf for leaf in pytree.tree_leaves(changed) if isinstance(leaf, VALUES) and id(leaf) not in known
        ]
        return (*flat, *kept)


VALUES = (torch.Tensor, torch.fx.Proxy, torch.SymInt, torch.SymFloat, torch.SymBool)


def _whole(item: Any) -> bool:
    # pytree opens a torch.Size and closes it as a tuple.
    return isinstance(item, torch.Size)


class Function(nn.Module):
    """A function as a Module: the Modules it uses, from arguments, closure cells and globals, are its
    children.
    """

    def __init__(self, function: Callable[..., Any], arguments: Arguments) -> None:
        super().__init__()
        self.function = (function,)
        taken: set[int] = set()
        for name, module in _modules(function, arguments):
            if id(module) not in taken:
                taken.add(id(module))
                self.add_module(_free(name, self), module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function[0](*args, **kwargs)


def _free(name: str, module: nn.Module) -> str:
    name = name.replace(".", "_")
    while hasattr(module, name):
        name += "_"
    return name


def _modules(function: Callable[..., Any], arguments: Arguments) -> Iterator[tuple[str, nn.Module]]:
    for name, item in reachable(function):
        if isinstance(item, nn.Module):
            yield name, item
    for index, constant in enumerate(arguments.constants):
        if isinstance(constant, nn.Module):
            yield f"argument_{index}", constant


def reachable(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """What a function can see by name: closure cells, globals it mentions, defaults, `self`; helpers it
    calls too.
    """
    pending: list[Any] = [function]
    seen: set[int] = set()
    while pending:
        current = pending.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        for name, item in _visible(current):
            yield name, item
            if isinstance(item, (list, tuple)):
                yield from ((f"{name}_{index}", part) for index, part in enumerate(item))
            elif isinstance(item, dict):
                yield from ((f"{name}_{key}", part) for key, part in item.items())
            elif _is_function(item) and not (getattr(item, "__module__", "") or "").startswith("torch"):
                pending.append(item)


def _is_function(item: Any) -> bool:
    return inspect.isfunction(item) or inspect.ismethod(item) or isinstance(item, functools.partial)


def _visible(function: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(function, functools.partial):
        yield "function", function.func
        yield from ((f"argument_{index}", item) for index, item in enumerate(function.args))
        yield from function.keywords.items()
        return
    if inspect.ismethod(function):
        yield "self", function.__self__
        if not isinstance(function.__self__, nn.Module):
            yield from getattr(function.__self__, "__dict__", {}).items()
        function = function.__func__
    elif not inspect.isfunction(function):
        yield from getattr(function, "__dict__", {}).items()
        function = vars(type(function)).get("__call__")
    if hasattr(function, "__wrapped__"):
        yield "wrapped", function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    for name in _global_names(code):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    parameters = code.co_varnames[: code.co_argcount]
    yield from zip(reversed(parameters), reversed(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
