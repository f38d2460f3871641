"""Heartbeats: if a rank dies, stops or hangs, every rank ends in bounded time, with the name of that rank. And
the store of the job, which listens at one address of rank 0's host instead of on all its interfaces
(`bound_store`).

Each rank writes a beat into the job's store every second and reads the beat of the next rank. The load is
thus linear in the number of ranks, and a living rank watches next to any set of dead ones. A fault is written
to the store, and all ranks read it. A second thread ends the process even if the first one waits for a lost
store, or the main thread waits for a collective that no rank will complete.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

import torch.distributed as dist

from ...errors import RunError
from ...system import process
from ...system.text import brief
from ...training.messages import Group, rank_of, size_of

log = logging.getLogger("autopar")

EXIT_CODE = 70
"""Exit code of a process that an error in its main thread could not end."""

_LOST = re.compile(
    r"gloo|NCCL|closed by peer|reset by peer|Broken pipe|[Tt]imed out|TCPStore|remote process exited",
    re.ASCII,
)
"""Error texts by which a collective reports that another rank is gone."""

_WAITING = tuple(
    os.path.join(*parts)
    for parts in (
        ("autograd", "graph.py"),
        ("autopar", "training", "group.py"),
        ("autopar", "distributed", "pipeline", "reduction.py"),
    )
)
"""Files whose lines wait for other ranks by calls that have no frame of their own."""

SETTLE_S = 1.0
"""Most seconds that the end of a block waits for other threads of its process."""
LOOK_S, LOOKS = 0.01, 3
"""Seconds between two looks at these threads, and the number of successive looks at which all must sleep."""

_guards = Counter[str]()
"""Number of guards of each group so far: ranks of one group may have been in others, apart."""
_jobs = itertools.count()


class _Guard:
    """The watch over the ranks of a group: a context, see `guarded`."""

    def __init__(self, group: Group, timeout_s: float, step_timeout_s: float | None, grace_s: float) -> None:
        self.rank, self.size = rank_of(group), size_of(group)
        self.timeout_s, self.step_timeout_s, self.grace_s = timeout_s, step_timeout_s, grace_s
        self.last_step: int | None = None
        self._interval = min(1.0, timeout_s / 5)
        self._main = threading.get_ident()
        self._stop, self._left = threading.Event(), threading.Event()
        # Seconds in which this process was awake: beats that it missed while stopped do not count.
        self._awake = self._answered = self._stepped = self._heard = 0.0
        self._count, self._next = 0, (self.rank + 1) % self.size
        self._last: dict[str, Any] = {}
        self._first: dict[str, Any] = {}
        self._writing = threading.Lock()
        self._failed: dict[str, Any] = {}
        # A connection of its own, since another user of the store may block in a call. It opens no port.
        world: Any = group if group is not None else dist.group.WORLD
        self._store = world.get_group_store().clone()
        self._at = f"autopar/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_guards[world.group_name]}"
        _guards[world.group_name] += 1
        self._threads = [
            threading.Thread(target=target, name=f"autopar {name}", daemon=True)
            for name, target in (("heartbeat", self._beats), ("watch", self._watches))
        ]

    @property
    def fault(self) -> str:
        """A sentence about the failed rank; empty while there is none."""
        return str(self._failed.get("text", ""))

    def step(self, number: int | None = None) -> None:
        """Note the start of a step (`number`; default: the last one plus 1).

        Raises RunError that names the failed rank, if there is one.
        """
        if self.fault:
            raise RunError(self.fault)
        if number is None:
            number = 0 if self.last_step is None else self.last_step + 1
        # A number of numpy or torch would be no JSON.
        self.last_step, self._stepped = int(number), self._awake

    def __enter__(self) -> _Guard:
        """Wait for rank 0 to start, then begin to beat and to watch."""
        self._write()
        self._first = json.loads(self._store.get(f"{self._at}/0"))
        self._store.set_timeout(timedelta(seconds=self.timeout_s))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        """Stop watching; report an error of this rank."""
        try:
            if error is None or (isinstance(error, SystemExit) and not error.code):
                self._leave()
            else:
                self._fail(error)
        finally:
            self._left.set()
            self._stop.set()
            for thread in self._threads:
                # A thread that waits for a lost store ends with the process.
                thread.join(2 * self._interval)
            _settle()

    def _leave(self) -> None:
        """Stop watching: this rank is done. Rank 0, whose process may hold the store, waits for the others.

        Raises RunError if another rank fails meanwhile.
        """
        self._left.set()
        with contextlib.suppress(RuntimeError):
            self._write()
            self._store.add(f"{self._at}/left", 1)
            while self.rank == 0 and not self.fault and self._store.add(f"{self._at}/left", 0) < self.size:
                time.sleep(self._interval / 4)
        if self.fault:
            raise RunError(self.fault)

    def _fail(self, error: BaseException) -> None:
        """Report an error of this rank to the others; if another rank caused it, raise RunError that names that
        rank."""
        if not self.fault and _LOST.search(str(error)):
            until = self._awake + self.timeout_s + 3 * self._interval
            while not self.fault and self._awake < until:
                time.sleep(self._interval / 4)
        self._left.set()
        if not self.fault:
            with contextlib.suppress(RuntimeError):
                self._accuse(self._record(), f"raised {brief(error)}")
        # If this rank holds the store, it must stay until the others have read the fault.
        others = self.size - (self._failed.get("by") != self._failed.get("rank"))
        until = self._awake + 3 * self._interval
        with contextlib.suppress(RuntimeError):
            while self.rank == 0 and self._awake < until and self._store.add(f"{self._at}/heard", 0) < others:
                time.sleep(self._interval / 4)
        if self.fault and self._failed.get("rank") != self.rank and str(error) != self.fault:
            raise RunError(self.fault) from error

    def _record(self) -> dict[str, Any]:
        return {
            "rank": self.rank, "count": self._count, "step": self.last_step, "left": self._left.is_set(),
            **process.identity(),
        }  # fmt: skip

    def _write(self) -> None:
        # Two threads write; with the lock, no late beat hides that this rank has left.
        with self._writing:
            self._count += 1
            self._store.set(f"{self._at}/{self.rank}", json.dumps(self._record()))

    def _beats(self) -> None:
        """Loop: write the own beat, read that of the next rank."""
        while not self._stop.wait(self._interval):
            try:
                self._beat()
            except Exception as error:
                if not self._stop.is_set() and not self.fault:
                    self._lose("has died", str(error).splitlines()[0])
                return

    def _beat(self) -> None:
        if not self._left.is_set():
            self._write()
        if self._store.check([f"{self._at}/fault"]):
            self._hear(self._store.get(f"{self._at}/fault"))
        else:
            self._listen()
            self._judge_self()
        self._answered = self._awake

    def _listen(self) -> None:
        key = f"{self._at}/{self._next}"
        if self._next == self.rank or not self._store.check([key]):
            return
        record = json.loads(self._store.get(key))
        if record["left"]:
            self._next, self._last = (self._next + 1) % self.size, {}
            return
        if record != self._last:
            self._last, self._heard = record, self._awake
        state = process.state(record)
        if state == "dead":
            self._accuse(record, "has died")
        elif self._awake - self._heard > self.timeout_s:
            known = "is stopped, by a signal or a debugger" if state == "stopped" else "sends no heartbeats"
            self._accuse(record, f"{known}, for {self.timeout_s:g} s")

    def _judge_self(self) -> None:
        """Report this rank if its main thread makes no progress. If it waits for other ranks, let those
        report first."""
        if self.step_timeout_s is None or self._left.is_set():
            return
        still = self._awake - self._stepped
        if still <= self.step_timeout_s:
            return
        where, waits = _position(sys._current_frames().get(self._main))
        if not waits or still > self.step_timeout_s + self.timeout_s:
            verb = "waits for other ranks" if waits else "is stuck"
            self._accuse(self._record(), f"{verb} at {where}, for {still:.0f} s")

    def _lose(self, what: str, sign: str) -> None:
        """Report the process that holds the store and does not answer: torchrun if there is one, else rank 0."""
        failed = {} if store_of_torchrun() else {**self._first, "by": self.rank}
        first = f"rank 0 ({self._first['host']}, pid {self._first['pid']})"
        holder = first if failed else f"torchrun on {os.environ.get('MASTER_ADDR')}"
        text = f"{holder}, which holds the store of the job, {what} ({sign})"
        if self.rank:
            _say(text)
        self._failed = {**failed, "text": text}

    def _accuse(self, record: dict[str, Any], what: str) -> None:
        step = "before its first step" if record["step"] is None else f"in step {record['step']}"
        step = step if record["rank"] == self.rank else f"last heard of {step}"
        text = f"rank {record['rank']} ({record['host']}, pid {record['pid']}) {what}, {step}"
        own = json.dumps({**record, "text": text, "by": self.rank})
        agreed = self._store.compare_set(f"{self._at}/fault", "", own)
        if agreed == own.encode():
            _say(text)
        self._hear(agreed)

    def _hear(self, fault: bytes) -> None:
        if not self._failed:
            self._store.add(f"{self._at}/heard", 1)
        self._failed = json.loads(fault)

    def _watches(self) -> None:
        """Loop: count the seconds awake, and end the process if its main thread does not end."""
        before, until = time.monotonic(), None
        while not self._stop.wait(self._interval / 4):
            now = time.monotonic()
            self._awake += min(now - before, self._interval)
            before = now
            if not self.fault and self._awake - self._answered > self.timeout_s:
                self._lose("hangs", f"no answer for {self.timeout_s:g} s")
            if self.fault and until is None:
                self._end_failed()
                until = self._awake + self.grace_s
            if until is not None and self._awake > until and not self._left.is_set():
                _exit(self.fault)

    def _end_failed(self) -> None:
        """Kill the failed rank if it is on this host: this process, or another one that hangs."""
        if self._failed.get("rank") == self.rank:
            if not self._left.is_set():
                _exit(self.fault)
        # A stopped process ignores the launcher's request to end, and blocks the others in their collectives.
        elif self._failed.get("by") != self._failed.get("rank"):
            with contextlib.suppress(OSError):
                if process.state(self._failed) in ("running", "stopped"):
                    os.kill(self._failed["pid"], signal.SIGKILL)


def guarded(
    group: Group = None, *, timeout_s: float = 30.0, step_timeout_s: float | None = None, grace_s: float = 5.0
) -> _Guard:
    """Watch over the ranks of a group while the block runs; enter it on every rank right after `init_process_group`.

        with guarded(timeout_s=30) as guard:
            for step in range(steps):
                guard.step(step)
                ...

    A rank without a beat for `timeout_s` seconds counts as stopped or dead. A thread beats, also during a
    long step or compilation, unless that holds the GIL throughout. With `step_timeout_s`, a rank also counts
    as hung if its main thread does not reach its next `guard.step()` in that time. Then every rank raises
    RunError naming it, from the next `guard.step()` or the collective that fails. If a main thread has not
    left the block `grace_s` seconds later, its process ends with that sentence on stderr and exit code 70.
    The job ends everywhere within `timeout_s + grace_s + 2` seconds. Ranks kill a stopped rank on their host.

    A rank that raises in the block reports the error to the others, which then end too. Ranks use the job's
    store and open no port. The block ends once the other threads of the process sleep, after at most SETTLE_S
    seconds, because freeing a group while one of its threads works may hang the process.
    """
    if min(timeout_s, grace_s) <= 0 or (step_timeout_s is not None and step_timeout_s <= 0):
        raise RunError(
            "timeout_s, step_timeout_s and grace_s are seconds above 0; step_timeout_s=None is never"
        )
    if not dist.is_initialized():
        raise RunError("no job to guard: call torch.distributed.init_process_group() first, under torchrun")
    guard = _Guard(group, timeout_s, step_timeout_s, grace_s)
    if guard.rank == 0 and store_of_torchrun() and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        log.warning(
            "torchrun keeps one store for all its restarts, in which new processes may find the addresses of dead "
            "ones and fail (pytorch issue 135712); start it with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun …"
        )
    return guard


def _settle() -> None:
    """Wait until the other threads of this process sleep.

    The destructor of a gloo group joins the group's threads, and holds the GIL if Python calls it. A thread
    may need the GIL to free the tensors of its last collective; the process would then hang at its exit.
    """
    until, asleep = time.monotonic() + SETTLE_S, 0
    while asleep < LOOKS and time.monotonic() < until:
        # The main thread releases the GIL meanwhile, so a thread that waits for it can run.
        time.sleep(LOOK_S)
        asleep = asleep + 1 if process.others_sleep() else 0


def _position(frame: FrameType | None) -> tuple[str, bool]:
    """Return the line of the user's code that a thread is at, and whether it waits there for other ranks."""
    if frame is None:
        return "its end", False
    file = frame.f_code.co_filename
    waits = os.sep + os.path.join("torch", "distributed") in file or file.endswith(_WAITING)
    libraries = (os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(dist.__file__)))
    own: FrameType | None = frame
    while own is not None and own.f_code.co_filename.startswith((*libraries, "<")):
        own = own.f_back
    own = own or frame
    return f"{own.f_code.co_filename}:{own.f_lineno} in {own.f_code.co_name}", waits


def _say(text: str) -> None:
    # Not `sys.stderr`, whose lock the main thread may hold.
    with contextlib.suppress(OSError):
        os.write(2, f"autopar: {text}\n".encode())


def _exit(text: str) -> NoReturn:
    _say(f"{text}; this process ends")
    os._exit(EXIT_CODE)


def bound_store(*, timeout_s: float = 1800.0) -> dist.Store:
    """Return the store of the job of `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`; rank 0 holds it.

        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=bound_store(), rank=rank, world_size=ranks)

    It listens at `MASTER_ADDR` alone; `init_process_group()` without a store listens on all interfaces.
    `timeout_s`: seconds to wait for the other ranks, and for each answer of the store; the default is that of
    `init_process_group`. All ranks must call it equally often, because each call begins another job.

    Raises RunError if a variable is missing, or if torchrun itself holds the store of the job.
    """
    if store_of_torchrun():
        raise RunError(
            "torchrun holds the store of this job, and listens on all interfaces; start it with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --rdzv-backend=c10d --rdzv-conf=store_type=file "
            "--rdzv-endpoint=FILE --local-addr=ADDRESS …"
        )
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except KeyError as missing:
        raise RunError(f"{missing.args[0]} is not set; start the script with torchrun, or set it") from None
    # A later job of this process finds the same server, but none of the earlier job's keys.
    return dist.PrefixStore(str(next(_jobs)), _server(host, port, rank, size, timeout_s))


def store_of_torchrun() -> bool:
    """Return True if torchrun, not rank 0, holds the store of the job."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


@functools.cache
def _server(host: str, port: int, rank: int, size: int, timeout_s: float) -> dist.Store:
    """Return the server of a job on rank 0, a connection to it on others."""
    listener = None
    if rank == 0:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family).detach()
    return dist.TCPStore(host, port, size, rank == 0, timedelta(seconds=timeout_s), master_listen_fd=listener)
