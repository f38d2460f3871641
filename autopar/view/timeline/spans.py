"""The critical path of a timeline: that of the plan, or of what was measured a guess from what ended when."""

from __future__ import annotations

from ...ir.timeline import Span, Timeline


def happened(timeline: Timeline) -> list[Span]:
    """The spans of the critical path, by start.

    A measured timeline holds no dependencies: its path is walked back from the last end through the latest end on any
    lane that each step can have waited for.
    """
    if timeline.path:
        return [timeline.spans[number] for number in timeline.path]
    spans = sorted(
        (s for s in timeline.spans if not s.run and s.end > s.start), key=lambda s: (s.end, s.start)
    )
    if not spans:
        return []
    slop = timeline.makespan * 2e-3
    found, index = [], len(spans) - 1
    while index >= 0:
        span = spans[index]
        found.append(span)
        index -= 1
        while index >= 0 and spans[index].end > span.start + slop:
            index -= 1
        best = index
        while best >= 0 and index >= 0 and spans[best].end >= spans[index].end - slop:
            if _related(spans[best], span):
                index = best
                break
            best -= 1
    return found[::-1]


def _related(before: Span, after: Span) -> bool:
    """Whether the second could have waited for the first: one lane, or data that comes to its device."""
    if before.lane == after.lane:
        return True
    source = before.dst if before.kind == "copy" else before.device
    return source == (after.src if after.kind == "copy" else after.device)
