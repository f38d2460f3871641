"""Operators that a joint graph must not take apart: what a CPU, or any one device, makes of them is no task of
another.

Differentiated on a CPU, `scaled_dot_product_attention`, `lstm`, `embedding_bag` … become kernels of that CPU. So
while a call is traced each is `autopar::<name>` (`rules`), which stays one forward and one backward task, computed by
plain torch on whatever device its tensors are.
"""

from __future__ import annotations

from . import rules
from .define import KERNELS

__all__ = ["KERNELS", "rules"]
