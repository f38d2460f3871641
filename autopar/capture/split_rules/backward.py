"""Cuts of backward operators: gradients of inputs keep their rows, those of weights are sums over rows.

A composite kept whole in a joint graph is split in the forward like its ATen operator, and in the backward by
the transposed rule. If rows of the outputs depend on the same rows of some inputs, their gradients have these
rows too. Gradients of inputs that are needed whole are sums over the parts.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...ir.graph import OWN, SUMMED
from .registry import RULES, Call, Way, always, axis_of, rule, same_axes


def _masked(call: Call, *outputs: int) -> tuple[int | None, ...]:
    """Return the outputs' axes, None for outputs that the mask leaves out."""
    return tuple(axis if wanted else None for axis, wanted in zip(outputs, call["output_mask"], strict=True))


@rule("convolution_backward")
def convolution_backward(call: Call) -> Iterator[Way]:
    """Yield the batch axis: rows for the input, sums for weight and bias."""
    yield Way({"grad_output": 0, "input": 0}, _masked(call, 0, SUMMED, SUMMED))


@rule("native_layer_norm_backward", "_fused_rms_norm_backward", "native_group_norm_backward")
def norm_backward(call: Call) -> Iterator[Way]:
    """Yield axes before the normalised ones, or for groups the batch axis, which is also among the sizes:
    rows for the input, sums for weight and bias."""
    groups = "N" in call.arguments
    sums = (SUMMED,) * (len(call.outputs) - 1)
    for axis in range(1 if groups else call.rank("input") - len(call["normalized_shape"])):
        rows = dict.fromkeys(("grad_out", "input", "mean", "rstd"), axis)
        yield Way(rows, _masked(call, axis, *sums), (("N",),) if groups else ())


@rule("native_batch_norm_backward")
def batch_norm_backward(call: Call) -> Iterator[Way]:
    """Yield the channels in training; in evaluation, which does not read saved statistics, every other
    axis."""
    if call["train"]:
        channels = dict.fromkeys(("weight", "running_mean", "running_var", "save_mean", "save_invstd"), 0)
        yield Way({"grad_out": 1, "input": 1, **channels}, _masked(call, 1, 0, 0))
        return
    for axis in range(call.rank("input")):
        for saved in (OWN, None) if axis != 1 else ():
            rows = {"grad_out": axis, "input": axis, "save_mean": saved, "save_invstd": saved}
            yield Way(rows, _masked(call, axis, SUMMED, SUMMED))


@rule("_softmax_backward_data _log_softmax_backward_data glu_backward")
def softmax_backward(call: Call) -> Iterator[Way]:
    """Yield every axis but the one that softmax normalises or `glu` halves into values and gates."""
    name = "output" if "output" in call.arguments else "self"
    yield from same_axes(call, name, "grad_output", but=[axis_of(call["dim"], call.rank(name))])


@rule("embedding_dense_backward")
def embedding_backward(call: Call) -> Iterator[Way]:
    """Yield the axes of the indices, as sums, unless gradients are scaled by frequency; and the features."""
    rank = call.rank("indices")
    if not call["scale_grad_by_freq"]:
        for axis in range(rank):
            yield Way({"grad_output": axis, "indices": axis}, SUMMED)
    yield Way({"grad_output": rank}, 1)


@rule("_cdist_backward")
def cdist_backward(call: Call) -> Iterator[Way]:
    """Yield batch axes and the points of the left; the points of the right yield sums."""
    # torch 2.14 renamed the gradient from `grad` to `grad_output`.
    grad = "grad_output" if call.is_tensor("grad_output") else "grad"
    rank = call.rank(grad)
    if not rank == call.rank("x1") == call.rank("x2") == call.output.dim():
        return
    for axis in range(rank - 2):
        if len({call.shape(name)[axis] for name in (grad, "x1", "x2")}) == 1:
            yield Way(dict.fromkeys((grad, "x1", "x2", "cdist"), axis), axis)
    yield Way({grad: rank - 2, "x1": rank - 2, "cdist": rank - 2}, rank - 2)
    yield Way({grad: rank - 1, "x2": rank - 2, "cdist": rank - 1}, SUMMED)


@rule("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(call: Call) -> Iterator[Way]:
    """Yield the batch axis of images and grids."""
    yield Way({"grad_output": 0, "input": 0, "grid": 0}, _masked(call, 0, 0))


_RESIZES = (
    "upsample_nearest{n}d_backward _upsample_nearest_exact{n}d_backward upsample_linear{n}d_backward"
    " upsample_bilinear{n}d_backward upsample_bicubic{n}d_backward upsample_trilinear{n}d_backward"
    " _upsample_bilinear{n}d_aa_backward _upsample_bicubic{n}d_aa_backward _upsample_lanczos{n}d_aa_backward"
)


# Batch and channels, which the size has too.
rule(*(name.format(n=n) for n in (1, 2, 3) for name in _RESIZES.split()))(
    always(*(Way({"grad_output": axis}, axis, (("input_size", axis),)) for axis in range(2)))
)


@rule("slice_backward", "select_backward", "unfold_backward")
def along_backward(call: Call) -> Iterator[Way]:
    """Yield every axis but the one the forward worked along; every axis if a slice took the whole tensor."""
    rank = call.output.dim()
    dim = axis_of(call["dim"], rank)
    gone = dim if call.name == "aten::select_backward" else rank
    size = call["input_sizes"][dim]
    every = (
        call.name == "aten::slice_backward"
        and (call["start"], call["step"]) == (0, 1)
        and call["end"] >= size
    )
    for axis in range(rank):
        if axis != dim or every:
            given = "grad_in" if call.name == "aten::unfold_backward" else "grad_output"
            yield Way({given: axis - (axis > gone)}, axis, (("input_sizes", axis),))


class _Plain(Call):
    """The ATen call behind a composite's call; for a backward without saved outputs, outputs are their
    gradients."""

    def __init__(self, call: Call) -> None:
        backward = call.name.endswith("_backward")
        self.name = call.name.removesuffix("_backward").replace("autopar::", "aten::")
        self.arguments = {
            name: value for name, value in call.arguments.items() if name not in ("grads", "outputs", "needs")
        }
        self.position = call.position
        self.outputs = tuple(call.get("outputs") or call["grads"]) if backward else call.outputs


@rule("autopar::embedding_bag")
def bags(call: Call) -> Iterator[Way]:
    """Yield rows that are whole bags, and the features."""
    if call["offsets"] is None:
        yield Way({"indices": 0, "per_sample_weights": 0}, 0)
    yield Way({"weight": 1}, 1)


def composite(call: Call) -> Iterator[Way]:
    """Yield the ways of the operator behind a composite; for its backward, each of them transposed."""
    plain = _Plain(call)
    rule_of = RULES.get(plain.name) or RULES.get(plain.name.replace("aten::", "autopar::"))
    ways = rule_of(plain) if rule_of else iter(())
    if not call.name.endswith("_backward"):
        yield from ways
        return
    if call.get("scale_grad_by_freq"):
        return
    marks = zip(plain.tensors(), call["needs"], strict=True)
    needed = [(name, item) for (name, item, _), mark in marks if mark]
    for way in ways:
        axes_of_outputs = way.output_axes(len(plain.outputs))
        grads = [
            axis if isinstance(grad, torch.Tensor) else None
            for axis, grad in zip(axes_of_outputs, call["grads"])
        ]
        axes = (way.axis(name, item) for name, item in needed)
        yield Way(
            {**way.inputs, "grads": grads, "outputs": axes_of_outputs},
            tuple(SUMMED if axis is None else axis for axis in axes),
            way.scale,
        )


@rule("autopar::scaled_dot_product_attention_backward")
def attention_backward(call: Call) -> Iterator[Way]:
    """Yield the ways of any composite; with dropout and no mask the batch, if the forward is split too."""
    yield from composite(call)
    forms = {(call.rank(name), call[name].shape[0]) for name in ("query", "key", "value")}
    alike = len(forms) == 1 and call.rank("query") > 2
    if call["dropout_p"] != 0 and call["attn_mask"] is None and alike:
        yield Way({"grads": [0], "outputs": [0, 0], "query": 0, "key": 0, "value": 0}, 0)
