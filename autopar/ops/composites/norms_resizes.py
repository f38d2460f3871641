"""Operators with one kernel each way on every device, which torch would take apart before differentiating, or
whose saved statistics are of another dtype on each device.
"""

from __future__ import annotations

from typing import Any

import torch

from .define import Composite, whole

_aten = torch.ops.aten
_RESIZES = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
"""
LOW = (torch.bfloat16, torch.float16)


def _wide(kind: str, args: tuple[Any, ...]) -> torch.dtype:
    return torch.float32


def _wide_on_accelerators(kind: str, args: tuple[Any, ...]) -> torch.dtype | None:
    return None if kind == "cpu" else torch.float32


_WIDE_ON_ACCELERATORS = (*(getattr(_aten, name).vec for name in _RESIZES.split()), _aten.rms_norm.default)
KEPT: dict[Any, Composite] = {
    _aten.cdist.default: whole(_aten.cdist.default, cast=_wide),
    **{plain: whole(plain, cast=_wide_on_accelerators) for plain in _WIDE_ON_ACCELERATORS},
}
NORMS: dict[Any, Composite] = {
    plain: whole(plain, cast=_wide_on_accelerators)
    for plain in (_aten.layer_norm.default, _aten.group_norm.default)
}


POOLS: dict[Any, list[int]] = {
    _aten.adaptive_avg_pool2d.default: [-1, -2],
    _aten.adaptive_avg_pool3d.default: [-1, -2, -3],
}
