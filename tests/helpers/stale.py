"""Replicas that would be read although they differ from the weight."""

from __future__ import annotations

import torch

from autopar.capture.captured import reading
from autopar.runtime.replicas import Replicas


def stale(pool: Replicas) -> list[str]:
    """Return names of state of which a replica counts as current, apart from sampled elements, and has other values."""
    wrong: dict[str, None] = {}
    for copy in pool._copies.values():
        master = copy.master
        tensor = master.owner[master.key]
        seen = tensor is master.tensor and tensor._version == master.version
        current = seen and copy.stamp == master.stamp and master.reading == reading(tensor)
        if current and not torch.equal(copy.tensor.cpu(), tensor.detach().cpu()):
            wrong[master.name] = None
    return list(wrong)
