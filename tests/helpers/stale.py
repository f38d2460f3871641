"""Replicas that would be read although they differ from the weight."""

from __future__ import annotations

import torch

from autopar.runtime.replicas import Replicas


def stale(pool: Replicas) -> list[str]:
    """Return names of state of which a replica counts as current, and has other values."""
    wrong: dict[str, None] = {}
    for copy in pool._copies.values():
        master = copy.master
        current = copy.stamp == master.stamp and master.unchanged()
        if current and not torch.equal(copy.tensor.cpu(), master.tensor.detach().cpu()):
            wrong[master.key] = None
    return list(wrong)
