"""Cuts of reductions, scans, sorts, softmaxes and norms: every axis but those they work along."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...ir.graph import OWN, SUMMED
from .pointwise import pointwise
from .registry import Call, Way, axes_of, axis_of, broadcast, rule, same_axes

_SAME_SHAPE = (
    "softmax log_softmax _softmax _log_softmax _safe_softmax cumsum cumprod cummax cummin logcumsumexp"
    " sort argsort msort topk special_softmax special_log_softmax"
)
_REDUCING = (
    "sum mean amax amin max min argmax argmin prod any all var std var_mean std_mean logsumexp norm nansum"
    " nanmean linalg_vector_norm median nanmedian mode kthvalue count_nonzero aminmax special_logsumexp"
)


@rule(_SAME_SHAPE)
def along(call: Call) -> Iterator[Way]:
    """Yield every axis of scans, sorts and softmaxes except the one they work along."""
    dim = 0 if call.name == "aten::msort" else call.get("dim", -1)
    if isinstance(dim, int):
        yield from same_axes(call, "self", but=[axis_of(dim, call.rank("self"))])


@rule(_REDUCING)
def reduction(call: Call) -> Iterator[Way]:
    """Yield axes that are not reduced, renumbered unless `keepdim`; for a sum, also the reduced axes."""
    if call.is_tensor("other"):
        yield from pointwise(call)
        return
    rank = call.rank("self")
    dim = call.get("dim")
    busy = axes_of(dim, rank)
    if dim is None and call.name in ("aten::kthvalue", "aten::median", "aten::mode"):
        return
    keep = bool(call.get("keepdim", False))
    for axis in range(rank):
        if axis not in busy:
            yield Way({"self": axis}, axis if keep else axis - sum(other < axis for other in busy))
        elif call.name in ("aten::sum", "aten::nansum"):
            yield Way({"self": axis}, SUMMED)


# Axes before the normalised ones; weight and bias stay whole.
rule("layer_norm native_layer_norm rms_norm _fused_rms_norm")(
    lambda call: same_axes(call, "input", last=len(call["normalized_shape"]))
)


@rule("group_norm", "native_group_norm", "instance_norm")
def group_norm(call: Call) -> Iterator[Way]:
    """Yield the batch axis; the native form also has the batch among its sizes."""
    if call.name == "aten::instance_norm" and (not call["use_input_stats"] or call.is_tensor("running_mean")):
        return
    yield Way({"input": 0}, 0, (("N",),) if "N" in call.arguments else ())


@rule(
    "batch_norm native_batch_norm _native_batch_norm_legit_no_training cudnn_batch_norm"
    " _native_batch_norm_legit _native_batch_norm_legit_functional"
)
def batch_norm(call: Call) -> Iterator[Way]:
    """Yield the channels, each with its own statistics; in evaluation also every other axis, with the same
    statistics in each part. In training, the statistics need the whole batch.
    """
    training = call.get("training", False)
    for axis in () if training else range(call.rank("input")):
        if axis != 1:
            yield Way({"input": axis}, (axis, *(OWN for _ in call.outputs[1:])))
    # The other operators write to the running statistics, although their schema does not say so.
    plain = not training or call.name.startswith("aten::_native_batch_norm_legit")
    if plain and all(output.shape == call.shape("input")[1:2] for output in call.outputs[1:]):
        channels = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), 0)
        yield Way({"input": 1, **channels}, (1, *(0 for _ in call.outputs[1:])))


# Every axis but the channels, if each has its own slope.
rule("prelu")(lambda call: same_axes(call, "self", but=[] if call["weight"].numel() == 1 else [1]))


@rule("cosine_similarity", "pairwise_distance", "linalg_cross", "linalg_vecdot")
def along_pair(call: Call) -> Iterator[Way]:
    """Yield every axis of the broadcast pair except the one that the operator works along."""
    tensors = [tensor for _, _, tensor in call.tensors()]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    dim = axis_of(call.get("dim", -1), len(shape))
    stays = call.name == "aten::linalg_cross" or call.get("keepdim", False)
    yield from broadcast(call, shape, but=[dim], gone=[] if stays else [dim])


@rule("quantile", "nanquantile")
def quantile(call: Call) -> Iterator[Way]:
    """Yield the axes of a reduction, if there are one quantile and one axis."""
    if call.get("dim") is not None and (not call.is_tensor("q") or call["q"].dim() == 0):
        yield from reduction(call)


@rule(
    "fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2"
    " fft_fftn fft_ifftn fft_rfftn fft_irfftn _fft_r2c _fft_c2c _fft_c2r fft_fftshift fft_ifftshift"
)
def fft(call: Call) -> Iterator[Way]:
    """Yield axes that are not transformed."""
    rank = call.rank("self")
    dim = call["dim"]
    if dim is None and call.get("s") is not None:
        dim = list(range(rank - len(call["s"]), rank))
    yield from same_axes(call, "self", but=axes_of(dim, rank))


@rule("stft")
def stft(call: Call) -> Iterator[Way]:
    """Yield the batch of signals."""
    if call.rank("self") == 2:
        yield Way({"self": 0}, 0)


@rule("bucketize", "isin", "searchsorted")
def lookup(call: Call) -> Iterator[Way]:
    """Yield each axis of the queries; the table is whole, or has a row for each row of queries."""
    name = "elements" if call.name == "aten::isin" else "self"
    if call.is_tensor(name):
        rows = call.name == "aten::searchsorted" and call.rank("sorted_sequence") > 1
        beside = ("sorted_sequence", "sorter") if rows else ()
        yield from same_axes(call, name, *beside, last=1 if rows else 0)
