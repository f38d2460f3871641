"""Replicas of state on devices: one pool for all programs of a session, refreshed when state has changed."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..capture.captured import reading
from ..system.cpython import unchanged
from ..system.memory import constant, seldom
from .flat_transfer import bring
from .traces import sample, traced

log = logging.getLogger("autopar")

_pools: weakref.WeakSet[Replicas] = weakref.WeakSet()


def _stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Report an optimizer's writes to every pool: a fused one leaves no trace in `_version`."""
    pools = tuple(_pools)
    if pools:
        written = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        state = (held for held in optimizer.state.values() if isinstance(held, Mapping))
        written.update(id(item) for held in state for item in held.values())
        for pool in pools:
            pool.written(written)


register_optimizer_step_post_hook(_stepped)


def _in_pinned_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in pinned memory, or the tensor itself if the system grants none."""
    with torch.inference_mode(False), torch.no_grad():
        try:
            return tensor.detach().pin_memory()
        except RuntimeError as error:
            log.info("a weight of %d bytes is not pinned: %s", tensor.nbytes, error)
            return tensor.detach()


def _sampled(tensors: Sequence[Any]) -> Callable[[], bool] | None:
    """Return the check of a few elements of tensors, which it keeps; None if there are none on the host."""
    elements = sample(tensors)
    return constant(elements, owners=tensors) if elements else None


class _Master:
    """A state value at its home, `owner[key]`, and what was last seen of it. `stamp` grows with each change.

    sampled: writes that leave no other trace (through `.data` or a numpy view) are detected by comparing a
    few elements, in 0.3 to 0.6 µs. A write that changes none of these goes unnoticed.
    """

    __slots__ = (
        "__weakref__", "_sample", "key", "known", "name", "owner", "reading", "sampled", "stamp", "tensor", "version",
    )  # fmt: skip

    def __init__(self, name: str, owner: Mapping[str, Any], key: str) -> None:
        self.name, self.owner, self.key = name, owner, key
        self.tensor: Any = None
        self.stamp, self.known, self.version = 0, 0, -1
        self.reading: tuple[Any, ...] = ()
        self.sampled = False
        self._sample: Callable[[], bool] | None = None

    def look(self) -> int:
        """Return the current stamp of the tensor."""
        tensor = self.owner[self.key]
        # A tensor made in inference mode has no version, and counts as changed.
        if tensor is self.tensor and 0 <= self.version == tensor._version and self.reading == reading(tensor):
            # Only now is it certain that the sampled memory still belongs to the tensor.
            same = self._sample
            if same is None or same():
                return self.stamp
        self.change()
        # Cleared before the tensor: another thread must not read the sample of a tensor that is gone.
        self._sample = None
        self.tensor = tensor
        self.reading = reading(tensor)
        self.version = -1 if tensor.is_inference() else tensor._version
        self._sample = _sampled([tensor]) if self.sampled else None
        return self.stamp

    def change(self) -> None:
        """Count as changed."""
        self.stamp += 1
        _Changes.count += 1

    def start_sampling(self) -> None:
        """From now on, also detect writes that leave no other trace."""
        if not self.sampled:
            self.sampled = True
            # If the tensor has moved since the last look, the next look samples it.
            if self.reading and self.reading == reading(self.tensor):
                self._sample = _sampled([self.tensor])


class _Replica:
    """The copy of a state value on a device, never written to; `stamp` is that of the master when it was made.

    pinned: in pinned memory of the host, from which an accelerator copies at full speed and without the host.
    """

    __slots__ = ("__weakref__", "device", "master", "pinned", "place", "stamp", "tensor")

    def __init__(self, master: _Master, device: str, place: torch.device, pinned: bool) -> None:
        self.master, self.device, self.place, self.pinned = master, device, place, pinned
        self.tensor: Any = None
        self.stamp = -1


class _Changes:
    """The number of changes of the stamp of any master."""

    count = 0


MANY = 16
"""Number of tensors from which their versions and readings are read from memory, all at once."""


class Watch:
    """The state of `masters` when last recorded.

    A change is detected by identity, `_version`, `reading`, an optimizer step or `Replicas.forget`. Writes
    without these traces (through `.data` or a numpy view) are detected by a few elements of each tensor. A
    check takes 0.03 to 0.5 µs per tensor. State made in inference mode has no version, and counts as changed.
    """

    def __init__(self, masters: Sequence[_Master]) -> None:
        self._masters = masters
        self.take()

    def take(self) -> None:
        """Record the current state."""
        self._stamps = [master.look() for master in self._masters]
        self._tensors = [master.tensor for master in self._masters]
        groups = traced(self._tensors) if len(self._tensors) >= MANY else None
        traces = (
            [] if groups else [(master.tensor, master.version, master.reading) for master in self._masters]
        )
        elements = sample(self._tensors)
        groups = [*(groups or ()), *([elements] if elements else ())]
        memory = constant(*groups, owners=self._tensors) if groups else None
        # As a pair: another thread must not read memory of elements whose traces it has not checked.
        self._recorded = traces, memory
        """Versions and readings of tensors, and the check of their elements in memory, or of all of these."""
        self._owners: Callable[[], bool] | None = None
        """The dicts that hold the tensors; they were found to hold these after `_changes` of masters."""
        self._changes, self._renewals = -1, seldom()

    def unchanged(self) -> bool:
        """Return True if nothing has changed."""
        owners = self._owners
        same = owners is not None and self._changes == _Changes.count and owners()
        if not same and not self._same():
            return False
        traces, memory = self._recorded
        for tensor, version, read in traces:
            if tensor._version != version or reading(tensor) != read:
                return False
        return memory is None or memory()

    def _same(self) -> bool:
        """Return True if the owners hold the same tensors, which have versions, and no master has changed."""
        changes, owners = _Changes.count, self._owners
        if owners is None or not owners():
            owners = self._renewals(lambda: unchanged(master.owner for master in self._masters))
        for master, tensor, stamp in zip(self._masters, self._tensors, self._stamps):
            if master.owner[master.key] is not tensor or master.stamp != stamp or master.version < 0:
                return False
        self._changes, self._owners = changes, owners
        return True


class Replicas:
    """Replicas of state on all devices, shared by the programs of a session. Safe for concurrent callers.

    A replica exists as long as any program uses it. It is never written to, since a running call, or a later
    backward, may read it. A change of the master is detected by identity, `_version`, `reading`, or an
    optimizer step. Other writes (through `.data` or a numpy view) are detected by a few elements of each
    tensor (`_Master`); after writes to other elements, call `forget`. `transfers`: how many `fill` made.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._masters: weakref.WeakValueDictionary[tuple[int, str], _Master] = weakref.WeakValueDictionary()
        self._copies: weakref.WeakValueDictionary[tuple[int, str, str, bool], _Replica] = (
            weakref.WeakValueDictionary()
        )
        # For each accelerator, the callers' streams, each with its event after the last replicas it kept.
        self._streams: dict[torch.device, dict[torch.Stream, torch.Event | None]] = {}
        self.transfers = 0
        self.kernels: weakref.WeakKeyDictionary[Any, Mapping[str, int]] = weakref.WeakKeyDictionary()
        """Bytes on each device that the kernels of each `TunedExecutor` may take, most of them copies of the state."""
        _pools.add(self)

    def master(self, name: str, owner: Mapping[str, Any], key: str) -> _Master:
        """Return the master of the state `name`, which is `owner[key]`."""
        with self._lock:
            found = self._masters.get((id(owner), key))
            if found is None:
                found = self._masters[id(owner), key] = _Master(name, owner, key)
            return found

    def replica(self, master: _Master, device: str, place: torch.device, pinned: bool = False) -> _Replica:
        """Return the replica of a state on `device`, shared by all programs; its tensor is on `place`."""
        key = id(master.owner), master.key, device, pinned
        with self._lock:
            found = self._copies.get(key)
            if found is None:
                found = self._copies[key] = _Replica(master, device, place, pinned)
                master.start_sampling()
            return found

    def fill(
        self,
        fed: Iterable[_Master | _Replica],
        masters: Iterable[_Master],
        copies: Iterable[_Replica],
    ) -> list[Any]:
        """Bring `copies` (of all `masters`) up to date; return the tensors of `fed`."""
        with self._lock:
            if not self._copies:
                # Nothing to compare them with. To look would keep tensors alive that are replaced later.
                return [each.owner[each.key] for each in fed if isinstance(each, _Master)]
            self._give_up(masters)
            stale = [copy for copy in copies if copy.stamp != copy.master.stamp]
            if stale:
                self._refresh(stale)
            return [each.tensor for each in fed]

    def keep(self, kept: Iterable[tuple[_Replica, torch.Tensor]]) -> None:
        """Keep tensors as replicas of state whose masters have just got the same values."""
        with self._lock:
            for copy, tensor in kept:
                self._take(copy, tensor, copy.master.look())
            for device, streams in self._streams.items():
                queue = torch.accelerator.current_stream(device)
                streams[queue] = queue.record_event()

    def enter(self, devices: Iterable[torch.device]) -> None:
        """Begin a call on accelerators: make the caller's streams wait for replicas made on other streams."""
        with self._lock:
            for device in devices:
                queue = torch.accelerator.current_stream(device)
                streams = self._streams.setdefault(device, {})
                for other, event in streams.items():
                    if event is not None and other != queue:
                        queue.wait_event(event)
                streams.setdefault(queue, None)

    def forget(self) -> None:
        """Copy everything again before it is next read."""
        with self._lock:
            for master in self._masters.values():
                master.change()

    def written(self, tensors: Collection[int]) -> None:
        """Copy tensors with these ids again before they are next read."""
        with self._lock:
            for master in self._masters.values():
                if id(master.tensor) in tensors or id(getattr(master.tensor, "_base", None)) in tensors:
                    master.change()

    def there(self) -> list[tuple[str, torch.Tensor]]:
        """Return the existing replicas, read or not, each with its device. Those in pinned memory are left
        out: plans do not count them."""
        with self._lock:
            copies = [copy for copy in self._copies.values() if not copy.pinned]
            return [(copy.device, copy.tensor) for copy in copies if copy.tensor is not None]

    def forked(self) -> None:
        """Reset in a forked child, where a missing thread may hold the lock."""
        self._lock = threading.RLock()

    def _give_up(self, masters: Iterable[_Master]) -> None:
        """Drop the outdated replicas of masters, including those that only other programs read."""
        changed = False
        for master in masters:
            if master.look() != master.known:
                master.known, changed = master.stamp, True
        if changed:
            for copy in self._copies.values():
                if copy.tensor is not None and copy.stamp != copy.master.stamp:
                    self._put(copy, None, -1)

    def _refresh(self, stale: Sequence[_Replica]) -> None:
        places: dict[str, list[_Replica]] = {}
        for copy in stale:
            if copy.pinned:
                copy.tensor, copy.stamp = _in_pinned_memory(copy.master.tensor), copy.master.stamp
                continue
            places.setdefault(copy.device, []).append(copy)
        for copies in places.values():
            tensors, count = bring([copy.master.tensor for copy in copies], copies[0].place)
            self.transfers += count
            for copy, tensor in zip(copies, tensors):
                copy.tensor, copy.stamp = tensor, copy.master.stamp

    def _take(self, copy: _Replica, tensor: torch.Tensor, stamp: int) -> None:
        form = copy.master.owner[copy.master.key]
        if (tensor.shape, tensor.dtype) != (form.shape, form.dtype):
            return
        if tensor.is_inference():
            with torch.inference_mode(False):
                tensor = tensor.clone()
        self._put(copy, tensor, stamp)

    def _put(self, copy: _Replica, tensor: torch.Tensor | None, stamp: int) -> None:
        old, copy.tensor, copy.stamp = copy.tensor, tensor, stamp
        if old is not None and old.device.type != "cpu":
            # Lanes of calls from these streams may still be reading it.
            for stream in self._streams.get(old.device, ()):
                old.record_stream(stream)
