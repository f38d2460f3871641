"""A lane is an in-order queue with a host thread of its own: `Worker`.

A worker holds no reference to who uses it, so that an executor that is dropped can be collected and stop its
workers.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

Job = Callable[[], None]


class _Box:
    """What a worker and its thread share. Locks are binary semaphores: `go` says there is a job, `done` it
    has ended.
    """

    def __init__(self) -> None:
        self.go = threading.Lock()
        self.done = threading.Lock()
        self.go.acquire()
        self.done.acquire()
        self.job: Job | None = None
        self.stop = False


def _serve(box: _Box) -> None:
    while True:
        box.go.acquire()
        job, box.job = box.job, None
        if job is not None:
            job()
        del job
        # After an interrupt nobody takes `done`, so it may be free already.
        with contextlib.suppress(RuntimeError):
            box.done.release()
        if box.stop:
            return


class Worker:
    """A persistent daemon thread named `autopar <lane>` that does one job at a time. Jobs must not raise.

    It starts with `start`, for who wants to have it on his list before there is a thread to lose: an
    interrupt may come at any point.
    """

    def __init__(self, name: str) -> None:
        self._box = _Box()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_serve, args=(self._box,), name=f"autopar {name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Start a job; the one before must have been waited for."""
        self._box.job = job
        self._box.go.release()

    def wait(self) -> None:
        """Block until the submitted job has ended."""
        self._box.done.acquire()

    def dismiss(self) -> None:
        """Let the thread end after the job it may be doing, without waiting for it. Safe in any state."""
        self._box.stop = True
        with contextlib.suppress(RuntimeError):
            self._box.go.release()

    def stop(self) -> None:
        """End the thread after the job it may be doing, and wait until it has ended. Safe in any state."""
        self.dismiss()
        # A garbage collection may run this on the very thread it stops; in a forked child there is no thread.
        if self._thread is not threading.current_thread() and self._pid == os.getpid():
            # One whose start was interrupted cannot be joined; it ends all the same.
            with contextlib.suppress(RuntimeError):
                self._thread.join()


def stop_all(workers: list[Worker]) -> None:
    """End every worker of the list and empty it; once more, where it was interrupted."""
    for worker in workers:
        worker.dismiss()
    while workers:
        workers[-1].stop()
        workers.pop()
