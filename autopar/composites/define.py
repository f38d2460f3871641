"""One aten operator as a capture-time operator `autopar::<name>` with a backward that is one operator too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("autopar", "FRAGMENT")
KERNELS: dict[str, Callable[..., Any]] = {}
"""What computes each operator of this package, by the target of its tasks."""


Like = Callable[..., Any]
Cast = Callable[[str, tuple[Any, ...]], torch.dtype | None]


@dataclass(frozen=True, slots=True)
class Composite:
    """Two operators: `forward(*arguments)`, all by position, and `backward(grads, *arguments, needs)`, which gives
    the gradients of the tensors among the arguments for which `needs` is true, in order, from those of the
    outputs (None: not asked for).
    """

    forward: torch._ops.OpOverload
    backward: torch._ops.OpOverload


def define(
    name: str,
    given: str,
    returned: str,
    call: Callable[..., Any],
    like: Like | None = None,
    cast: Cast | None = None,
) -> Composite:
    """Define `autopar::name(given) -> returned`, computed by `call`, and its backward, `call`'s VJP.

    `like(*arguments)` makes tensors of the shapes, dtypes and strides of the outputs (`call` on fake tensors by
    default). `cast(device type, arguments)` is the dtype to which autocast takes floating tensors, None when it
    leaves them.
    """
    bare = re.sub(r"=[^,]*", "", given)
    _LIBRARY.define(f"{name}({bare}) -> {returned}")
    _LIBRARY.define(f"{name}_backward(Tensor?[] grads, {bare}, bool[] needs) -> Tensor[]")
    forward = getattr(torch.ops.autopar, name).default
    backward = getattr(torch.ops.autopar, f"{name}_backward").default

    def gradients(grads: Sequence[Tensor | None], *rest: Any) -> list[Tensor]:
        *arguments, needs = rest
        return vjp(call, arguments, grads, needs)

    def fake_gradients(grads: Sequence[Tensor | None], *rest: Any) -> list[Tensor]:
        *arguments, needs = rest
        return [torch.empty_like(tensor) for tensor, needed in zip(tensors(arguments), needs) if needed]

    _LIBRARY.impl(name, call, "CompositeExplicitAutograd")
    _LIBRARY.impl(f"{name}_backward", gradients, "CompositeExplicitAutograd")
    torch.library.register_fake(forward, like or call, lib=_LIBRARY)
    torch.library.register_fake(backward, fake_gradients, lib=_LIBRARY)
    torch.library.register_autograd(forward, _formula(backward), setup_context=_keep, lib=_LIBRARY)
    if cast is not None:
        for kind in ("cpu", "cuda"):
            _LIBRARY.impl(name, _casting(forward, kind, cast), f"Autocast{kind.upper()}")
    KERNELS[f"autopar.{name}.default"] = call
    KERNELS[f"autopar.{name}_backward.default"] = gradients
    return Composite(forward, backward)


def whole(plain: torch._ops.OpOverload, like: Like | None = None, cast: Cast | None = None) -> Composite:
    """The stand-ins of an aten operator, with its own name, arguments and outputs."""
    text = str(plain._schema)
    given = text[text.index("(") + 1 : text.rindex(") ->")].replace("*, ", "")
    returned = text[text.rindex("->") + 2 :].strip()
    return define(plain._opname, given, returned, _positional(plain), like, cast)


def arguments(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a node by the schema of its operator, in order, defaults filled in."""
    schema: Any = node.target
    return {
        argument.name: node.args[place]
        if place < len(node.args)
        else node.kwargs.get(argument.name, argument.default_value)
        for place, argument in enumerate(schema._schema.arguments)
    }


def become(node: torch.fx.Node, target: Callable[..., Any], given: Iterable[Any]) -> None:
    """Let a node call something else; its meta stays."""
    node.target, node.args, node.kwargs = target, tuple(given), {}


def vjp(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    grads: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> list[Tensor]:
    """Gradients of the needed tensors among the arguments, in order, each in memory of its own.

    The function is computed again. A tensor that gets no gradient has zeros.
    """
    wanted: list[Tensor] = []
    turn = iter(needs)

    def fresh(tensor: Tensor) -> Tensor:
        copy = tensor.detach()
        if next(turn):
            wanted.append(copy.requires_grad_())
        return copy

    with torch.enable_grad():
        made = function(*replace(arguments, fresh))
    pairs = [
        (output, grad)
        for output, grad in zip(made if isinstance(made, (tuple, list)) else (made,), grads)
        if grad is not None and output.requires_grad
    ]
    if not pairs:
        return [torch.zeros_like(tensor) for tensor in wanted]
    outputs, given = zip(*pairs)
    found = torch.autograd.grad(outputs, wanted, given, allow_unused=True)
    return _apart([torch.zeros_like(t) if g is None else g for t, g in zip(wanted, found)], given)


def _apart(found: list[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """The gradients, copied where one shares memory with another or with what was given."""
    seen = {tensor.untyped_storage()._cdata for tensor in given}
    for place, tensor in enumerate(found):
        memory = tensor.untyped_storage()._cdata
        if memory in seen:
            found[place] = tensor.clone()
        seen.add(memory)
    return found


def tensors(arguments: Any) -> Iterator[Tensor]:
    """The tensors of arguments in order, those in lists included."""
    for item in arguments:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from tensors(item)


def replace(arguments: Any, change: Callable[[Tensor], Any]) -> tuple[Any, ...]:
    """The arguments with each tensor changed, in order."""
    return tuple(
        change(item)
        if isinstance(item, Tensor)
        else list(replace(item, change))
        if isinstance(item, (tuple, list))
        else item
        for item in arguments
    )


def _positional(plain: torch._ops.OpOverload) -> Callable[..., Any]:
    """The operator with its keyword-only arguments taken by position."""
    names = [argument.name for argument in plain._schema.arguments]
    bare = sum(not argument.kwarg_only for argument in plain._schema.arguments)
    if bare == len(names):
        return plain

    def call(*args: Any) -> Any:
        return plain(*args[:bare], **dict(zip(names[bare:], args[bare:])))

    return call


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors(inputs))
    ctx.rest = replace(inputs, lambda tensor: ...)


def _formula(backward: torch._ops.OpOverload) -> Callable[..., Any]:
    def formula(ctx: Any, *grads: Tensor | None) -> Any:
        saved = iter(ctx.saved_tensors)
        arguments = tuple(_restored(item, saved) for item in ctx.rest)
        marks = [need for item, need in zip(ctx.rest, ctx.needs_input_grad) for need in _marks(item, need)]
        found = iter(backward(list(grads), *arguments, marks) if any(marks) else ())
        turn = iter(marks)

        def gradient(item: Any) -> Any:
            if isinstance(item, list) and ... in item:
                return [gradient(part) for part in item]
            return next(found) if item is ... and next(turn) else None

        return tuple(gradient(item) for item in ctx.rest)

    return formula


def _restored(item: Any, saved: Iterator[Tensor]) -> Any:
    if isinstance(item, list):
        return [_restored(part, saved) for part in item]
    return next(saved) if item is ... else item


def _marks(item: Any, need: Any) -> list[bool]:
    """Whether each tensor of one argument needs its gradient."""
    if isinstance(item, list):
        return [bool(mark) for part, mark in zip(item, need) if part is ...] if ... in item else []
    return [bool(need)] if item is ... else []


def _casting(
    forward: torch._ops.OpOverload,
    kind: str,
    cast: Callable[[str, tuple[Any, ...]], torch.dtype | None],
) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        goal = cast(kind, args)
        given = args if goal is None else replace(args, lambda tensor: _lowered(tensor, goal))
        with torch.autocast(kind, enabled=False):
            return forward(*given)

    return call


def _lowered(tensor: Tensor, goal: torch.dtype) -> Tensor:
    # Autocast leaves doubles as they are.
    low = tensor.is_floating_point() and tensor.dtype is not torch.float64
    return tensor.to(goal) if low else tensor
