"""Model libraries, imported also beside a torchvision that was built for another torch."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from torch import library as operators


def library(name: str) -> Any:
    """The module of this name; ModuleNotFoundError where it is not installed.

    A torchvision built for another torch lacks its compiled operators and so does not import, and then nor do timm
    and the vision half of transformers. Models that call none of these operators need their schemas alone.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pass
    except RuntimeError:
        for stale in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
            del sys.modules[stale]
        for operator in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            operators.define(f"torchvision::{operator}", schema)
    return importlib.import_module(name)
