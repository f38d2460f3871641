"""From a plan to its program: flat steps for each lane, and between lanes the fewest waits that keep them right.

Steps are written in the plan's predicted order, which respects every dependency, each to the end of its lane. What a
step must follow on another lane, and its lane is not known to have followed already (`clocks`), becomes a `Wait` here
and a `Record` there: a transitive reduction, made on the fly. A buffer is freed in the lane that allocated its
storage, at the first point where that lane is known to follow the last reader; no wait is added for it before the
lane's end, unless the memory cap of the device asks for one (`ledger`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from .clocks import Clock, joined, needed
from .errors import MemoryCapError, PlanError
from .footprint import footprint
from .ledger import Ledger
from .plans import Placed, Plan, Transfer
from .programs import Buffer, Compute, Copy, Free, Lane, Program, Record, Step, Wait
from .tables import size


def lower(plan: Plan) -> Program:
    """The program of a plan: results where `plan.costed.deliver` says, memory caps those of the machine.

    PlanError when the plan's lanes cannot follow each other or a value never reaches its reader; MemoryCapError when
    a cap does not hold in the plan's order whatever waits for what.
    """
    program = _Lowering(plan, frozenset()).program()
    # One allocating lane at a time is always enough for the proof; it is needed only where three lanes or more share
    # a cap, because the proof bounds each lane for itself.
    over = {peak.device for peak in footprint(program) if peak.cap is not None and peak.bytes > peak.cap}
    return _Lowering(plan, frozenset(over)).program() if over else program


class _Tape:
    """A lane being written: its steps, the clock before each, and which of them are recorded as an event."""

    def __init__(self, index: int, name: str, device: str, lanes: int):
        self.index, self.name, self.device = index, name, device
        self.steps: list[Step] = []
        self.clock: Clock = (0,) * lanes
        self.clocks: list[Clock] = []
        self.events: dict[int, str] = {}
        # Buffers to free here, by the lane and position of a reader not known to be over, first position first.
        self.pending: dict[int, list[tuple[int, str]]] = {}

    def append(self, step: Step) -> int:
        self.steps.append(step)
        self.clocks.append(self.clock)
        return len(self.steps) - 1

    def lane(self) -> Lane:
        steps: list[Step] = []
        for position, step in enumerate(self.steps):
            steps.append(step)
            if position in self.events:
                steps.append(Record(self.events[position]))
        return Lane(self.name, self.device, tuple(steps))


class _Lowering:
    def __init__(self, plan: Plan, serial: frozenset[str]):
        self.plan, self.serial = plan, serial
        costed = plan.costed
        self.graph, self.machine = costed.graph, costed.machine
        orders = plan.orders
        self.tapes = [
            _Tape(index, name, name.rsplit("/", 1)[0], len(orders)) for index, name in enumerate(orders)
        ]
        self.clocks = [tape.clocks for tape in self.tapes]
        self.items = [list(orders[tape.name]) for tape in self.tapes]
        self.buffers: dict[str, Buffer] = {}
        self.roots: dict[tuple[str, str], str] = {}
        self.writer: dict[str, tuple[int, int]] = {}
        self.done: dict[str, tuple[int, int]] = {}
        self.events = 0
        self.scratch = {cost.task: cost.workspace_bytes for cost in costed.costs if cost.workspace_bytes}
        home = {
            name: costed.home.get(name, self.machine.host) for name in (*self.graph.inputs, *self.graph.state)
        }
        for name, device in home.items():
            self.there(name, device, "given")
        for name, device in plan.resident:
            if device != home[name]:
                self.there(name, device, "resident")
        self.results = dict.fromkeys(f"{value}@{device}" for value, device in costed.deliver)
        self.left = self.accesses()
        self.readers: dict[str, dict[int, int]] = {}
        self.missing: dict[str, int] = {}
        # The bytes of a storage come back when all buffers that share it are freed and none of them is a result.
        self.sharing: dict[str, int] = {}
        self.ledgers = {
            device.name: Ledger(
                device.name,
                device.memory_bytes,
                sum(
                    b.bytes for b in self.buffers.values() if b.device == device.name and b.storage == b.name
                ),
                len(self.tapes),
            )
            for device in self.machine.devices
            if device.memory_bytes is not None
        }
        written: dict[str, list[int]] = {}
        for index, task in enumerate(self.graph.tasks):
            for name in task.writes:
                written.setdefault(self.graph.value[name].storage, []).append(index)
        self.mutators = written
        self.rank = {task.name: index for index, task in enumerate(self.graph.tasks)} if written else {}

    def there(self, value: str, device: str, kind: str) -> None:
        """A buffer that is there before the call."""
        name, about = f"{value}@{device}", self.graph.value[value]
        root = self.roots.setdefault((about.storage, device), name)
        self.buffers[name] = Buffer(name, value, device, about.bytes, root, kind)  # type: ignore[arg-type]

    def accesses(self) -> dict[str, int]:
        """How many steps touch each buffer: the one that makes it and those that read it."""
        count: dict[str, int] = {}
        for tape, items in zip(self.tapes, self.items):
            for item in items:
                for name in self.touched(item, tape.device):
                    count[name] = count.get(name, 0) + 1
        return count

    def touched(self, item: Placed | Transfer, device: str) -> Iterable[str]:
        if isinstance(item, Transfer):
            return (f"{item.value}@{item.src}", f"{item.value}@{item.dst}")
        tasks = [self.graph.task[name] for name in self.plan.costed.run[item.run].tasks]
        return [f"{value}@{device}" for task in tasks for value in (*task.inputs, *task.outputs)]

    # The plan's order ---------------------------------------------------------------------------------------------

    def sequence(self) -> Iterable[tuple[_Tape, Placed | Transfer]]:
        """Every run and transfer after all it depends on and after its lane's earlier ones; soonest planned first."""
        makes: dict[str, tuple[int, int]] = {}
        runs: dict[str, tuple[int, int]] = {}
        run_of = self.plan.costed.run_of
        for tape, items in zip(self.tapes, self.items):
            for position, item in enumerate(items):
                here = (tape.index, position)
                if isinstance(item, Transfer):
                    made = [f"{item.value}@{item.dst}"]
                else:
                    runs[item.run] = here
                    tasks = self.plan.costed.run[item.run].tasks
                    made = [
                        f"{value}@{tape.device}" for task in tasks for value in self.graph.task[task].outputs
                    ]
                for name in made:
                    if name in makes or name in self.buffers:
                        raise PlanError(f"the plan brings {name.replace('@', ' to ')} twice; once is enough")
                    makes[name] = here
        waiting: dict[tuple[int, int], int] = {}
        followers: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for tape, items in zip(self.tapes, self.items):
            for position, item in enumerate(items):
                here = (tape.index, position)
                before: dict[tuple[int, int], None] = {}
                for name in self.needs(item, tape.device):
                    if name in makes:
                        before[makes[name]] = None
                    elif name not in self.buffers:
                        raise PlanError(self.absent(item, name))
                for task in self.after(item):
                    if run_of[task] not in runs:
                        raise PlanError(f"the plan places no run with the task {task!r}")
                    before[runs[run_of[task]]] = None
                before.pop(here, None)
                if position:
                    before[tape.index, position - 1] = None
                waiting[here] = len(before)
                for earlier in before:
                    followers.setdefault(earlier, []).append(here)
        for name in self.results:
            if name not in makes and name not in self.buffers:
                value, device = name.rsplit("@", 1)
                raise PlanError(
                    f"the plan never brings the result {value!r} to {device}; add a Transfer that does"
                )

        def key(here: tuple[int, int]) -> tuple[float, float, int, int]:
            item = self.items[here[0]][here[1]]
            return (item.start, item.end, *here)

        heap = [key(here) for here, count in waiting.items() if not count]
        heapq.heapify(heap)
        left = len(waiting)
        while heap:
            *_, lane, position = heapq.heappop(heap)
            left -= 1
            yield self.tapes[lane], self.items[lane][position]
            for follower in followers.get((lane, position), ()):
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(heap, key(follower))
        if left:
            here = min((here for here, count in waiting.items() if count), key=key)
            item = self.items[here[0]][here[1]]
            what = item.run if isinstance(item, Placed) else f"the transfer of {item.value}"
            raise PlanError(
                f"the orders of the plan's lanes go round in a circle: {what!r} on {self.tapes[here[0]].name} and "
                f"{left - 1} more wait for each other; each must come after what it reads"
            )

    def needs(self, item: Placed | Transfer, device: str) -> Iterable[str]:
        """Buffers that must be there before a run or transfer."""
        if isinstance(item, Transfer):
            return (f"{item.value}@{item.src}",)
        tasks = [self.graph.task[name] for name in self.plan.costed.run[item.run].tasks]
        made = {value for task in tasks for value in task.outputs}
        return [f"{value}@{device}" for task in tasks for value in task.inputs if value not in made]

    def after(self, item: Placed | Transfer) -> Iterable[str]:
        """Tasks that must be over before a run or transfer though no value says so."""
        if isinstance(item, Placed):
            return [
                name for task in self.plan.costed.run[item.run].tasks for name in self.graph.task[task].after
            ]
        return self.versions(item.value, item.dst)

    def versions(self, value: str, device: str) -> list[str]:
        """Tasks that change `value` in place before its first reader on `device`: a copy must not be older than that."""
        storage = self.graph.value[value].storage
        if storage not in self.mutators:
            return []
        readers = [
            self.rank[task]
            for task in self.graph.readers[value]
            if self.plan.place[self.plan.costed.run_of[task]].device == device
        ]
        first = min(readers, default=len(self.graph.tasks))
        return [self.graph.tasks[index].name for index in self.mutators[storage] if index < first]

    def absent(self, item: Placed | Transfer, name: str) -> str:
        value, device = name.rsplit("@", 1)
        if isinstance(item, Transfer):
            return f"the plan moves {value!r} from {device} to {item.dst}, but it never is on {device}"
        return (
            f"run {item.run!r} on {device} reads {value!r}, which the plan never brings there; add a Transfer"
        )

    # The steps ----------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        for tape, item in self.sequence():
            if isinstance(item, Transfer):
                self.copy(tape, item)
            else:
                for name in self.plan.costed.run[item.run].tasks:
                    self.compute(tape, name)
        for tape in self.tapes:
            self.finish(tape)
        costed = self.plan.costed
        names = [f"{value}@{device}" for value, device in costed.deliver]
        count = len(self.graph.outputs)
        ran = {step.task for tape in self.tapes for step in tape.steps if isinstance(step, Compute)}
        return Program(
            self.graph.name,
            tuple(tape.lane() for tape in self.tapes if tape.steps),
            tuple(self.buffers.values()),
            tuple(names[:count]),
            tuple((name, target) for name, (_, target) in zip(names[count:], self.graph.updates)),
            tuple((task, scratch) for task, scratch in self.scratch.items() if task in ran),
            tuple((d.name, d.memory_bytes) for d in self.machine.devices if d.memory_bytes is not None),
        )

    def compute(self, tape: _Tape, name: str) -> None:
        task = self.graph.task[name]
        reads = tuple(f"{value}@{tape.device}" for value in task.inputs)
        writes = tuple(f"{value}@{tape.device}" for value in task.outputs)
        roots = {
            self.graph.value[value].storage: self.buffers[read].storage
            for value, read in zip(task.inputs, reads)
        }
        made = []
        for value, write in zip(task.outputs, writes):
            about = self.graph.value[value]
            made.append(self.make(value, tape.device, roots.setdefault(about.storage, write)))
        self.follow(tape, reads, task.after)
        new = sum(buffer.bytes for buffer in made if buffer.storage == buffer.name)
        self.step(
            tape, tape.device, Compute(name, reads, writes), reads, writes, new, self.scratch.get(name, 0)
        )
        self.done[name] = (tape.index, len(tape.steps) - 1)
        self.settle(tape, (*reads, *writes))

    def copy(self, tape: _Tape, item: Transfer) -> None:
        src, dst = f"{item.value}@{item.src}", f"{item.value}@{item.dst}"
        made = self.make(item.value, item.dst, dst)
        self.follow(tape, (src,), self.versions(item.value, item.dst))
        self.step(tape, item.dst, Copy(src, dst), (src,), (dst,), made.bytes, 0)
        self.settle(tape, (src, dst))

    def make(self, value: str, device: str, root: str) -> Buffer:
        name = f"{value}@{device}"
        kind = "result" if name in self.results else "made"
        buffer = Buffer(name, value, device, self.graph.value[value].bytes, root, kind)  # type: ignore[arg-type]
        self.buffers[name] = buffer
        self.sharing[root] = self.sharing.get(root, 0) + 1
        return buffer

    def follow(self, tape: _Tape, reads: Iterable[str], after: Iterable[str]) -> None:
        """Wait for whoever makes `reads` and for the tasks `after`."""
        wanted: dict[int, int] = {}
        for lane, position in [self.writer[name] for name in reads if name in self.writer] + [
            self.done[name] for name in after
        ]:
            if lane != tape.index and wanted.get(lane, -1) < position:
                wanted[lane] = position
        self.wait(tape, wanted)

    def step(
        self,
        tape: _Tape,
        device: str,
        step: Step,
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        new: int,
        scratch: int,
    ) -> None:
        """Write a step that allocates `new` bytes on `device`, once they fit."""
        ledger = self.ledgers.get(device)
        if ledger and new + scratch:
            if device in self.serial:
                self.wait(tape, ledger.last_allocations(tape.index))
            self.fit(tape, ledger, new + scratch, writes[0] if writes else reads[0])
        position = tape.append(step)
        if ledger and new + scratch:
            ledger.allocate(tape.index, position, new, scratch)
        for name in writes:
            self.writer[name] = (tape.index, position)

    def wait(self, tape: _Tape, wanted: dict[int, int]) -> None:
        """Make the lane follow steps of other lanes, then free what may be freed by that."""
        wanted.pop(tape.index, None)
        waits = needed(wanted, tape.clock, self.clocks)
        for lane, position in waits:
            other = self.tapes[lane]
            if position not in other.events:
                self.events += 1
                other.events[position] = f"e{self.events}"
            tape.append(Wait(other.events[position]))
            tape.clock = joined(tape.clock, other.clocks[position], lane, position)
        if waits:
            ready: list[str] = []
            for lane, heap in tape.pending.items():
                while heap and heap[0][0] < tape.clock[lane]:
                    name = heapq.heappop(heap)[1]
                    self.missing[name] -= 1
                    if not self.missing[name]:
                        ready.append(name)
            for name in ready:
                self.free(tape, name)

    def settle(self, tape: _Tape, names: Iterable[str]) -> None:
        """Account for the step just written, which touches `names`; free those that nobody touches after it."""
        position = len(tape.steps) - 1
        over = []
        for name in dict.fromkeys(names):
            if self.buffers[name].kind == "made":
                self.readers.setdefault(name, {})[tape.index] = position
        for name in names:
            self.left[name] -= 1
            if not self.left[name] and self.buffers[name].kind == "made":
                over.append(name)
        for name in over:
            owner = self.owner(name)
            late = {
                lane: last for lane, last in self.readers[name].items() if self.unknown(owner, lane, last)
            }
            self.missing[name] = len(late)
            for lane, last in late.items():
                heapq.heappush(owner.pending.setdefault(lane, []), (last, name))
            if not late:
                self.free(owner, name)

    def unknown(self, tape: _Tape, lane: int, position: int) -> bool:
        return lane != tape.index and tape.clock[lane] <= position

    def owner(self, name: str) -> _Tape:
        """The lane that frees a buffer: the one that allocated its storage, or made it over storage of the caller."""
        root = self.buffers[name].storage
        return self.tapes[self.writer[root if root in self.writer else name][0]]

    def free(self, tape: _Tape, name: str) -> None:
        position = tape.append(Free(name))
        root = self.buffers[self.buffers[name].storage]
        self.sharing[root.name] -= 1
        ledger = self.ledgers.get(root.device)
        if ledger and not self.sharing[root.name] and root.kind in ("made", "result") and root.bytes:
            ledger.release(tape.index, position, root.bytes)

    def finish(self, tape: _Tape) -> None:
        """At the end of a lane, wait for the readers of whatever it has not freed yet."""
        wanted = {lane: max(heap)[0] for lane, heap in sorted(tape.pending.items()) if heap}
        self.wait(tape, wanted)

    # Memory -------------------------------------------------------------------------------------------------------

    def fit(self, tape: _Tape, ledger: Ledger, nbytes: int, name: str) -> None:
        """Wait until `nbytes` more are sure to fit, or raise MemoryCapError."""
        while (short := ledger.bound(tape.index, tape.clock) + nbytes - ledger.cap) > 0:
            freed = ledger.behind(tape.index, tape.clock, short)
            if freed:
                self.wait(tape, dict([freed]))
            elif not self.reclaim(tape, ledger.device):
                free = ledger.cap - ledger.bound(tape.index, tape.clock)
                raise MemoryCapError(
                    f"{name.rsplit('@', 1)[0]!r} needs {size(nbytes)} on {ledger.device}, where {size(max(free, 0))} of "
                    f"the cap of {size(ledger.cap)} are free in the plan's order; raise it with "
                    f"memory={{{ledger.device!r}: {ledger.cap + short}}} or give the plan another device"
                )

    def reclaim(self, tape: _Tape, device: str) -> bool:
        """Make one lane wait for the readers of the buffer of `device` that it has kept longest; False if none."""
        for owner in [tape, *(other for other in self.tapes if other is not tape)]:
            names = [
                (self.writer[name], name)
                for heap in owner.pending.values()
                for _, name in heap
                if self.missing[name] and self.buffers[name].device == device and self.buffers[name].bytes
            ]
            if names:
                self.wait(owner, dict(self.readers[min(names)[1]]))
                return True
        return False
