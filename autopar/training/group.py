"""Data parallelism over the processes of a `torch.distributed` group, each with its own rows and devices.

Gradients are averaged as in DistributedDataParallel (Li et al., "PyTorch Distributed: Experiences on Accelerating Data
Parallel Training", VLDB 2020): in buckets in the order of the parameters, the same on all ranks whatever their plans.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..errors import CaptureError, DeviceError
from ..transform.buckets import filled
from .facts import optimizer_facts, state_facts
from .messages import BUCKET_BYTES, agree, share_weights
from .updates import as_grad

_PIECES = torch.ops.aten.unflatten_dense_tensors.default
"""The parts of a flat tensor in the shapes of others."""


class AveragingGroup:
    """The ranks over which a training step averages gradients, and the state that all share: rank 0's weights and
    buffers.

    Construction and `average` are collectives: every rank of the group calls them. Both raise CaptureError on every
    rank if a rank has another model, optimizer, criterion or options, or other versions; `average` compares the
    optimizer's settings and the trained parameters in each step, and its state in the first and after a load. Raises
    DeviceError if the group's backend cannot send tensors of the model's devices.

    options: the options of the step, by name.
    """

    def __init__(
        self,
        process_group: Any,
        loss: nn.Module,
        optimizer: torch.optim.Optimizer,
        options: Mapping[str, str],
    ) -> None:
        self.ranks = _ranks(process_group)
        self.size = dist.get_world_size(self.ranks)
        self.loss, self.optimizer, self.options = loss, optimizer, options
        self._trained: list[torch.Tensor] = []
        self._buckets: list[list[torch.Tensor]] = []
        self._buffers: list[tuple[dict[str, Any], str]] = []
        """The dict of each buffer's module and its key there, since the buffer may be replaced."""
        self._last_versions: list[tuple[Any, int]] = []
        self._sizes: list[Any] = []
        self._state: Any = None
        """The optimizer's state of the last comparison, which a load replaces; None: not compared since the first
        step."""
        self._agree()

    def _trainable(self) -> list[torch.Tensor]:
        """Return all tensors of the optimizer that may get a gradient."""
        groups = self.optimizer.param_groups
        return [each for group in groups for each in group["params"] if each.requires_grad]

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        return [*self.loss.named_parameters(), *self.loss.named_buffers()]

    def _settings(self) -> dict[str, str]:
        return optimizer_facts(
            self.optimizer, {id(each): name for name, each in self.loss.named_parameters()}
        )

    def _compare(self) -> None:
        """Compare the versions, models, optimizers and options of all ranks."""
        named, trained = self._named(), {id(each) for each in self._trainable()}
        places: dict[torch.device, int] = {}
        facts = {
            name: f"{each.dtype} {[*each.shape]} on {_place(each, places)}{', trained' * (id(each) in trained)}"
            for name, each in named
        }
        facts |= {"the order of tensors": ", ".join(facts), **self.options, **self._settings()}
        agree(lambda: facts | state_facts(self.optimizer, named), self.ranks, CaptureError)

    def _agree(self) -> None:
        """Compare all ranks, and broadcast rank 0's weights and buffers."""
        self._compare()
        named, trained = self._named(), {id(each) for each in self._trainable()}
        modules = [*self.loss.modules()]
        self._buffers = [(module._buffers, key) for module in modules for key in module._buffers]
        share_weights(named, self.ranks)
        # In the order in which the backward makes gradients: the last parameter's first.
        self._trained = [each for _, each in reversed(named) if id(each) in trained]
        self._buckets = filled(
            (((each.dtype, each.device), each.nbytes, each) for each in self._trained), BUCKET_BYTES
        )
        self._last_versions = self._versions()
        self._sizes = [_size(each) for each, _ in self._last_versions]

    def _require_agreement(self) -> None:
        """Compare the optimizers' settings and trained parameters over all ranks, by one all-reduce of some bytes; if
        they differ, or a rank has loaded a state or trains other parameters than before, compare everything."""
        digest = hashlib.blake2b(json.dumps(self._settings()).encode(), digest_size=8).digest()
        loaded = self.optimizer.state is not self._state
        others = {id(each) for each in self._trainable()} != {id(each) for each in self._trained}
        # Where all ranks have the same byte, its maximum and that of its complement add up to 255.
        marks = [*digest, *(255 - byte for byte in digest), loaded, others]
        extremes = torch.tensor(marks, dtype=torch.uint8, device=self._device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self.ranks)
        *largest, loaded, others = extremes.tolist()
        if others:
            self._agree()
        elif loaded or any(a + b != 255 for a, b in zip(largest[:8], largest[8:])):
            self._compare()
        self._state = self.optimizer.state

    def average(self) -> None:
        """Replace each `.grad` by its mean over all ranks, with None as zeros; None if no rank has one.

        Buffers that changed on any rank become those of the first rank, unless their size has changed on a rank: that
        of a rank's own rows may differ from those of others.
        """
        self._require_agreement()
        with torch.no_grad():
            versions = self._versions()
            is_changed = [
                now is not was or not 0 <= version == known
                for (now, version), (was, known) in zip(versions, self._last_versions)
            ]
            is_resized = [_size(now) != size for (now, _), size in zip(versions, self._sizes)]
            there = [each.grad is not None for each in self._trained]
            marks = torch.tensor([*there, *is_changed, *is_resized], dtype=torch.uint8, device=self._device)
            marked: Any = dist.all_reduce(marks, dist.ReduceOp.MAX, group=self.ranks, async_op=True)
            messages = [(bucket, *self._reduce(bucket)) for bucket in self._buckets]
            marked.wait()
            # Skip reading `marks`, which would wait for an accelerator, where it can say nothing.
            anywhere = [1] * len(there) if all(there) and not is_changed else marks.tolist()
            alive = {id(each) for each, some in zip(self._trained, anywhere) if some}
            for bucket, flat, work in messages:
                work.wait()
                for parameter, mean in zip(bucket, _PIECES(flat, bucket)):
                    parameter.grad = as_grad(mean, parameter, False) if id(parameter) in alive else None
            of_buffers = zip(versions, anywhere[len(there) :], anywhere[len(there) + len(versions) :])
            share_weights(
                (("", now) for (now, _), some, odd in of_buffers if some and not odd and now is not None),
                self.ranks,
            )
            self._last_versions = self._versions()

    @property
    def _device(self) -> torch.device:
        """The device of the tensors by which ranks agree."""
        return self._trained[0].device if self._trained else torch.get_default_device()

    def _reduce(self, bucket: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Any]:
        """Start the all-reduce of a bucket and free the rank's own gradients; return the means as one flat
        tensor, and the work."""
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        for parameter in bucket:
            parameter.grad = None
        # Divide before the sum, which may overflow in float16.
        flat.div_(self.size)
        return flat, dist.all_reduce(flat, group=self.ranks, async_op=True)

    def _versions(self) -> list[tuple[Any, int]]:
        """Return each buffer and its version; a buffer made in inference mode has no version and counts as changed."""
        buffers = [owner.get(key) for owner, key in self._buffers]
        return [
            (each, 0 if each is None else -1 if each.is_inference() else each._version) for each in buffers
        ]

    def __repr__(self) -> str:
        return f"{self.size} ranks over {dist.get_backend(self.ranks)}"


def _ranks(process_group: Any) -> dist.ProcessGroup:
    """Return the group that `process_group=` means."""
    if not (dist.is_available() and dist.is_initialized()):
        raise DeviceError(
            "process_group= needs the processes of a job: call torch.distributed.init_process_group() before, and "
            "start them with torchrun --nproc-per-node 2 script.py"
        )
    group = dist.group.WORLD if process_group is True else process_group
    if isinstance(group, dist.ProcessGroup):
        return group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise DeviceError(
            f"rank {dist.get_rank()} is not in the group; give it a group of its own, or call train_step on "
            "ranks of the group only"
        )
    raise DeviceError(
        f"process_group={process_group!r} is not a process group; give True for all ranks, what "
        "torch.distributed.new_group returns, or mesh.get_group()"
    )


def _size(buffer: torch.Tensor | None) -> Any:
    return None if buffer is None else (buffer.shape, buffer.dtype)


def _place(tensor: torch.Tensor, places: dict[torch.device, int]) -> str:
    """Return a tensor's device type and number among the model's devices; ranks may use other indices."""
    return f"{tensor.device.type} {places.setdefault(tensor.device, len(places))}"
