"""Nothing that can be carried out is ruled out: every schedule that fits is a solution of the exact planner's model."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from taskfiles import link, randomly
from test_bounds import random_schedule

from autopar.errors import PlanError
from autopar.planner import schedule
from autopar.planner.bounds.ancestors import joined
from autopar.planner.bounds.critical_path import paths
from autopar.planner.bounds.load import load
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Play, Schedule
from autopar.planner.model.timing import memory

cp_model = pytest.importorskip("ortools.sat.python.cp_model")

from autopar.planner.exact.model import Model, TimeUnits, solver, weigh  # noqa: E402
from autopar.planner.exact.proof import proofs  # noqa: E402
from autopar.planner.exact.transfers import cap, transfer  # noqa: E402

UNITS = 10_000


def fits(play):
    return all(one.cap is None or one.peak <= one.cap for one in memory(play))


def solution(instance, best, play):
    """The solver's verdict on a simulated schedule, all of which is given, where no more than `best` is asked for."""
    units, around = TimeUnits(best.makespan, UNITS), joined(instance, paths(instance, once=True))
    model = Model(instance, units, best, around, units.floor(best.makespan))
    transfer(model)
    model.limit()
    weigh(model, load(instance, around)[1])
    cap(model)
    for r, d in enumerate(play.device):
        model.cp.add_bool_or(model.on[r].get(d, False))
        model.cp.add(model.start[r] == units.floor(play.start[r]))
        taken = 1 + len(play.more.get(r, ()))
        model.cp.add_bool_or(when for lanes, _, when in model.modes[r, d] if lanes == taken)
    for step, (v, hop) in enumerate(play.moves, instance.clusters):
        model.cp.add(model.sent[v, hop.dst] == units.floor(play.start[step]))
    model.cp.add(model.makespan <= units.floor(play.makespan))
    own = solver(1.0, math.inf)
    return own.status_name(own.solve(model.cp))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 10), st.booleans())
def test_every_schedule_that_fits_is_a_solution_of_the_model(seed, tasks, tight):
    draw = random.Random(seed)
    instance = Instance(read(randomly(draw, tasks, tight=tight)))
    plays = []
    for number in range(20):
        try:
            plays.append(Play(instance, random_schedule(instance, random.Random(number))))
        except PlanError:
            continue  # What is drawn may wait for itself, or for what no link brings, or take too few lanes.
    plays = [play for play in plays if fits(play)]
    if plays:
        longest = max(plays, key=lambda play: play.makespan)
        for play in plays[:3]:
            for best in (play, longest) if play.makespan > 0 else ():
                assert solution(instance, best, play) in ("OPTIMAL", "FEASIBLE")


@pytest.mark.parametrize("scale", [1, 10**12, 10**25])
def test_sizes_may_be_as_large_as_a_file_can_have_them(scale):
    tasks = [{"id": f"t{n}", "seconds": {"a": 1.0, "b": 3.0}, "state_bytes": 6 * scale} for n in range(4)]
    devices = [{"name": name, "memory_bytes": 12 * scale} for name in "ab"]
    graph = {"tasks": tasks, "values": [], "devices": devices, "links": []}
    assert schedule(graph).makespan == pytest.approx(6.0)


def test_a_transfer_that_is_not_made_takes_no_time():
    # Two chains of three tasks: a value sent would come after the end of the plan known, and none has to be.
    names = [f"{chain}{n}" for chain in "pq" for n in range(3)]
    values = [
        {"id": f"from {name}", "producer": name, "consumers": [after], "bytes": 10}
        for name, after in pairwise(names)
        if name[0] == after[0]
    ]
    graph = {
        "tasks": [{"id": name, "seconds": {"a": 1.0, "b": 1.0}} for name in names],
        "values": values,
        "devices": [{"name": name, "memory_bytes": 30} for name in "ab"],
        "links": [link(src, dst, latency_s=5.0) for src, dst in ("ab", "ba")],
    }
    instance = Instance(read(graph))
    assert instance.tight
    *_, found = proofs(instance, Schedule("one lane", {"a/0": instance.names}), 6.0)
    assert (found.best.makespan, found.optimal) == (pytest.approx(3.0), True)
