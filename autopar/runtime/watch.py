"""`Watch`: detects whether state has changed since kernels that fold it were made."""

from __future__ import annotations

from collections.abc import Sequence

from .replicas import Master, Sample


class Watch:
    """The state of `masters` when last recorded.

    A change is detected by identity, `_version`, address, an optimizer step or `Replicas.forget`, and, without these
    traces (through `.data` or a numpy view), by a few elements of each tensor. A check takes about 0.3 µs per tensor.
    State made in inference mode has no version, and counts as changed.
    """

    def __init__(self, masters: Sequence[Master]) -> None:
        self._masters = masters
        self.take()

    def take(self) -> None:
        """Record the current state."""
        stamps = [master.look() for master in self._masters]
        tensors = [master.tensor for master in self._masters]
        self._traces = [
            (master, master.owner, master.key, tensor, stamp, master.version, tensor.data_ptr())
            for master, tensor, stamp in zip(self._masters, tensors, stamps)
        ]
        samples = [sample for tensor in tensors if (sample := Sample.of(tensor)) is not None]
        self._samples = [(sample.read, sample.read()) for sample in samples]

    def unchanged(self) -> bool:
        """Return True if nothing has changed."""
        for master, owner, key, tensor, stamp, version, pointer in self._traces:
            if (
                owner[key] is not tensor
                or master.stamp != stamp
                or version < 0
                or tensor._version != version
                or tensor.data_ptr() != pointer
            ):
                return False
        return all(read() == saved for read, saved in self._samples)
