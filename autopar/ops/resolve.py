"""Resolution of the names in a graph to torch's objects; and torch's own Python bindings for operators (`fast`)."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, cast

import torch

from ..errors import ProgramError
from ..ir.graph import JOIN, PART, SUM, WORDS, Argument, Const, Ref, Task
from .composites import KERNELS
from .composites.recurrent import states_contiguous


def _join(
    parts: tuple[torch.Tensor, ...] | list[torch.Tensor], axis: int, order: tuple[int, ...] = ()
) -> torch.Tensor:
    if order:
        # A tensor that is dense in this order is row-major once its axes are permuted so.
        joined = _join([part.permute(order) for part in parts], order.index(axis))
        return joined.permute([order.index(axis) for axis in range(len(order))])
    joined = torch.cat(parts, axis)
    # If all parts share another memory format, torch keeps it.
    return joined if joined.is_contiguous() else joined.contiguous()


def _part(whole: torch.Tensor, axis: int, start: int, stop: int, count: int) -> torch.Tensor:
    unit = whole.shape[axis] // count
    return whole.narrow(axis, start * unit, (stop - start) * unit)


def _sum(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    first, *others = parts
    if not others:
        return first.clone()
    second, *others = others
    # With the strides of the summands, also along axes of one element.
    total = torch.add(first, second, out=torch.empty_like(first))
    for part in others:
        total += part
    return total


def _words(table: torch.Tensor, indices: torch.Tensor, first: int, count: int) -> torch.Tensor:
    local = indices - first
    # An index outside of the table reaches the first or last part, which refuses it as the whole table would.
    others = local < 0 if first else torch.zeros_like(local, dtype=torch.bool)
    if first + len(table) < count:
        others |= local >= len(table)
    rows = torch.nn.functional.embedding(local.masked_fill_(others, 0), table)
    return rows.masked_fill_(others.unsqueeze(-1), 0.0)


def _layer_norm_backward(
    gradient: torch.Tensor,
    data: torch.Tensor,
    shape: list[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    *others: Any,
) -> Any:
    # The kernels read the statistics as if they were contiguous, but a part of them need not be.
    operator = torch.ops.aten.native_layer_norm_backward.default
    return operator(gradient, data, shape, mean.contiguous(), rstd.contiguous(), *others)


_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Memory formats with the channels as the last axis, by number of axes."""


def _group_norm(data: torch.Tensor, *others: Any) -> Any:
    return torch.ops.aten.native_group_norm.default(_regular(data), *others)


def _group_norm_backward(gradient: torch.Tensor, data: torch.Tensor, *others: Any) -> Any:
    data = _regular(data)
    if gradient.stride() != data.stride():
        gradient = torch.empty_like(data).copy_(gradient)
    return torch.ops.aten.native_group_norm_backward.default(gradient, data, *others)


def _regular(data: torch.Tensor) -> torch.Tensor:
    """Return the tensor in a memory layout that the kernels of group norm support, as eager does before them.

    The trace omits this step if the fake has such a layout. For a batch of one, `view` gives other strides
    than its fake, and the kernel of the backward would read wrong elements.
    """
    if data.is_contiguous():
        return data
    if data.device.type == "cpu" and data.dim() in _LAST:
        last = torch.empty(data.shape, device="meta", memory_format=_LAST[data.dim()])
        if data.stride() == last.stride():
            return data
    return data.contiguous()


def _log_sigmoid(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # Only a CPU's kernel fills the buffer, but a CPU may compute the gradient from it.
    output, buffer = torch.ops.aten.log_sigmoid_forward.default(data)
    return output, buffer if buffer.shape == data.shape else data.abs().neg_().exp_()


def _dropout(data: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    # A CPU's eager dropout differs: it scales a mask of ones, then multiplies, and draws none for p = 1.
    if data.device.type != "cpu" or train is False:
        output, mask = torch.ops.aten.native_dropout.default(data, p, train)
        return output, mask
    mask = torch.empty_like(data, dtype=torch.bool)
    mask = mask.bernoulli_(1 - p) if p < 1 else mask.zero_()
    return (data * mask).mul_(_keep_factor(1 - p, data.dtype)), mask


def _dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    if gradient.device.type != "cpu":
        result: torch.Tensor = torch.ops.aten.native_dropout_backward.default(gradient, mask, scale)
        return result
    return (gradient * mask).mul_(_keep_factor(1 / scale if scale else 0.0, gradient.dtype))


@functools.cache
def _keep_factor(share: float, dtype: torch.dtype) -> float:
    """Return the factor for the elements that a dropout keeps, `share` of all, rounded as in eager's mask."""
    return torch.ones((), dtype=dtype).div_(share).item() if share else 0.0


def _resolved(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator that reinterprets elements, for tensors that are conjugated or negated when they are read."""

    def call(data: torch.Tensor, *others: Any) -> Any:
        # In the trace it was conjugated twice, but one of the two is done by a copy to another device.
        return operator(data.resolve_conj().resolve_neg(), *others)

    return call


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    JOIN: _join,
    PART: _part,
    SUM: _sum,
    WORDS: _words,
    **{
        f"aten.{name}.input": states_contiguous(getattr(torch.ops.aten, name).input)
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    },
    "aten.view_as_real.default": _resolved(torch.ops.aten.view_as_real.default),
    "aten.view.dtype": _resolved(torch.ops.aten.view.dtype),
    "aten.log_sigmoid_forward.default": _log_sigmoid,
    "aten.native_dropout.default": _dropout,
    "aten.native_dropout_backward.default": _dropout_backward,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten.native_group_norm.default": _group_norm,
    "aten.native_group_norm_backward.default": _group_norm_backward,
}


def target(name: str, calls: Mapping[str, Callable[..., Any]] | None = None) -> Callable[..., Any]:
    """Return the callable of a task's target: that which capture keeps in `calls`, autopar's own, or a torch operator
    overload."""
    if calls and name in calls:
        return calls[name]
    return _REPLACEMENTS.get(name) or _operator(name)


@functools.cache
def _operator(name: str) -> Callable[..., Any]:
    if name in KERNELS:
        return KERNELS[name]
    try:
        return cast(Callable[..., Any], attrgetter(name)(torch.ops))
    except AttributeError:
        raise ProgramError(
            f"torch {torch.__version__} has no operator {name!r}; capture the model again with this version"
        ) from None


def called(task: Task, function: Callable[..., Any], read: Callable[[str], Any], device: torch.device) -> Any:
    """Call a function on a task's arguments, with values read by `read`; return the result."""
    args = [argument(item, read, device) for item in task.args]
    return function(*args, **{name: argument(item, read, device) for name, item in task.kwargs})


def constant(text: str, device: torch.device) -> Any:
    """Return the object that a `Const` names; `device` is that of the task."""
    if text == "device":
        return device
    kind, _, rest = text.partition(".")
    if kind != "torch" or not rest or not hasattr(torch, rest):
        raise ProgramError(f"{text!r} is not a constant of torch {torch.__version__}")
    return getattr(torch, rest)


def argument(template: Argument, read: Callable[[str], Any], device: torch.device) -> Any:
    """Return the argument with its values read by `read` and its constants resolved."""
    if isinstance(template, Ref):
        return read(template.value)
    if isinstance(template, Const):
        return constant(template.text, device)
    if isinstance(template, tuple):
        return [argument(item, read, device) for item in template]
    return template


_NAMES = """
    abs.default cos.default erf.default exp.default floor.default log.default log1p.default
    logical_not.default neg.default reciprocal.default relu.default round.default rsqrt.default
    sigmoid.default sign.default sin.default sqrt.default tanh.default gelu.default softplus.default
    add.Tensor sub.Tensor mul.Tensor div.Tensor maximum.default minimum.default pow.Tensor_Tensor
    pow.Tensor_Scalar eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor eq.Scalar ne.Scalar
    lt.Scalar le.Scalar gt.Scalar ge.Scalar logical_and.default logical_or.default bitwise_and.Tensor
    bitwise_or.Tensor where.self clamp.default masked_fill.Scalar masked_fill.Tensor lerp.Scalar
    matmul.default mm.default bmm.default addmm.default baddbmm.default linear.default
    scaled_dot_product_attention.default conv1d.default conv2d.default conv3d.default layer_norm.default
    group_norm.default batch_norm.default native_layer_norm.default embedding.default softmax.int
    log_softmax.int max_pool2d.default avg_pool2d.default dropout.default cat.default stack.default
    chunk.default split_with_sizes.default unbind.int transpose.int permute.default reshape.default
    view.default unsqueeze.default squeeze.dim flatten.using_ints select.int expand.default
    contiguous.default clone.default t.default narrow.default index_select.default gather.default
    sum.default sum.dim_IntList mean.default mean.dim amax.default amin.default cumsum.default
    argmax.default tril.default triu.default roll.default flip.default
"""
OPERATORS = frozenset(f"aten.{name}" for name in _NAMES.split())
"""The overloads that a binding, which chooses an overload by the arguments, chooses too if it gets tensors
where the schema has tensors. The tests run each of them both ways."""
_FIXED_NORM = "aten._native_batch_norm_legit_no_training.default"
"""The operator traced for a BatchNorm that reads its running statistics."""


def fast(task: Task, operator: Callable[..., Any], alone: bool = False) -> Callable[..., Any]:
    """Return torch's Python binding equivalent to `operator`, the task's target, of which a call takes up to 1 µs less;
    `operator` if there is none.

    alone: only the first result is read.
    """
    if alone and task.target == _FIXED_NORM and not task.kwargs:
        return _normalize
    if task.target not in OPERATORS or not isinstance(operator, torch._ops.OpOverload):
        return operator
    binding = _binding(operator._schema.name.partition("::")[2])
    return binding if binding is not None and _fits(task, operator._schema) else operator


def _normalize(
    data: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> tuple[Any, None, None]:
    """Normalize as eager does, without statistics for a backward, which take two more kernels on a GPU."""
    enabled = torch.backends.cudnn.enabled
    return torch.batch_norm(data, weight, bias, mean, variance, False, momentum, epsilon, enabled), None, None


def _binding(name: str) -> Callable[..., Any] | None:
    """Return torch's C function, or the tensor method of that name."""
    for owner in (torch, torch.nn.functional, torch.Tensor):
        function = getattr(owner, name, None)
        if isinstance(function, types.BuiltinFunctionType | types.MethodDescriptorType):
            return function
    return None


def _fits(task: Task, schema: Any) -> bool:
    """Return True if the arguments determine the overload: tensors for tensors, keywords only where the schema has
    them."""
    keywords = {argument.name for argument in schema.arguments if argument.kwarg_only}
    if not keywords.issuperset(name for name, _ in task.kwargs):
        return False
    if str(schema.returns[0].type).startswith("List") and not task.unpack:
        return False
    return all(_alike(value, str(argument.type)) for value, argument in zip(task.args, schema.arguments))


def _alike(value: Argument, kind: str) -> bool:
    if kind == "Tensor":
        # The binding wraps a number into a tensor just as the overload does.
        return isinstance(value, Ref) or (isinstance(value, int | float) and not isinstance(value, bool))
    if kind == "List[Tensor]":
        return isinstance(value, tuple) and all(isinstance(item, Ref) for item in value)
    if kind == "Optional[Tensor]":
        return value is None or isinstance(value, Ref)
    return not isinstance(value, Ref)
