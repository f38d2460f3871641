"""Random numbers under tensor parallelism: equal on all ranks for whole values, different for parts.

A rank's own numbers derive from the common generator, so that recomputation (activation checkpointing) draws the same
ones again.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...errors import RunError

_SEEDS = 1 << 62
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def draw_apart(module: nn.Module, rank: int) -> None:
    """Make a dropout module draw different numbers on each rank; the common generator advances by one number."""
    module.forward = partial(_forward, module, rank=rank)


def _forward(module: nn.Module, given: torch.Tensor, *, rank: int) -> Any:
    if not module.training:
        return type(module).forward(module, given)
    # From the CPU's, which all ranks draw from alike.
    seed = int(torch.randint(_SEEDS, (), device="cpu"))
    with restored(given.device):
        torch.manual_seed(seed ^ (rank + 1))
        return type(module).forward(module, given)


def restored(device: torch.device) -> AbstractContextManager[None]:
    """Return a context that restores the generators of the CPU and of a device."""
    return torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type)


def agree_on_random(model: nn.Module, group: dist.ProcessGroup, device: torch.device) -> None:
    """Broadcast the generators of rank 0, and check before each forward in training that they still agree.

    Models without dropout are left unchanged.
    """
    if not any(isinstance(module, _DROPOUTS) and module.p for module in model.modules()):
        return
    states = _states(device)
    for state in states:
        sent = state.to(device)
        dist.broadcast(sent, dist.get_global_rank(group, 0), group=group)
        state.copy_(sent)
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.get_device_module(device).set_rng_state(state, device)

    def look(module: nn.Module, _: Any) -> None:
        if not module.training:
            return
        digest = hashlib.sha256(b"".join(state.numpy().tobytes() for state in _states(device))).digest()
        mine = int.from_bytes(digest[:7], "big")
        seen = torch.tensor([mine, -mine], device=device)
        dist.all_reduce(seen, dist.ReduceOp.MAX, group=group)
        if int(seen[0]) != -int(seen[1]):
            raise RunError(
                "the ranks of a tensor split have different random generators, so that dropout would drop other "
                "elements on each; call torch.manual_seed with one number on all ranks, and draw nothing on some alone"
            )

    model.register_forward_pre_hook(look)


def _states(device: torch.device) -> list[torch.Tensor]:
    """Return the generator states of the CPU and of an accelerator."""
    apart = [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state(device)]
    return [torch.get_rng_state(), *apart]
