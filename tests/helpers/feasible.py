"""Feasibility of a plan, judged from the definitions alone: nothing here knows how plans are
made."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from autopar.ir.plan import Plan

EPS = 1e-9


def problems(plan: Plan) -> list[str]:
    """Everything that is wrong with a plan, in words; empty when it can be carried out as it says."""
    return [*_clusters(plan), *_transfers(plan), *_reads(plan), *_overlaps(plan), *_memory(plan)]


def _clusters(plan: Plan) -> Iterable[str]:
    costed = plan.costed
    if sorted(step.cluster for step in plan.placed) != sorted(cluster.name for cluster in costed.clusters):
        yield "not every run is placed once"
    groups: dict[str, str] = {}
    for step in plan.placed:
        cluster = costed.cluster[step.cluster]
        seconds = costed.seconds(step.cluster, step.device)
        if seconds is None:
            yield f"{step.cluster} cannot run on {step.device}"
        elif abs(step.end - step.start - seconds) > EPS:
            yield f"{step.cluster} takes {step.end - step.start}, not {seconds}"
        if step.lane not in costed.machine.device[step.device].compute_lanes:
            yield f"{step.lane} is no lane of {step.device}"
        if cluster.colocate and groups.setdefault(cluster.colocate, step.device) != step.device:
            yield f"{step.cluster} is parted from its group"
        for name in cluster.after:
            if plan.place[name].end > step.start + EPS:
                yield f"{step.cluster} starts before {name} has ended"
    last = max((step.end for step in (*plan.placed, *plan.transfers)), default=0.0)
    if abs(plan.makespan - last) > EPS:
        yield f"makespan {plan.makespan}, but the last step ends at {last}"


def _there(plan: Plan, value: str, device: str, at: float) -> bool:
    """True if a value is on a device at a moment."""
    costed = plan.costed
    if value in costed.graph.resident and (value, device) in plan.resident:
        return True
    if value in costed.home and costed.home[value] == device:
        return True
    if value in costed.producer:
        made = plan.place[costed.producer[value]]
        if made.device == device and made.end <= at + EPS:
            return True
    return any(t.value == value and t.dst == device and t.end <= at + EPS for t in plan.transfers)


def _transfers(plan: Plan) -> Iterable[str]:
    machine = plan.costed.machine
    seen = set()
    for t in plan.transfers:
        link = machine.link.get((t.src, t.dst))
        if link is None:
            yield f"{t.value}: no link from {t.src} to {t.dst}"
            continue
        if t.bytes != plan.costed.graph.value[t.value].bytes:
            yield f"{t.value}: {t.bytes} bytes"
        if abs(t.end - t.start - link.seconds(t.bytes)) > EPS:
            yield f"{t.value}: the transfer takes {t.end - t.start}"
        if t.lane != machine.copy_lane(t.src, t.dst):
            yield f"{t.value}: copied in {t.lane}"
        if not t.ready <= t.start + EPS:
            yield f"{t.value}: starts before it is ready"
        if not _there(plan, t.value, t.src, t.start):
            yield f"{t.value} leaves {t.src} before it is there"
        if (t.value, t.dst) in seen:
            yield f"{t.value} comes to {t.dst} twice"
        seen.add((t.value, t.dst))


def _reads(plan: Plan) -> Iterable[str]:
    for step in plan.placed:
        for value in plan.costed.cluster[step.cluster].reads:
            if not _there(plan, value, step.device, step.start):
                yield f"{step.cluster} reads {value} on {step.device} before it is there"
    for value, device in plan.costed.deliver:
        if device and not _there(plan, value, device, plan.makespan):
            yield f"{value} is not delivered to {device}"
    for made, state, device in _carried(plan):
        if not _there(plan, made, device, plan.makespan):
            yield f"{made}, the new value of {state}, does not come to {device}, which has a copy of the old one"


def _carried(plan: Plan) -> Iterable[tuple[str, str, str]]:
    """(new value, state, device) wherever a copy of carried state must be replaced at the end."""
    for made, state in plan.costed.graph.updates:
        for name, device in plan.resident:
            if name == state and device != plan.costed.home[state]:
                yield made, state, device


def _overlaps(plan: Plan) -> Iterable[str]:
    machine = plan.costed.machine
    used: dict[str, list[tuple[float, float]]] = {}
    for step in plan.placed:
        used.setdefault(f"lane {step.lane}", []).append((step.start, step.end))
        used.setdefault("host", []).append(
            (step.start, step.start + plan.costed.cluster[step.cluster].dispatch_s)
        )
    for t in plan.transfers:
        used.setdefault(f"lane {t.lane}", []).append((t.start, t.end))
        wire = machine.link[t.src, t.dst].wire
        if wire is not None:
            used.setdefault(f"wire {wire}", []).append((t.start, t.end))
    for name, spans in used.items():
        busy = sorted(span for span in spans if span[1] - span[0] > EPS)
        for (_, end), (start, _) in pairwise(busy):
            if start < end - EPS:
                yield f"{name} does two things at {start}"


def allocations(plan: Plan) -> list[tuple[str, float, float, int]]:
    """(device, from, until, bytes) of everything in memory; `until` inf for what stays."""
    costed, graph = plan.costed, plan.costed.graph
    forever = float("inf")
    found = []
    kept: dict[tuple[str, str], int] = {}
    for name in (*graph.inputs, *graph.state):
        key = (costed.home[name], graph.value[name].storage)
        kept[key] = max(kept.get(key, 0), graph.value[name].bytes)
    for name, device in plan.resident:
        key = (device, graph.value[name].storage)
        kept[key] = max(kept.get(key, 0), graph.value[name].bytes)
    found += [(device, 0.0, forever, nbytes) for (device, _), nbytes in kept.items()]

    def last_use(value: str, device: str) -> float:
        """When the memory of a value on a device is last needed, views made of it there included."""
        last = 0.0
        for step in plan.placed:
            cluster = costed.cluster[step.cluster]
            if step.device == device and value in cluster.reads:
                last = max(last, step.end)
                for made in cluster.makes:
                    if graph.value[made].storage == graph.value[value].storage:
                        last = max(last, last_use(made, device))
        last = max([last, *(t.end for t in plan.transfers if t.value == value and t.src == device)])
        made_here = costed.producer.get(value) in {s.cluster for s in plan.placed if s.device == device}
        for name, where in costed.deliver:
            if name == value and (where == device or (not where and made_here)):
                return forever
        if value in graph.refreshed and device != costed.home[value]:
            return forever
        if any(made == value and where == device for made, _, where in _carried(plan)):
            return forever
        return last

    for step in plan.placed:
        cluster = costed.cluster[step.cluster]
        for value in cluster.makes:
            if graph.value[value].storage == value:
                until = max(step.end, last_use(value, step.device))
                found.append((step.device, step.start, until, graph.value[value].bytes))
        found.append((step.device, step.start, step.end, cluster.workspace_bytes))
    for t in plan.transfers:
        found.append((t.dst, t.start, max(t.end, last_use(t.value, t.dst)), t.bytes))
    return found


def _memory(plan: Plan) -> Iterable[str]:
    held = allocations(plan)
    for device in plan.costed.machine.devices:
        own = [
            (start, end, nbytes) for where, start, end, nbytes in held if where == device.name and end > start
        ]
        most = max(
            (sum(nbytes for start, end, nbytes in own if start <= moment < end) for moment, _, _ in own),
            default=0,
        )
        if device.memory_bytes is not None and most > device.memory_bytes:
            yield f"{device.name} needs {most} of its {device.memory_bytes} bytes"
        if plan.peaks[device.name] != most:
            yield f"{device.name}: the plan says {plan.peaks[device.name]} bytes at most, it is {most}"
