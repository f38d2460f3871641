"""The stages from a captured model to a running program, one function each."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from ..capture import Captured
from ..capture.results import expressions, resizable
from ..costs.clustering import repriced, unfused
from ..costs.detect import one_lane, slowed, with_slow_down
from ..costs.measure import measured
from ..costs.pins import Home, pinned_sums, resolve, resolve_sums, streamed, user_homes
from ..costs.roofline import Ratios, cost
from ..errors import MemoryCapError
from ..ir.costed import CostedGraph
from ..ir.graph import Graph
from ..ir.machine import Machine
from ..ir.open_size import resized
from ..ir.plan import Plan
from ..ir.program import Program
from ..lowering.check import check
from ..lowering.lower import lower
from ..lowering.memory_bound import Peak
from ..planner import replan
from ..planner.lists.single import seconds_moved
from ..runtime.bind_program import keeps_caps
from ..runtime.executor import Executor
from ..runtime.kernels.piece_module import LEAST
from ..runtime.replicas import Replicas
from ..system.process import gc_paused
from ..system.text import counted, seconds, stage
from ..transform.buckets import ALONE_BYTES, BUCKET_BYTES, grouped
from ..transform.rewrites import local
from .batch_split import best_plan
from .compare import present
from .kernel_build import Form, in_place
from .kernel_selection import KernelExecutor, KernelSelection
from .kernel_verdict import refused
from .model_check import CallForm
from .options import Options
from .propagate import propagated
from .saved_plan import follow_user_plan
from .streaming import shortest

log = logging.getLogger("autopar")

RACES = 5
"""Timed calls of each contestant if `measure` asks for a race; the median decides."""


@dataclass(eq=False)
class Prepared:
    """One signature of a model, ready to run.

    captured: has the original graph; `plan.costed.graph` is the one that runs. source: the capture with the
    strides of all outputs. single_s: measured seconds of the best single device; None if not timed.
    refusals: why kernels that were asked for are not compiled.
    example: the form of its first call, by which `Compiled.save` repeats it.
    """

    captured: Captured
    plan: Plan
    program: Program
    executor: Executor | KernelExecutor
    single_s: float | None = None
    source: Captured | None = None
    refusals: tuple[str, ...] = ()
    example: CallForm | None = None

    def measure(self) -> None:
        """Time the operations on made-up inputs to update the prediction. The program stays."""
        costed = self.plan.costed
        graph, machine = costed.graph, costed.machine
        if any(cost.how == "measured" for cost in costed.costs):
            return
        tensors = present(self.captured.with_slices(graph))
        ratios = timed("measure", measured, graph, machine, self.captured.calls, tensors)
        priced = cost(graph, machine, homes=dict(costed.homes), deliver=costed.deliver, ratios=ratios)
        plan = replan(repriced(costed, priced.costs), self.plan)
        others = tuple(candidate for candidate in plan.candidates if candidate.policy != plan.policy)
        self.plan = replace(plan, policy=self.plan.policy, candidates=others)
        self.executor.rebind(self.plan)

    @cached_property
    def resizable(self) -> bool:
        """True if the program also computes calls with other sizes."""
        return resizable(self.captured, self.plan.costed)

    def keeps_caps(self, sizes: Sequence[float]) -> bool:
        """Return True if the program surely keeps every memory cap in a call with other sizes (`Captured.sizes`)."""
        graph = resized(self.plan.costed.graph, sizes)
        return graph is not None and keeps_caps(self.program, graph)

    def resized(self, source: Captured) -> Prepared:
        """Return the program for the sizes of `source`, with kernels if these are for all sizes."""
        captured = source if changes_memory_layout(self.plan) else source.without_redundant_strides()
        return replace(self, captured=captured, executor=self.executor.resized(source.sizes), source=source)

    @property
    def any_size(self) -> bool:
        """True if its kernels serve calls of all sizes, or may do so once they are built."""
        return self.executor.any_size

    @property
    def executors(self) -> list[Executor | KernelExecutor]:
        """The executors of all its programs."""
        return [self.executor]

    def slower(self, slow_down: float) -> None:
        """Run the declared clock `slow_down` times slower than the chips from the next call on."""
        self.plan = slowed(self.plan, slow_down)
        self.executor.rebind(self.plan)

    def close(self) -> None:
        """Stop its threads; the next call starts them again."""
        self.executor.close()


def prepare(
    captured: Captured,
    machine: Machine,
    options: Options,
    args: tuple[Any, ...],
    user_plan: Plan | None,
    pool: Replicas | None = None,
) -> Prepared:
    """Plan, lower, check and bind a capture for the arguments of a call. `pool`: replicas of its state."""
    tensors = captured.flatten(args)
    plan = timed("plan", plan_captured, captured, machine, options, tensors, user_plan)
    prepared = bind(captured, plan, pool, options.kernels)
    single = plan.best_single
    if options.measure and user_plan is None and single and repeatable(captured, plan):
        alone = replace(options, policy=f"single {single[0]}", split=None)
        rival = bind(captured, plan_captured(captured, machine, alone, tensors), pool, options.kernels)
        faster: Prepared = timed("race", race, prepared, rival, tensors)
        return faster
    return prepared


def bind(
    captured: Captured,
    plan: Plan,
    pool: Replicas | None = None,
    kernels: str = "eager",
    changing: bool = False,
) -> Prepared:
    """Return the proved program of a plan, bound to the live model, as `executed` does."""
    program, _ = proved(plan)
    trusted = captured if changes_memory_layout(plan) else captured.without_redundant_strides()
    return replace(executed(trusted, plan, program, pool or Replicas(), kernels, changing), source=captured)


def executed(
    captured: Captured, plan: Plan, program: Program, pool: Replicas, kernels: str, changing: bool = False
) -> Prepared:
    """Bind a proved program to the live model; its first call builds and chooses kernels. `changing`: weights change
    from call to call."""
    captured = captured.with_slices(plan.costed.graph)
    run = in_place(captured, plan, program)
    executor = Executor(captured, plan, run, pool)
    if kernels == "eager":
        return Prepared(captured, plan, run, executor)
    # One kernel can serve calls of all sizes if none is too short for what torch exports.
    long = all(size >= LEAST for size in captured.sizes if isinstance(size, int))
    on_cpu = all(device.torch_type == "cpu" for device in plan.costed.machine.devices)
    any_size = on_cpu and long and resizable(captured, plan.costed)
    symbols = expressions(captured.open or ()) if any_size else ()
    form = Form(captured, plan, program, torch.get_num_threads(), changing, symbols)
    if why := refused(form, pool):
        log.info("kernels of %s are eager's: %s", captured.graph.name, why)
        return Prepared(captured, plan, run, executor, refusals=(why,))
    return Prepared(captured, plan, run, KernelExecutor(KernelSelection(executor, form, pool, kernels)))


def changes_memory_layout(plan: Plan) -> bool:
    """Return True if values are transferred or rejoined, which changes their memory layout."""
    return bool(plan.transfers or plan.costed.graph.split)


@gc_paused()
def proved(plan: Plan) -> tuple[Program, tuple[Peak, ...]]:
    """Return the program of a plan and its proven peaks. Raises MemoryCapError or ProgramError."""
    program = timed("lower", lower, plan)
    return program, timed("check", check, program, plan.costed.graph)


def repeatable(captured: Captured, plan: Plan) -> bool:
    """Return True if a plan over several devices can be timed: calls are repeatable, the clock is real."""
    graph, several = plan.costed.graph, len({placed.device for placed in plan.placed}) > 1
    effects = any(task.random or task.target in captured.calls for task in graph.tasks)
    return several and not graph.updates and not effects and plan.costed.machine.clock == "real"


def race(placed: Prepared, alone: Prepared, tensors: list[torch.Tensor]) -> Prepared:
    """Time a plan and the best single device alternately on this call's tensors; return the faster by the median."""
    samples: dict[int, list[float]] = {0: [], 1: []}
    with torch.no_grad():
        for turn in range(RACES + 1):
            for lane, contestant in enumerate((placed, alone)):
                _, timeline = contestant.executor.run(tensors)
                if turn and timeline is not None:
                    samples[lane].append(timeline.makespan)
    placed_s, alone_s = (statistics.median(times) for times in samples.values())
    if placed_s <= alone_s:
        alone.executor.close()
        return replace(placed, single_s=alone_s)
    placed.executor.close()
    beaten = placed.plan.candidate(f"measured {seconds(placed_s)}, the single device {seconds(alone_s)}")
    others = tuple(each for each in placed.plan.candidates if each.name != beaten.name)
    plan = replace(alone.plan, candidates=(*others, beaten))
    return replace(alone, plan=plan, single_s=alone_s)


@gc_paused()
def plan_captured(
    captured: Captured,
    machine: Machine,
    options: Options,
    tensors: list[torch.Tensor],
    user_plan: Plan | None = None,
) -> Plan:
    """Return the plan for a captured model and inputs `tensors`, with values as the placed devices make them.
    `user_plan`: an edited plan to use instead.

    If all is left to the planner, a CPU of several lanes competes with one lane of all its threads.
    """
    plan = _planned(captured, machine, options, tensors, user_plan)
    free = user_plan is None and (options.policy, options.split) == ("auto", "auto") and not options.pins
    whole = one_lane(machine) if free else None
    if whole is None:
        return plan
    # One lane leaves nothing to decide, so its operations are measured only on request.
    alike = replace(options, measure=options.measures(machine))
    with suppress(MemoryCapError):
        single = _planned(captured, whole, alike, tensors)
        if single.makespan < plan.makespan:
            return _beating(single, whole, plan, machine)
        return _beating(plan, machine, single, whole)
    return plan


def _beating(plan: Plan, on: Machine, loser: Plan, other: Machine) -> Plan:
    """Return the shorter of two plans for the lanes of a CPU, with the other among its candidates."""
    hosts = (machine.device[machine.host] for machine in (on, other))
    names = [f"{counted(host.lanes, 'CPU lane')} of {counted(host.threads, 'thread')}" for host in hosts]
    candidates = tuple(replace(each, note=each.note or names[0]) for each in plan.candidates)
    return replace(plan, candidates=(*candidates, loser.candidate(names[1])))


def _planned(
    captured: Captured,
    machine: Machine,
    options: Options,
    tensors: list[torch.Tensor],
    user_plan: Plan | None = None,
) -> Plan:
    weights = dict(captured.gradients)
    homes = homes_of(captured, machine, tensors, options.home)
    pins = resolve(captured.graph, options.pins, machine, weights)
    sums = resolve_sums(captured.graph, options.pins, weights)
    alone = [device.torch_type for device in machine.devices] == ["cpu"]
    asked = streamed(captured.graph, user_homes(captured.graph, options.home))
    graph = grouped(asked, homes, pins, ALONE_BYTES if alone else BUCKET_BYTES)
    if machine.separate_generators:
        graph = local(graph)
    own = {*graph.outputs}
    gradients = tuple((target, name) for target, name in captured.gradients if name in own)

    ratios: Ratios = {}
    if options.measures(machine):
        ratios = timed("measure", measured, graph, machine, captured.calls, present(captured, tensors))

    def costed(candidate: Graph, homes: Mapping[str, str], pins: Mapping[str, str]) -> CostedGraph:
        to = deliveries(candidate, machine, homes, options.outputs, gradients)
        return cost(candidate, machine, homes=homes, deliver=to, pins=pins, ratios=ratios)

    def price(candidate: Graph) -> CostedGraph:
        whole = {task.name: task.origin or task.name for task in candidate.tasks}
        pinned = {name: pins[origin] for name, origin in whole.items() if origin in pins}
        return costed(
            candidate, homes_with_slices(candidate, homes), {**pinned, **pinned_sums(candidate, sums)}
        )

    def moved(candidate: Graph, device: str) -> CostedGraph:
        own = {**homes, **dict.fromkeys(candidate.state, device)}
        return costed(candidate, own, dict.fromkeys((task.name for task in candidate.tasks), device))

    def finished(plan: Plan) -> Plan:
        """Return the plan with the values that its devices make, its slow-down, and for comparison the times
        of the model moved to each single device."""
        plan, sent = propagated(plan, captured.with_slices(plan.costed.graph)), plan.costed.graph.streamed
        tied = pins or graph.changing or graph.updates or sent or any(t.home for t in graph.tasks)
        if tied and (len(machine.devices) > 1 or sent):
            plan = replace(plan, singles=seconds_moved(graph, machine, moved))
        return with_slow_down(plan)

    if user_plan is None:
        free = (options.home, options.policy, options.split in (None, "auto")) == ("auto", "auto", True)
        plan = partial(best_plan, price=price, options=options)
        fine = partial(best_plan, price=lambda candidate: unfused(price(candidate)), options=options)
        return finished(shortest(graph, machine, homes, plan, fine, weights) if free else plan(graph))
    graph = streamed(graph, {*graph.streamed, *user_plan.costed.graph.streamed})
    return finished(follow_user_plan(graph, price, user_plan, options.batch_norm))


def at_home(planned: Callable[[Options], Plan], options: Options, machine: Machine) -> Plan:
    """Return a plan for training. On a declared machine without homes asked for, if the best single device alone
    is faster than the plan, return the shorter of it and a plan with all weights on that device."""
    plan = planned(options)
    best = plan.best_single
    if not machine.absent or options.home != "auto" or best is None or best[1] >= plan.makespan:
        return plan
    with suppress(MemoryCapError):
        moved = planned(replace(options, home=best[0]))
        return min(plan, moved, key=lambda each: each.makespan)
    return plan


def homes_of(
    captured: Captured, machine: Machine, tensors: list[torch.Tensor], home: Home = "auto"
) -> dict[str, str]:
    """Return the device of each input and state value before the call; `home` decides for state. Tangents
    come from the device of the outputs."""
    homes = {name: place_of(tensor.device, machine) for name, tensor in zip(captured.graph.inputs, tensors)}
    for name, (owner, key) in captured.state.items():
        homes[name] = place_of(owner[key].device, machine)
    homes |= user_homes(captured.graph, home)
    first = first_home(captured.graph, machine, homes)
    return {**homes, **dict.fromkeys((name for name, _ in captured.tangents), first)}


def homes_with_slices(graph: Graph, homes: Mapping[str, str]) -> dict[str, str]:
    """Return the homes of a graph with slices of state, which live at the home of the whole state."""
    return {**homes, **{value.name: homes[value.slice.of] for value in graph.values if value.slice}}


def first_home(graph: Graph, machine: Machine, homes: Mapping[str, str]) -> str:
    """Return the device of the call: the device of its first input or, without inputs, of its first state."""
    return next((homes[name] for name in (*graph.inputs, *graph.state) if name in homes), machine.host)


def place_of(device: torch.device, machine: Machine) -> str:
    """Return the machine's name of a torch device; the host for a device that the machine lacks."""
    name = str(device)
    return name if name in machine.device else machine.host


def deliveries(
    graph: Graph,
    machine: Machine,
    homes: Mapping[str, str],
    outputs: str,
    gradients: Sequence[tuple[str, str]] = (),
) -> tuple[tuple[str, str], ...]:
    """Return (value, device) for each output and update: outputs go to the first input's device (or "": stay
    where they are made), except that the last ones, the `gradients`, go to the homes of their leaves."""
    to = first_home(graph, machine, homes) if outputs == "as_input" else ""
    return (
        *((name, to) for name in graph.outputs[: len(graph.outputs) - len(gradients)]),
        *((name, homes[target]) for target, name in gradients),
        *((made, homes[target]) for made, target in graph.updates),
    )


def timed(title: str, function: Any, *args: Any) -> Any:
    """Call a stage and return its result; log its start and its seconds, and show that it is running."""
    with stage(title):
        return function(*args)
