"""Composite operators, which a joint graph must not decompose: decompositions are specific to one kind of device.

Differentiated on a CPU, `scaled_dot_product_attention`, `lstm`, `embedding_bag` … become CPU kernels. So during
tracing each is `autopar::<name>` (`rules`), one forward and one backward task, computed by plain torch on the device
of its tensors.
"""

from __future__ import annotations

from . import rules
from .define import KERNELS

__all__ = ["KERNELS", "rules"]
