"""One eager run of the call that leaves no trace, for what only a real run can tell."""

from __future__ import annotations

import torch

from ..errors import CaptureError
from .functions import Call
from .refusals import place
from .states import tensors_of


def probe(call: Call, name: str) -> None:
    """Run the call on copies of its tensors and put the model's back; CaptureError when the model itself fails."""
    saved = [(tensor, tensor.detach().clone()) for tensor in tensors_of(call.model)]
    tensors = [
        tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in call.arguments.tensors
    ]
    try:
        call(*tensors)
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(
            f"{name} fails on these arguments without autopar too{place(error)}: {type(error).__name__}: {error}"
        ) from error
    finally:
        with torch.no_grad():
            for tensor, copy in saved:
                if tensor.shape == copy.shape:
                    tensor.copy_(copy)
