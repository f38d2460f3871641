"""What a value cannot do without on its way, whatever way that is."""

from __future__ import annotations

from ..model.problem import Hop, Problem


class Entrances:
    """The queues and wires by which devices must be entered."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.known: dict[tuple[int, int], tuple[Hop, ...]] = {}
        links = [hops[0] for row in problem.route for hops in row if hops is not None and len(hops) == 1]
        self.out: list[list[Hop]] = [[] for _ in problem.devices]
        self.into: list[list[Hop]] = [[] for _ in problem.devices]
        for link in links:
            self.out[link.src].append(link)
            self.into[link.dst].append(link)

    def between(self, src: int, dst: int) -> tuple[Hop, ...]:
        """The hops without which nothing comes from `src` to `dst`: each is any of those to its `dst` in its queue or
        over its wire, one of the two, and as quick as the quickest."""
        if (src, dst) not in self.known:
            found = []
            for hop in self.problem.route[src][dst] or ():
                for lane, wire in ((hop.lane, -1), (-1, hop.wire)):
                    same = [one for one in self.into[hop.dst] if _takes(one, lane, wire)]
                    if same and not self._leads(src, dst, hop.dst, lane, wire):
                        latency = min(one.latency_s for one in same)
                        s_per_byte = min(one.s_per_byte for one in same)
                        found.append(Hop(-1, hop.dst, lane, wire, latency, s_per_byte))
            self.known[src, dst] = tuple(found)
        return self.known[src, dst]

    def _leads(self, src: int, dst: int, closed: int, lane: int, wire: int) -> bool:
        """Whether some way leads on when `closed` is not entered in this queue, or over this wire."""
        found = [src]
        seen = {src}
        for at in found:
            for hop in self.out[at]:
                if hop.dst not in seen and not (hop.dst == closed and _takes(hop, lane, wire)):
                    seen.add(hop.dst)
                    found.append(hop.dst)
            if dst in seen:
                return True
        return False


def _takes(hop: Hop, lane: int, wire: int) -> bool:
    return (lane >= 0 and hop.lane == lane) or (wire >= 0 and hop.wire == wire)
