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


class _Master:
    """A state value at its home, `owner[key]`, and its `weights`, the fingerprint. `stamp` grows with each change that
    `look` sees."""

    __slots__ = ("__weakref__", "key", "known", "name", "owner", "stamp", "weights")

    def __init__(self, name: str, owner: Mapping[str, Any], key: str) -> None:
        self.name, self.owner, self.key = name, owner, key
        self.weights: Weights | None = None
        self.stamp, self.known = 0, 0

    @property
    def tensor(self) -> Any:
        """The tensor that `look` saw last."""
        return self.weights.tensors[0] if self.weights is not None else None

    def look(self) -> int:
        """Return the current stamp of the tensor."""
        if self.weights is None:
            self.weights = Weights([(self.owner, self.key)])
            self.stamp += 1
        elif not self.weights.unchanged():
            self.weights.record()
            self.stamp += 1
        return self.stamp


class _Replica:
    """The copy of a state value on a device, never written to; `stamp` is that of the master when it was made.

    pinned: in pinned memory of the host, from which an accelerator copies at full speed and without the host.
    """

    __slots__ = ("__weakref__", "device", "master", "pinned", "place", "stamp", "tensor")

    def __init__(self, master: _Master, device: str, place: torch.device, pinned: bool) -> None:
        self.master, self.device, self.place, self.pinned = master, device, place, pinned
        self.tensor: Any = None
        self.stamp = -1


class Replicas:
    """Replicas of state on all devices, shared by the programs of a session. Safe for concurrent callers.

    A replica exists as long as any program uses it. It is never written to, since a running call, or a later
    backward, may read it. A change of the master is detected as `Weights` says; after writes that leave no trace, call
    `forget`. `transfers`: how many `fill` made.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._masters: weakref.WeakValueDictionary[tuple[int, str], _Master] = weakref.WeakValueDictionary()
        self._copies: weakref.WeakValueDictionary[tuple[int, str, str, bool], _Replica] = (
            weakref.WeakValueDictionary()
        )
        # The callers' streams of each accelerator.
        self._streams: dict[torch.device, set[torch.Stream]] = {}
        self.transfers = 0
        self._watched: weakref.WeakSet[Weights] = weakref.WeakSet()
        self.kernels: weakref.WeakKeyDictionary[Any, Mapping[str, int]] = weakref.WeakKeyDictionary()
        """Bytes on each device that the kernels of each program may take, most of them copies of the state."""
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

    def enter(self, devices: Iterable[torch.device]) -> None:
        """Note that a call from the current streams of these accelerators may read replicas."""
        with self._lock:
            for device in devices:
                self._streams.setdefault(device, set()).add(torch.accelerator.current_stream(device))

    def watch(self, places: Sequence[tuple[Mapping[str, Any], str]]) -> Weights:
        """Return the fingerprint of state, which also expires by `forget` and `written`."""
        weights = Weights(places)
        with self._lock:
            self._watched.add(weights)
        return weights

    def forget(self) -> None:
        """Copy everything again before it is next read."""
        self.written(None)

    def written(self, tensors: Collection[int] | None) -> None:
        """Copy tensors with these ids again before they are next read; all if None."""
        with self._lock:
            masters = [master.weights for master in self._masters.values()]
            for weights in (*masters, *self._watched):
                if weights is not None:
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
