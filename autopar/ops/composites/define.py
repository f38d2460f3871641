"""Definition of composites: an ATen operator as a traced operator `autopar::<name>`. Its backward is one
operator, which recomputes the call or uses its tape. Rules replace torch's kernels during a trace (`standing_in`).

The private names of torch that composites need are in this file only.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, library
from torch._decomp import decomposition_table
from torch.nn.attention import SDPBackend

from .. import by_name, replace_tensors, tensors

LIBRARY = library.Library("autopar", "FRAGMENT")
"""The library of these operators."""
KERNELS: dict[str, Callable[..., Any]] = {}
"""Kernels of this package's operators, by the target of their tasks."""

Like = Callable[..., Any]
Cast = Callable[[str, tuple[Any, ...]], torch.dtype | None]
Shape = Callable[..., Sequence[int]]


def define(
    name: str,
    parameters: str,
    returns: str,
    call: Callable[..., Any],
    like: Like | None = None,
    cast: Cast | None = None,
    tape: Shape | None = None,
    worth: Callable[..., bool] = lambda *arguments: True,
    fixed: Callable[..., Container[int]] = lambda *arguments: (),
    draws: Callable[..., bool] = lambda *arguments: False,
    tags: Sequence[torch.Tag] = (),
) -> Callable[..., Any]:
    """Define `autopar::name(parameters) -> returns`, computed by `call`, and its backward; return the forward.

    The operator takes all `arguments` by position. `name_backward(grads, *arguments, needs)`, `call`'s VJP,
    returns the gradients of the tensor arguments that `needs` marks, in order, from those of the outputs (or
    None). `like(*arguments)` makes tensors with the outputs' shapes, dtypes and strides (default: `call` on
    fake tensors). `cast(device type, arguments)` is autocast's dtype for floating-point tensors, or None.

    With `tape`, the forward has a last output, the tape, without memory. It keeps the call's autograd graph
    alive for the backward, which then also reads the outputs. Without this graph (on another device, rejoined
    from parts), the backward recomputes the forward: a step of attention takes 1.2 times eager's time, of
    recurrent layers 1.4, otherwise as long (one core of a CPU). `tape(*arguments)` is the tape's shape in
    bytes that the graph keeps besides arguments and outputs, with the axes along which a call may be split.
    `worth(*arguments)`: the graph keeps no more. Tensors at positions `fixed(*arguments)` get no gradient by it.

    `draws(*arguments)`: the call draws random numbers, which only its tape can repeat; without it, the backward raises
    a RuntimeError. `tags`: those of torch, of the forward.
    """
    plain, bare = call, re.sub(r"=[^,]*", "", parameters)
    results = f"({returns.strip('()')}, Tensor)" if tape else returns
    read = "Tensor?[] grads, Tensor[] outputs" if tape else "Tensor?[] grads"
    LIBRARY.define(f"{name}({bare}) -> {results}", tags=tuple(tags))
    LIBRARY.define(f"{name}_backward({read}, {bare}, bool[] needs) -> Tensor[]")
    forward: torch._ops.OpOverload = getattr(torch.ops.autopar, name).default
    backward = getattr(torch.ops.autopar, f"{name}_backward").default
    fake = like or call
    if tape:
        call = recording(call, tape, worth, fixed, draws)
        fake = _fake_recording(fake, tape)

    def gradients(grads: Sequence[Tensor | None], *rest: Any) -> list[Tensor]:
        outputs, rest = (rest[0], rest[1:]) if tape else ((), rest)
        *arguments, needs = rest
        result = play(outputs, grads, needs) if tape else None
        if result is None and draws(*arguments):
            raise RuntimeError(
                f"the backward of {name} is not with its forward, whose random numbers it needs; report the model with "
                "this message"
            )
        return vjp(plain, arguments, grads, needs) if result is None else result

    def fake_gradients(grads: Sequence[Tensor | None], *rest: Any) -> list[Tensor]:
        *arguments, needs = rest[1:] if tape else rest
        return [torch.empty_like(tensor) for tensor, needed in zip(tensors(arguments), needs) if needed]

    LIBRARY.impl(name, call, "CompositeExplicitAutograd")
    LIBRARY.impl(f"{name}_backward", gradients, "CompositeExplicitAutograd")
    library.register_fake(forward, fake, lib=LIBRARY)
    library.register_fake(backward, fake_gradients, lib=LIBRARY)
    keep = functools.partial(_keep, bool(tape))
    library.register_autograd(forward, _formula(backward), setup_context=keep, lib=LIBRARY)
    if cast is not None:
        for key in (key for key in dir(torch._C.DispatchKey) if key.startswith("Autocast")):
            LIBRARY.impl(name, _casting(forward, key.removeprefix("Autocast").lower(), cast), key)
    KERNELS[f"autopar.{name}.default"] = call
    KERNELS[f"autopar.{name}_backward.default"] = gradients
    return forward


def whole(
    plain: torch._ops.OpOverload,
    like: Like | None = None,
    call: Callable[..., Any] | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """Return the composite of an ATen operator, with its name, arguments and outputs, computed by `call`
    (default: the operator); `options` are those of `define`."""
    text = str(plain._schema)
    parameters = text[text.index("(") + 1 : text.rindex(") ->")].replace("*, ", "")
    returns = text[text.rindex("->") + 2 :].strip()
    return define(plain._opname, parameters, returns, call or _positional(plain), like, **options)


def recording(
    call: Callable[..., Any],
    shape: Shape,
    worth: Callable[..., bool],
    fixed: Callable[..., Container[int]],
    draws: Callable[..., bool] = lambda *arguments: False,
) -> Callable[..., tuple[Tensor, ...]]:
    """Return the call with its tape, as in `define`."""

    def recorded(*arguments: Any) -> tuple[Tensor, ...]:
        size = shape(*arguments)
        first = next(tensors(arguments))
        tape = first.new_zeros((1,) * len(size), dtype=torch.uint8).expand(size)
        leaves: list[Tensor] = []
        without = fixed(*arguments)

        def leaf(tensor: Tensor) -> Tensor:
            free = tensor.is_floating_point() and len(leaves) not in without
            leaves.append(tensor.detach().requires_grad_(free))
            return leaves[-1]

        with torch.enable_grad():
            inputs = replace_tensors(arguments, leaf)
            if torch.is_inference_mode_enabled() or not (draws(*inputs) or worth(*inputs)):
                inputs = arguments
            outputs = _row(call(*inputs))
        if any(output.requires_grad for output in outputs):
            vars(tape).update(graph=(leaves, outputs), drawn=draws(*arguments))
        return (*(output.detach() for output in outputs), tape)

    return recorded


def _fake_recording(call: Callable[..., Any], shape: Shape) -> Callable[..., tuple[Tensor, ...]]:
    """Return the fake of a call with its tape."""

    def fake(*arguments: Any) -> tuple[Tensor, ...]:
        first = next(tensors(arguments))
        return (*_row(call(*arguments)), first.new_empty(shape(*arguments), dtype=torch.uint8))

    return fake


def play(
    outputs: Sequence[Tensor], grads: Sequence[Tensor | None], needs: Sequence[bool]
) -> list[Tensor] | None:
    """Return the gradients by the tape, the last output; None if it has no graph for them."""
    leaves, recorded = vars(outputs[-1]).get("graph", ((), ()))
    wanted = [leaf for leaf, needed in zip(leaves, needs) if needed]
    if not wanted or not all(leaf.requires_grad for leaf in wanted):
        return None
    gradients = _gradients(recorded, wanted, grads, retain=True)
    for tensor in gradients:
        if tensor.device.type != "cpu":
            # Autograd computes on the stream of the forward, and in its memory; a program without copies has another.
            tensor.record_stream(torch.accelerator.current_stream(tensor.device))
    return gradients


def drawn(saved: Sequence[Any]) -> dict[int, Any]:
    """Return the graphs of tapes among saved values that their backward cannot do without, by position."""
    held = ((place, vars(value)) for place, value in enumerate(saved) if isinstance(value, Tensor))
    return {place: attributes["graph"] for place, attributes in held if attributes.get("drawn")}


def fused_attention(*arguments: Any) -> bool:
    """Return True if torch's kernel for a call of attention does not save the whole score matrix."""
    choice = torch._fused_sdp_choice(*arguments[:6], scale=arguments[6], enable_gqa=arguments[7])
    return bool(choice != SDPBackend.MATH.value)


class Decompose(Exception):
    """Raised by a rule if torch's own decomposition is to be traced."""


@functools.cache
def _kernel(operator: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule as a kernel of its operator, called with all arguments of the schema by position.

    Always the same function: a trace sees by it that the kernels of an operator have not changed since the last one.
    """

    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            return rule(*by_name(operator, args, kwargs).values())
        except Decompose:
            return operator.decompose(*args, **kwargs)

    return kernel


@contextlib.contextmanager
def standing_in(rules: Mapping[Any, Callable[..., Any]], keys: Sequence[Any]) -> Iterator[None]:
    """Within the block, make the rules the kernels of their operators at these dispatch keys."""
    with contextlib.ExitStack() as stack:
        for operator, rule in rules.items():
            kernels = dict.fromkeys(keys, _kernel(operator, rule))
            stack.enter_context(_replaced(operator.py_kernels, kernels, operator._dispatch_cache.clear))
        yield


@contextlib.contextmanager
def shaped_whole(rules: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Within the block, let fake tensors pass through each of these operators as through one operator.

    Torch finds the shapes of the results of a recurrent layer by a loop over the steps, which takes a second and fixes
    the length.
    """
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    with standing_in(rules, keys), contextlib.ExitStack() as stack:
        for operator, rule in rules.items():
            if (loop := decomposition_table.get(operator)) is not None:
                # Torch caches answers about a decomposition by its name.
                kernel = functools.wraps(loop)(_kernel(operator, rule))
                stack.enter_context(_replaced(decomposition_table, {operator: kernel}))
        yield


@contextlib.contextmanager
def _replaced(
    table: dict[Any, Any], entries: dict[Any, Any], changed: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Within the block, replace entries of a table; `changed` is called after each change."""
    before = {key: table[key] for key in entries if key in table}
    try:
        table.update(entries)
        changed()
        yield
    finally:
        for key in entries:
            table.pop(key, None)
        table.update(before)
        changed()


def _positional(plain: torch._ops.OpOverload) -> Callable[..., Any]:
    """Return the operator with its keyword-only arguments as positional ones."""
    names = [argument.name for argument in plain._schema.arguments]
    bare = sum(not argument.kwarg_only for argument in plain._schema.arguments)
    if bare == len(names):
        return plain

    def call(*args: Any) -> Any:
        return plain(*args[:bare], **dict(zip(names[bare:], args[bare:])))

    return call


def _keep(outputs: bool, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.outputs = len(output) if outputs else 0
    ctx.save_for_backward(*(output if outputs else ()), *tensors(inputs))
    ctx.rest = replace_tensors(inputs, lambda tensor: ...)


def _formula(backward: torch._ops.OpOverload) -> Callable[..., Any]:
    def formula(ctx: Any, *grads: Tensor | None) -> Any:
        outputs, saved = ctx.saved_tensors[: ctx.outputs], iter(ctx.saved_tensors[ctx.outputs :])
        arguments = replace_tensors(ctx.rest, lambda _: next(saved), EllipsisType)
        marks = [need for item, need in zip(ctx.rest, ctx.needs_input_grad) for need in _marks(item, need)]
        read = (list(grads[: len(outputs) - 1]), list(outputs)) if outputs else (list(grads),)
        gradients = iter(backward(*read, *arguments, marks) if any(marks) else ())
        needed = iter(marks)

        def gradient(item: Any) -> Any:
            if isinstance(item, list) and ... in item:
                return [gradient(part) for part in item]
            return next(gradients) if item is ... and next(needed) else None

        return tuple(gradient(item) for item in ctx.rest)

    return formula


def _marks(item: Any, need: Any) -> list[bool]:
    """Return, for each tensor in one argument, whether it needs a gradient."""
    if isinstance(item, list):
        return [bool(mark) for part, mark in zip(item, need) if part is ...] if ... in item else []
    return [bool(need)] if item is ... else []


def _casting(forward: torch._ops.OpOverload, family: str, cast: Cast) -> Callable[..., Any]:
    """Return the operator under the autocast of one device family; a private backend has its own name."""

    def call(*args: Any) -> Any:
        kind = torch._C._get_privateuse1_backend_name() if family == "privateuse1" else family
        goal = cast(kind, args)
        cast_args = (
            args if goal is None else replace_tensors(args, lambda tensor: lowered(tensor, kind, goal))
        )
        with torch.autocast(kind, enabled=False):
            return forward(*cast_args)

    return call


def lowered(tensor: Tensor, kind: str, goal: torch.dtype) -> Tensor:
    """Return the tensor as autocast casts it on devices of type `kind`: doubles and other devices' stay."""
    low = tensor.is_floating_point() and tensor.dtype is not torch.float64 and tensor.device.type == kind
    return tensor.to(goal) if low else tensor


def vjp(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    grads: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> list[Tensor]:
    """Return the gradients of the needed tensor arguments, in order, each in its own memory.

    The function is computed again. A tensor without a gradient gets zeros.
    """
    wanted: list[Tensor] = []
    turn = iter(needs)

    def fresh(tensor: Tensor) -> Tensor:
        copy = tensor.detach()
        if next(turn):
            wanted.append(copy.requires_grad_())
        return copy

    with torch.enable_grad():
        outputs = function(*replace_tensors(arguments, fresh))
    return _gradients(_row(outputs), wanted, grads, retain=False)


def _gradients(
    outputs: Sequence[Tensor], wanted: list[Tensor], grads: Sequence[Tensor | None], retain: bool
) -> list[Tensor]:
    pairs = [
        (output, grad) for output, grad in zip(outputs, grads) if grad is not None and output.requires_grad
    ]
    if not pairs:
        return [torch.zeros_like(tensor) for tensor in wanted]
    results, tangents = zip(*pairs)
    # Autograd has one thread for each accelerator, and this thread may be waiting for this task to end.
    with torch.autograd.set_multithreading_enabled(False):
        gradients = torch.autograd.grad(results, wanted, tangents, retain_graph=retain, allow_unused=True)
    return _unalias([torch.zeros_like(t) if g is None else g for t, g in zip(wanted, gradients)], tangents)


def _row(results: Any) -> tuple[Tensor, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _unalias(gradients: list[Tensor], tangents: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients, copied if they share memory with each other or with an argument."""
    memories = {tensor.untyped_storage().data_ptr() for tensor in tangents}
    for place, tensor in enumerate(gradients):
        address = tensor.untyped_storage().data_ptr()
        if address in memories:
            gradients[place] = tensor.clone()
        memories.add(address)
    return gradients
