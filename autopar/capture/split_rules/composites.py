"""Cuts of what stays whole in a joint graph: forward those of the aten operator, backward those turned round.

Where rows of the outputs depend on the same rows of some inputs and on others whole, the gradients of the former
have those rows, and to the gradients of the latter each part adds.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...ir.graph import SUMMED
from .registry import RULES, Call, Way, rule

_NAMES = """
    scaled_dot_product_attention lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    rms_norm layer_norm group_norm cdist
    upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
"""


class _Plain(Call):
    """The call of the aten operator behind a call forward or backward; one made backward has the gradients of its
    outputs for outputs.
    """

    def __init__(self, call: Call) -> None:
        backward = call.name.endswith("_backward")
        self.name = call.name.removesuffix("_backward").replace("autopar::", "aten::")
        self.arguments = {
            name: value for name, value in call.arguments.items() if name not in ("grads", "outputs", "needs")
        }
        self.position = call.position
        self.outputs = tuple(call.get("outputs") or call["grads"]) if backward else call.outputs

    def ways(self) -> Iterator[Way]:
        found = RULES.get(self.name, RULES.get(self.name.replace("aten::", "autopar::")))
        yield from found(self) if found else ()


@rule(*(f"autopar::{name}" for name in _NAMES.split()))
def forward(call: Call) -> Iterator[Way]:
    """As the aten operator of that name."""
    yield from _Plain(call).ways()


@rule("autopar::embedding_bag")
def bags(call: Call) -> Iterator[Way]:
    """Bags that are rows, and the features."""
    if call["offsets"] is None:
        yield Way({"indices": 0, "per_sample_weights": 0}, 0)
    yield Way({"weight": 1}, 1)


@rule(*(f"autopar::{name}_backward" for name in (*_NAMES.split(), "embedding_bag")))
def backward(call: Call) -> Iterator[Way]:
    """Every way forward, turned round."""
    if call.get("scale_grad_by_freq"):
        return
    plain = _Plain(call)
    marks = zip(plain.tensors(), call["needs"], strict=True)
    needed = [(name, index) for (name, index, _), mark in marks if mark]
    for way in plain.ways():
        made = (way.outputs,) * len(plain.outputs) if isinstance(way.outputs, int) else tuple(way.outputs)
        grads = [axis if isinstance(grad, torch.Tensor) else None for axis, grad in zip(made, call["grads"])]
        axes = (_axis(way, name, index) for name, index in needed)
        yield Way(
            {**way.inputs, "grads": grads, "outputs": made},
            tuple(SUMMED if axis is None else axis for axis in axes),
            way.scale,
        )


def _axis(way: Way, name: str, index: int | None) -> int | None:
    """The axis along which a way cuts one tensor among the arguments."""
    given = way.inputs.get(name)
    return given if given is None or isinstance(given, int) else given[index or 0]
