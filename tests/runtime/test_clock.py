"""The declared clock, on hands that the tests move: when lanes are late, and how much slower it should have gone."""

import random
from dataclasses import replace

import pytest
from naive import machine, plan, value
from samples import R, graph, op

from autopar.ir.costed import TaskCost
from autopar.ir.timeline import Placed
from autopar.runtime.lanes import emulated_clock as emulated
from autopar.runtime.lanes.emulated_clock import MARGIN, TOLERANCE, Clock, task_seconds


class Hands:
    """What the clock reads and sleeps by."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """The time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """That much later."""
        self.now += seconds


@pytest.fixture
def hands(monkeypatch) -> Hands:
    found = Hands()
    monkeypatch.setattr(emulated, "time", found)
    return found


def call(hands: Hands, tasks, slow_down: float = 1.0) -> Clock:
    """A call of tasks (lane, modelled seconds, real seconds, tasks it waits for), each after those before it on its
    lane; modelled seconds are those of a slow-down of 1."""
    hands.now = 0.0
    modelled: list[float] = []
    free: dict[int, float] = {}
    for lane, model, _, waits in tasks:
        modelled.append(model + max([free.get(lane, 0.0), *(modelled[w] for w in waits)]))
        free[lane] = modelled[-1]
    clock = Clock(max(modelled) * slow_down, slow_down)
    lanes = {lane: clock.lane() for lane in free}
    real = dict.fromkeys(free, 0.0)
    ended: list[float] = []
    for number, (lane, model, took, waits) in enumerate(tasks):
        hands.now = max([real[lane], *(ended[w] for w in waits)])
        for w in waits:
            lanes[lane].wait(str(w))
        hands.now += took
        lanes[lane].work(model * slow_down)
        lanes[lane].record(str(number))
        real[lane] = hands.now
        ended.append(hands.now)
    return clock


@pytest.mark.parametrize("seed", range(40))
def test_the_suggested_slow_down_suffices_and_is_not_excessive(hands, seed):
    draw = random.Random(seed)
    tasks = []
    for number in range(12):
        model = draw.choice((0.0, 0.01, 0.1, 1.0))
        real = draw.choice((0.3, 0.9, 1.1, 3.0)) * draw.choice((0.01, 0.1, 1.0))
        waits = draw.sample(range(number), min(number, draw.choice((0, 1, 1))))
        tasks.append((draw.randrange(3), model, real, waits))
    tasks.append((0, 1.0, 0.5, ()))
    clock = call(hands, tasks)
    assert clock.late > TOLERANCE, "a call that is on time shows nothing"
    again = call(hands, tasks, clock.enough)
    assert again.late <= 2 * TOLERANCE
    assert clock.enough <= max(1.0, clock.late / TOLERANCE) * MARGIN


def test_lateness_of_a_waiting_lane_counts_once(hands):
    clock = call(hands, [(0, 1.0, 1.9, ()), (1, 1e-3, 1e-3, (0,))])
    assert clock.enough <= 2 * MARGIN


@pytest.mark.parametrize("on_time", (0, 10))
def test_many_steps_that_are_each_hardly_late_count_together(hands, on_time):
    tasks = [(0, 0.1, 0.1, ())] * on_time + [(0, 0.01, 0.019, ())] * 10
    clock = call(hands, tasks)
    assert clock.late > 5 * TOLERANCE
    assert call(hands, tasks, clock.enough / MARGIN).late <= TOLERANCE * (1 + 1e-9)


@pytest.mark.parametrize("lanes", [1, 3])
def test_the_host_starts_one_run_after_the_other(hands, lanes):
    """The first at once, each next one when the one before has been started, whatever lane it is on."""
    clock = Clock(1.0, 1.0)
    queues = [clock.lane() for _ in range(lanes)]
    started = []
    for number in range(6):
        lane = queues[number % lanes]
        lane.dispatch(0.25)
        started.append(lane.now)
    assert started == [pytest.approx(0.25 * number) for number in range(6)]
    late = clock.lane()
    late.now = 7.0
    late.dispatch(0.25)
    assert late.now == 7.0, "a host that is idle starts it at once"


def test_copies_over_one_wire_follow_each_other_and_others_do_not(hands):
    clock = Clock(1.0, 1.0)
    one, two, three = (clock.lane() for _ in range(3))
    one.reserve(("bus",), 0.5)
    two.reserve(("bus", "other"), 0.5)
    three.reserve((), 0.5)
    for lane in (one, two, three):
        lane.work(0.5)
    assert [lane.now for lane in (one, three, two)] == [pytest.approx(t) for t in (0.5, 0.5, 1.0)]
    three.reserve(("other",), 0.25)
    three.work(0.25)
    assert three.now == pytest.approx(1.25)


@pytest.mark.parametrize(("whole", "lasts"), [(1.0, 2.0), (0.0, 2.0), (0.0, 0.0), (0.0, None)])
def test_the_seconds_of_a_run_are_shared_out_over_its_tasks(whole, lasts):
    """In proportion to their own; where these are nothing, all to the last."""
    tasks = [op(name, "aten.sin.default", R("x")) for name in "abc"]
    made = plan(
        graph("run", [value("x", kind="input")], tasks, ("a_", "b_", "c_")), machine(), ["emulated:0"]
    )
    on = replace(made.costed.machine, clock="declared", slow_down=10.0)
    own = {"a": whole, "b": 3 * whole, "c": 0.0}
    costs = tuple(TaskCost(name, (9.0, seconds or None, 9.0)) for name, seconds in own.items())
    run = replace(made.costed.clusters[0], name="r", tasks=("a", "b", "c"), seconds=(9.0, lasts, 9.0))
    costed = replace(made.costed, machine=on, costs=costs, clusters=(run,))
    placed = (Placed("r", "emulated:0", "emulated:0/0", 0.0, 2.0),)
    found = task_seconds(replace(made, costed=costed, placed=placed))
    shares = (5.0, 15.0, 0.0) if whole else (0.0, 0.0, 10.0 * (lasts or 0.0))
    assert found == {name: pytest.approx(share) for name, share in zip("abc", shares)}
