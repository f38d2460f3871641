"""Torch's own Python bindings for operators, where equivalent: up to 1 µs less for each call.

A binding chooses its overload by the arguments. `OPERATORS` lists the overloads for which it chooses the very same
one, given tensors where the schema has tensors; the tests run each of them both ways.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from ..ir.graph import Argument, Ref, Task

_NAMES = """
    abs.default cos.default erf.default exp.default floor.default log.default log1p.default
    logical_not.default neg.default reciprocal.default relu.default round.default rsqrt.default
    sigmoid.default sign.default sin.default sqrt.default tanh.default gelu.default silu.default
    mish.default hardswish.default hardsigmoid.default leaky_relu.default elu.default softplus.default
    log_sigmoid.default add.Tensor sub.Tensor mul.Tensor div.Tensor maximum.default minimum.default
    pow.Tensor_Tensor pow.Tensor_Scalar eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor
    eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar logical_and.default logical_or.default
    bitwise_and.Tensor bitwise_or.Tensor where.self clamp.default masked_fill.Scalar masked_fill.Tensor
    lerp.Scalar matmul.default mm.default bmm.default addmm.default baddbmm.default linear.default
    scaled_dot_product_attention.default conv1d.default conv2d.default conv3d.default layer_norm.default
    group_norm.default batch_norm.default native_layer_norm.default embedding.default softmax.int
    log_softmax.int max_pool2d.default avg_pool2d.default adaptive_avg_pool2d.default dropout.default
    cat.default stack.default chunk.default split_with_sizes.default unbind.int transpose.int
    permute.default reshape.default view.default unsqueeze.default squeeze.dim flatten.using_ints
    select.int expand.default contiguous.default clone.default t.default narrow.default
    index_select.default gather.default sum.default sum.dim_IntList mean.default mean.dim amax.default
    amin.default cumsum.default argmax.default tril.default triu.default roll.default flip.default
"""
OPERATORS = frozenset(f"aten.{name}" for name in _NAMES.split())
_FIXED_NORM = "aten._native_batch_norm_legit_no_training.default"
"""A BatchNorm that reads its running statistics, as it is traced."""


def fast(task: Task, operator: Callable[..., Any], alone: bool = False) -> Callable[..., Any]:
    """Return the binding equivalent to `operator`, the task's target; `operator` if there is none.

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
    """Normalize as eager does, without the statistics for a backward, which take two more kernels on a GPU."""
    enabled = torch.backends.cudnn.enabled
    return torch.batch_norm(data, weight, bias, mean, variance, False, momentum, epsilon, enabled), None, None


def _binding(name: str) -> Callable[..., Any] | None:
    """Return torch's C function, or the tensor method of that name."""
    for owner in (torch, getattr(torch._C, "_nn", None)):
        found = getattr(owner, name, None)
        if isinstance(found, types.BuiltinFunctionType):
            return found
    found = getattr(torch.Tensor, name, None)
    return found if isinstance(found, types.MethodDescriptorType) else None


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
        # A number beside a tensor is wrapped by both alike.
        return isinstance(value, Ref) or (isinstance(value, int | float) and not isinstance(value, bool))
    if kind == "List[Tensor]":
        return isinstance(value, tuple) and all(isinstance(item, Ref) for item in value)
    if kind == "Optional[Tensor]":
        return value is None or isinstance(value, Ref)
    return not isinstance(value, Ref)
