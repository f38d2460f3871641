"""Replicas of state on devices: one pool for all programs of a session, refreshed when state has changed."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from .flat_transfer import bring
from .weights import Weights

log = logging.getLogger("autopar")

_pools: weakref.WeakSet[Replicas] = weakref.WeakSet()


def _stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Report an optimizer's writes to every pool: a fused one leaves no trace in `_version`."""
    pools = tuple(_pools)
    if pools:
        written = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        state = (entry for entry in optimizer.state.values() if isinstance(entry, Mapping))
        written.update(id(item) for entry in state for item in entry.values())
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


class _Master(Weights):
    """The fingerprint of a state value at its home, `owner[key]`. `stamp` grows with each change that `look` sees."""

    def __init__(self, owner: Mapping[str, Any], key: str) -> None:
        super().__init__([(owner, key)])
        self.owner, self.key = owner, key
        self.stamp = 0

    def look(self) -> bool:
        """Record the tensor if it has changed; return True if it has."""
        if self.unchanged():
            return False
        self.record()
        self.stamp += 1
        return True


class _Replica:
    """The copy of a state value on a device, never written to; `stamp` is the stamp of the master when it was copied.

    pinned: in pinned memory of the host, from which an accelerator copies at full speed and without the host.
    """

    def __init__(self, master: _Master, device: str, place: torch.device, pinned: bool) -> None:
        self.master, self.device, self.place, self.pinned = master, device, place, pinned
        self.tensor: Any = None
        self.stamp = -1


class Replicas:
    """Replicas of state on all devices, shared by the programs of a session. Safe for concurrent callers.

    A replica exists as long as any program uses it. It is never written to, since a running call, or a later
    backward, may read it. A change of the master is detected as `Weights` says; after writes that leave no trace, call
    `forget`.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._masters: weakref.WeakValueDictionary[tuple[int, str], _Master] = weakref.WeakValueDictionary()
        self._copies: weakref.WeakValueDictionary[tuple[int, str, str, bool], _Replica] = (
            weakref.WeakValueDictionary()
        )
        # The callers' streams of each accelerator.
        self._streams: dict[torch.device, set[torch.Stream]] = {}
        self._fingerprints: weakref.WeakSet[Weights] = weakref.WeakSet()
        self.kernels: weakref.WeakKeyDictionary[Any, Mapping[str, int]] = weakref.WeakKeyDictionary()
        """Bytes on each device that the kernels of each program may take, most of them copies of the state."""
        _pools.add(self)

    def master(self, owner: Mapping[str, Any], key: str) -> _Master:
        """Return the fingerprint of the state `owner[key]`."""
        with self._lock:
            master = self._masters.get((id(owner), key))
            if master is None:
                master = self._masters[id(owner), key] = _Master(owner, key)
                self._fingerprints.add(master)
            return master

    def replica(self, master: _Master, device: str, place: torch.device, pinned: bool = False) -> _Replica:
        """Return the replica of a state on `device`, shared by all programs; its tensor is on `place`."""
        key = id(master.owner), master.key, device, pinned
        with self._lock:
            replica = self._copies.get(key)
            if replica is None:
                replica = self._copies[key] = _Replica(master, device, place, pinned)
            return replica

    def fill(
        self,
        reads: Iterable[_Master | _Replica],
        masters: Iterable[_Master],
        copies: Iterable[_Replica],
    ) -> list[Any]:
        """Bring `copies` (of all `masters`) up to date; return the tensors of `reads`."""
        with self._lock:
            if not self._copies:
                # Nothing to compare them with. To look would keep tensors alive that are replaced later.
                return [each.owner[each.key] for each in reads if isinstance(each, _Master)]
            if sum(master.look() for master in masters):
                self._drop_outdated()
            stale = [copy for copy in copies if copy.stamp != copy.master.stamp]
            if stale:
                self._refresh(stale)
            return [each.tensor for each in reads]

    def keep(self, replicas: Iterable[tuple[_Replica, torch.Tensor]]) -> None:
        """Keep tensors as replicas of state whose masters have just got the same values."""
        with self._lock:
            for copy, tensor in replicas:
                copy.master.look()
                self._take(copy, tensor)
            self._drop_outdated()

    def enter(self, devices: Iterable[torch.device]) -> None:
        """Note that a call from the current streams of these accelerators may read replicas."""
        with self._lock:
            for device in devices:
                self._streams.setdefault(device, set()).add(torch.accelerator.current_stream(device))

    def watch(self, places: Sequence[tuple[Mapping[str, Any], str]]) -> Weights:
        """Return the fingerprint of the current state, which also expires by `forget` and `written`."""
        weights = Weights(places)
        weights.record()
        with self._lock:
            self._fingerprints.add(weights)
        return weights

    def forget(self) -> None:
        """Copy everything again before it is next read."""
        self.written(None)

    def written(self, tensors: Collection[int] | None) -> None:
        """Copy tensors with these ids again before they are next read; all if None."""
        with self._lock:
            for weights in self._fingerprints:
                weights.expire(tensors)

    def there(self) -> list[tuple[str, torch.Tensor]]:
        """Return the existing replicas, read or not, each with its device. Those in pinned memory are left
        out: plans do not count them."""
        with self._lock:
            copies = [copy for copy in self._copies.values() if not copy.pinned]
            return [(copy.device, copy.tensor) for copy in copies if copy.tensor is not None]

    def forked(self) -> None:
        """Reset in a forked child, where a missing thread may hold the lock."""
        self._lock = threading.RLock()

    def _drop_outdated(self) -> None:
        """Drop outdated replicas, including those that only other programs read."""
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
            tensors = bring([copy.master.tensor for copy in copies], copies[0].place)
            for copy, tensor in zip(copies, tensors):
                copy.tensor, copy.stamp = tensor, copy.master.stamp

    def _take(self, copy: _Replica, tensor: torch.Tensor) -> None:
        form = copy.master.tensor
        if (tensor.shape, tensor.dtype) != (form.shape, form.dtype):
            return
        if tensor.is_inference():
            with torch.inference_mode(False):
                tensor = tensor.clone()
        self._put(copy, tensor, copy.master.stamp)

    def _put(self, copy: _Replica, tensor: torch.Tensor | None, stamp: int) -> None:
        old, copy.tensor, copy.stamp = copy.tensor, tensor, stamp
        if old is not None and old.device.type != "cpu":
            # Lanes of calls from these streams may still be reading it.
            for stream in self._streams.get(old.device, ()):
                old.record_stream(stream)
