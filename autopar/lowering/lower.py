"""Lowering: from a plan to its program, the steps of each lane with the fewest waits that keep them correct.

Steps are appended to their lanes in the plan's predicted order, which respects every dependency. If a lane is
not yet known to follow a predecessor on another lane (`vector_clocks`), it gets a `Wait`, and the other lane
a `Record`: an online transitive reduction. A buffer is freed in the lane that made it, at the first point
where that lane is known to follow its last reader and the frees of its views. A wait for a free alone is
added only at the lane's end, or if the device's memory cap requires it (`memory_bound`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ..errors import MemoryCapError
from ..ir.graph import LOCAL
from ..ir.plan import Plan
from ..ir.program import Buffer, Compute, Copy, Free, Lane, Program, Record, Step, Wait
from ..ir.timeline import Transfer
from ..system.text import size
from .linearize import sequence
from .memory_bound import footprint, ledgers
from .vector_clocks import Clock, joined, needed


def lower(plan: Plan) -> Program:
    """Lower a plan to its program: results at `plan.costed.deliver`, memory caps of the machine.

    Raises PlanError if the lanes deadlock or a value never reaches its reader, MemoryCapError if a cap cannot hold in
    the plan's order with any waits.
    """
    first = _Lowering(plan, frozenset())
    program = first.program()
    # With two allocating lanes, the proof is exact. With more, it looks at pairs of lanes and may count more
    # bytes than can ever be in use. Only then are strict ledgers worth their cost: they keep what the proof
    # counts below the cap.
    if any(ledger.allocators > 2 for ledger in first.ledgers.values()):
        over = frozenset(p.device for p in footprint(program) if p.cap is not None and p.bytes > p.cap)
        if over:
            return _Lowering(plan, over).program()
    return program


class _Tape:
    """A lane under construction: its steps, the clock before each, and buffers it will free. A wait is (lane,
    position)."""

    def __init__(self, index: int, name: str, lanes: int):
        self.index, self.name, self.device = index, name, name.rsplit("/", 1)[0]
        self.steps: list[Step | tuple[int, int]] = []
        self.clock: Clock = (0,) * lanes
        self.clocks: list[Clock] = []
        # Buffers to free here: by lane, a heap of (position of a reader not known to have ended, buffer).
        self.pending: dict[int, list[tuple[int, str]]] = {}

    def append(self, step: Step | tuple[int, int]) -> int:
        """Append a step; return its index."""
        self.steps.append(step)
        self.clocks.append(self.clock)
        return len(self.steps) - 1


class _Lowering:
    """Builder of one program. `strict` devices have their memory bounded as by `footprint`."""

    def __init__(self, plan: Plan, strict: frozenset[str]):
        self.plan = plan
        costed = plan.costed
        self.graph, machine = costed.graph, costed.machine
        lanes = list(plan.orders)
        self.tapes = [_Tape(i, name, len(lanes)) for i, name in enumerate(lanes)]
        self.clocks = [tape.clocks for tape in self.tapes]
        self.scratch = {cost.task: cost.workspace_bytes for cost in costed.costs if cost.workspace_bytes}
        self.buffers: dict[str, Buffer] = {}
        self.roots: dict[tuple[str, str], str] = {}
        home = {name: costed.home.get(name, machine.host) for name in (*self.graph.inputs, *self.graph.state)}
        for name, device in home.items():
            self.add_existing(name, device, "given")
        for name, device in plan.resident:
            if device != home[name]:
                self.add_existing(name, device, "resident")
        maker = {
            value: plan.place[cluster].device
            for task, cluster in costed.cluster_of.items()
            if cluster in plan.place
            for value in self.graph.task[task].outputs
        }
        # A result that is delivered nowhere stays where it is.
        self.results = [f"{v}@{device or maker.get(v) or home.get(v)}" for v, device in costed.deliver]
        self.keeps = tuple(self.copies_to_keep(home))
        self.outliving = dict.fromkeys((*self.results, *(buffer for buffer, _ in self.keeps)))
        # The steps that make each buffer, and compute each task.
        self.writer: dict[str, tuple[int, int]] = {}
        self.task_at: dict[str, tuple[int, int]] = {}
        # The last task that draws from the generator of each device.
        self.last_draw: dict[str, str] = {}
        self.uses_left = self.uses()
        self.last_use: dict[str, dict[int, int]] = {}
        # The number of lanes with readers of each buffer that are not known to have ended.
        self.awaited: dict[str, int] = {}
        # For each buffer, the buffers of its task whose memory it may share: freed after it.
        self.parents: dict[str, tuple[str, ...]] = {}
        # Storages of results, whose bytes are never freed.
        self.delivered: set[str] = set()
        self.ledgers = ledgers(machine, self.buffers.values(), len(lanes), strict)

    def add_existing(self, value: str, device: str, kind: str) -> None:
        """Add a buffer that exists before the call."""
        name, source = f"{value}@{device}", self.graph.value[value]
        resident = kind == "resident"
        storage, nbytes = self.graph.copies[value] if resident else (source.storage, source.bytes)
        root = self.roots.setdefault((storage, device), name)
        self.buffers[name] = Buffer(name, value, device, nbytes, root, kind)  # type: ignore[arg-type]

    def copies_to_keep(self, home: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield (buffer, state) of each copy of state kept for the next call: of changing state, and of new values of
        carried state."""
        for transfer in self.plan.transfers:
            if transfer.value in self.graph.refreshed:
                yield f"{transfer.value}@{transfer.dst}", transfer.value
        new = {target: new for new, target in self.graph.updates if target in self.graph.carried}
        for state, device in self.plan.resident:
            if state in new and device != home[state]:
                yield f"{new[state]}@{device}", state

    def uses(self) -> dict[str, int]:
        """Return the number of steps that use each buffer: its producer and its readers."""
        count = Counter(
            f"{value}@{placed.device}"
            for placed in self.plan.placed
            for task in map(self.graph.task.__getitem__, self.plan.costed.cluster[placed.cluster].tasks)
            for value in (*task.inputs, *task.outputs)
        )
        count.update(
            f"{transfer.value}@{end}"
            for transfer in self.plan.transfers
            for end in (transfer.src, transfer.dst)
        )
        return count

    def program(self) -> Program:
        for lane, item in sequence(self.plan, frozenset(self.buffers), self.outliving):
            tape = self.tapes[lane]
            if isinstance(item, Transfer):
                self.copy(tape, item)
            else:
                for name in self.plan.costed.cluster[item.cluster].tasks:
                    self.compute(tape, name)
        # At its end, each lane waits for the readers of its remaining buffers, and frees these. When a lane
        # frees a view, another lane may then free the buffer that it is a view of.
        while any(heap for tape in self.tapes for heap in tape.pending.values()):
            for tape in self.tapes:
                self.wait(tape, {lane: max(heap)[0] for lane, heap in sorted(tape.pending.items()) if heap})
        count = len(self.graph.outputs)
        targets = (target for _, target in self.graph.updates)
        return Program(
            self.graph.name,
            self.lanes(),
            tuple(self.buffers.values()),
            tuple(self.results[:count]),
            tuple(zip(self.results[count:], targets)),
            tuple((task, scratch) for task, scratch in self.scratch.items() if task in self.task_at),
            tuple((device, ledger.cap) for device, ledger in self.ledgers.items()),
            self.keeps,
        )

    def lanes(self) -> tuple[Lane, ...]:
        """Return the non-empty lanes, with an event for each wait by another lane."""
        waits = [step for tape in self.tapes for step in tape.steps if isinstance(step, tuple)]
        events = {at: f"e{number}" for number, at in enumerate(dict.fromkeys(waits), 1)}
        lanes = []
        for tape in self.tapes:
            steps: list[Step] = []
            for position, step in enumerate(tape.steps):
                steps.append(Wait(events[step]) if isinstance(step, tuple) else step)
                if (tape.index, position) in events:
                    steps.append(Record(events[tape.index, position]))
            if steps:
                lanes.append(Lane(tape.name, tape.device, tuple(steps)))
        return tuple(lanes)

    def compute(self, tape: _Tape, name: str) -> None:
        task = self.graph.task[name]
        reads = tuple(f"{value}@{tape.device}" for value in task.inputs)
        writes = tuple(f"{value}@{tape.device}" for value in task.outputs)
        roots = {
            self.graph.value[value].storage: self.buffers[read].storage
            for value, read in zip(task.inputs, reads)
        }
        outputs = []
        for value, write in zip(task.outputs, writes):
            storage = self.graph.value[value].storage
            buffer = self.make(value, tape.device, roots.setdefault(storage, write))
            outputs.append(buffer)
            if buffer.storage != write and buffer.kind == "made":
                sources = tuple(read for read in reads if self.buffers[read].storage == buffer.storage)
                parents = tuple(b for b in sources or (buffer.storage,) if self.buffers[b].kind == "made")
                self.parents[write] = parents
                for parent in parents:
                    self.uses_left[parent] += 1
        after = task.after
        if task.random == LOCAL:
            after += (self.last_draw[tape.device],) if tape.device in self.last_draw else ()
            self.last_draw[tape.device] = name
        wanted = self.predecessors(tape, reads, after)
        new = sum(buffer.bytes for buffer in outputs if buffer.storage == buffer.name)
        scratch = self.scratch.get(name, 0)
        position = self.append(tape, wanted, Compute(name, reads, writes), tape.device, new, scratch)
        for write in writes:
            self.writer[write] = (tape.index, position)
        self.task_at[name] = (tape.index, position)
        self.account_for(tape, (*reads, *writes))

    def copy(self, tape: _Tape, item: Transfer) -> None:
        src, dst = f"{item.value}@{item.src}", f"{item.value}@{item.dst}"
        buffer = self.make(item.value, item.dst, dst)
        wanted = self.predecessors(tape, (src,), ())
        self.writer[dst] = (tape.index, self.append(tape, wanted, Copy(src, dst), item.dst, buffer.bytes, 0))
        self.account_for(tape, (src, dst))

    def make(self, value: str, device: str, root: str) -> Buffer:
        name = f"{value}@{device}"
        kind = "result" if name in self.outliving else "made"
        buffer = Buffer(name, value, device, self.graph.value[value].bytes, root, kind)  # type: ignore[arg-type]
        self.buffers[name] = buffer
        if kind == "result":
            self.delivered.add(root)
        return buffer

    def predecessors(self, tape: _Tape, reads: Iterable[str], after: Iterable[str]) -> dict[int, int]:
        """Return the last step on each other lane that must precede one that reads `reads`, after `after`."""
        wanted: dict[int, int] = {}
        steps = [self.writer[name] for name in reads if name in self.writer] + [
            self.task_at[name] for name in after
        ]
        for lane, position in steps:
            if lane != tape.index and wanted.get(lane, -1) < position:
                wanted[lane] = position
        return wanted

    def append(
        self, tape: _Tape, wanted: dict[int, int], step: Compute | Copy, device: str, new: int, scratch: int
    ) -> int:
        """Append a step after all of `wanted`, once `new` bytes to keep and `scratch` are sure to fit; return its
        index."""
        ledger = self.ledgers.get(device)
        if ledger is None or not new + scratch:
            self.wait(tape, wanted)
            return tape.append(step)
        self.wait(tape, self.waits_for_room(tape, device, step, new + scratch, wanted))
        ledger.allocate(tape.index, len(tape.steps), new, scratch, tape.clock)
        return tape.append(step)

    def wait(self, tape: _Tape, wanted: dict[int, int]) -> None:
        """Make the lane wait for steps of other lanes, then free what that allows."""
        wanted.pop(tape.index, None)
        waits = dict(needed(wanted, tape.clock, self.clocks))
        if not waits:
            return
        # The new waits may make the waits directly before them redundant.
        while tape.steps and isinstance(last := tape.steps[-1], tuple):
            waits[last[0]] = max(last[1], waits.get(last[0], 0))
            tape.steps.pop()
            tape.clock = tape.clocks.pop()
        for lane, position in needed(waits, tape.clock, self.clocks):
            tape.append((lane, position))
            tape.clock = joined(tape.clock, self.clocks[lane][position], lane, position)
        ready: list[str] = []
        for lane, heap in tape.pending.items():
            while heap and heap[0][0] < tape.clock[lane]:
                name = heapq.heappop(heap)[1]
                self.awaited[name] -= 1
                if not self.awaited[name]:
                    ready.append(name)
        for name in ready:
            self.free_unused(self.free(tape, name))

    def account_for(self, tape: _Tape, names: Iterable[str]) -> None:
        """Account for the last step, which uses `names`, and free buffers without further uses."""
        position = len(tape.steps) - 1
        for name in dict.fromkeys(names):
            if self.buffers[name].kind == "made":
                self.last_use.setdefault(name, {})[tape.index] = position
        unused = []
        for name in names:
            self.uses_left[name] -= 1
            if not self.uses_left[name] and self.buffers[name].kind == "made":
                unused.append(name)
        self.free_unused(unused)

    def free_unused(self, names: Iterable[str]) -> None:
        """Free buffers without further uses, then the buffers that they are views of; or note which readers
        must end first."""
        unused = list(names)
        for name in unused:
            owner = self.tapes[self.writer[name][0]]
            place, clock = owner.index, owner.clock
            running = {
                lane: at for lane, at in self.last_use[name].items() if lane != place and clock[lane] <= at
            }
            self.awaited[name] = len(running)
            for lane, at in running.items():
                heapq.heappush(owner.pending.setdefault(lane, []), (at, name))
            if not running:
                unused += self.free(owner, name)

    def free(self, tape: _Tape, name: str) -> list[str]:
        """Append the free of a buffer; return the buffers that it is a view of and that have no further uses."""
        position = tape.append(Free(name))
        ledger, nbytes = self.ledgers.get(self.buffers[name].device), self.bytes_freed(name)
        if ledger and nbytes:
            ledger.release(tape.index, position, nbytes)
        unused = []
        for parent in self.parents.get(name, ()):
            self.last_use[parent][tape.index] = position
            self.uses_left[parent] -= 1
            if not self.uses_left[parent]:
                unused.append(parent)
        return unused

    def bytes_freed(self, name: str) -> int:
        """Return the bytes released by freeing a buffer."""
        buffer = self.buffers[name]
        return buffer.bytes if buffer.storage == name and name not in self.delivered else 0

    def waits_for_room(
        self, tape: _Tape, device: str, step: Compute | Copy, nbytes: int, wanted: dict[int, int]
    ) -> dict[int, int]:
        """Return `wanted` plus the waits needed so that `nbytes` more fit on a device in every order of the other
        lanes."""
        ledger = self.ledgers[device]
        while True:
            clock = self.clock_after(tape, wanted)
            short = ledger.alive() - self.freed_by(tape, device, clock) + nbytes - ledger.cap
            if short <= 0:
                break
            if not self.reclaim(tape, device):
                what = f"the copy {step.dst}" if isinstance(step, Copy) else self.graph.task[step.task].where
                raise MemoryCapError(
                    f"{what} needs {size(nbytes)} on {device}, where {size(max(nbytes - short, 0))} "
                    f"of the cap of {size(ledger.cap)} are free in the plan's order",
                    f"Raise it with memory={{{device!r}: {ledger.cap + short}}}, pin something to another "
                    "device or split the batch",
                    {device: ledger.cap + short},
                )
        # Bytes that are still short are already freed, but by steps of other lanes that this lane does not
        # know to have ended.
        more = dict(wanted)
        while (short := ledger.short(tape.index, clock, nbytes - self.freed_by(tape, device, clock))) > 0:
            lane, position = ledger.behind(tape.index, clock, short)
            more[lane] = position
            clock = self.clock_after(tape, more)
        more |= ledger.crossed(tape.index, clock, nbytes - self.freed_by(tape, device, clock))
        for lane in [lane for lane, position in more.items() if wanted.get(lane) != position]:
            less = {other: position for other, position in more.items() if other != lane}
            if lane in wanted:
                less[lane] = wanted[lane]
            clock = self.clock_after(tape, less)
            net = nbytes - self.freed_by(tape, device, clock)
            if ledger.short(tape.index, clock, net) <= 0 and not ledger.crossed(tape.index, clock, net):
                more = less
        return more

    def clock_after(self, tape: _Tape, wanted: dict[int, int]) -> Clock:
        """Return the clock of a lane after waiting for `wanted`."""
        clock = tape.clock
        for lane, position in wanted.items():
            if clock[lane] <= position:
                clock = joined(clock, self.clocks[lane][position], lane, position)
        return clock

    def freed_by(self, tape: _Tape, device: str, clock: Clock) -> int:
        """Return the bytes of `device` that a lane frees once its clock is `clock`."""
        if clock == tape.clock:
            return 0
        freed = list(dict.fromkeys(name for heap in tape.pending.values() for _, name in heap))
        uses: dict[str, int] = {}
        nbytes = 0
        for name in freed:
            if any(lane != tape.index and clock[lane] <= at for lane, at in self.last_use[name].items()):
                continue
            nbytes += self.bytes_freed(name) if self.buffers[name].device == device else 0
            for parent in self.parents.get(name, ()):
                uses[parent] = uses.get(parent, self.uses_left[parent]) - 1
                if not uses[parent] and self.writer[parent][0] == tape.index:
                    freed.append(parent)
        return nbytes

    def reclaim(self, tape: _Tape, device: str) -> bool:
        """Make one lane wait for the readers of its oldest buffer on `device`; return False if there is none."""
        for owner in [tape, *(other for other in self.tapes if other is not tape)]:
            names = [
                (self.writer[name], name)
                for heap in owner.pending.values()
                for _, name in heap
                if self.awaited[name] and self.buffers[name].device == device and self.buffers[name].bytes
            ]
            if names:
                self.wait(owner, dict(self.last_use[min(names)[1]]))
                return True
        return False
