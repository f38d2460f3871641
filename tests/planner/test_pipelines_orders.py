"""Orders of pipeline schedules: those of torch's own, and what every order must hold."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autopar.ir.distribution import SCHEDULES
from autopar.planner.pipelines.simulation import Action, Option, in_flight, orders, refusal

SHAPES = st.tuples(st.sampled_from(SCHEDULES), st.integers(1, 7), st.integers(1, 4), st.integers(1, 24))


class _Recorder:
    """A pipeline stage that only notes which passes are asked of it."""

    def __init__(self, stage: int, stages: int) -> None:
        self.stage_index, self.num_stages, self.is_last = stage, stages, stage == stages - 1
        self.noted: list[Action] = []

    def forward_one_chunk(self, micro_batch, *_, **__):
        self.noted.append(("F", self.stage_index, micro_batch))

    def backward_one_chunk(self, micro_batch, *_, **__):
        self.noted.append(("B", self.stage_index, micro_batch))

    def __getattr__(self, name):
        return lambda *_, **__: []


def executed(schedule: str, positions: int, micro_batches: int) -> list[list[Action]]:
    """The passes that torch's GPipe and 1F1B ask of their stages: their printed order has another last stage."""
    from torch.distributed.pipelining import schedules

    made = {"gpipe": schedules.ScheduleGPipe, "1f1b": schedules.Schedule1F1B}[schedule]
    found = []
    for position in range(positions):
        stage = _Recorder(position, positions)
        run = made(stage, micro_batches)
        run._initialize_stage = run._maybe_compute_loss = run._maybe_get_loss = lambda *_, **__: None
        run._update_losses = lambda *_: None
        run._step_microbatches([()] * micro_batches, [{}] * micro_batches)
        found.append(stage.noted)
    return found


def calculated(schedule: str, positions: int, chunks: int, micro_batches: int) -> list[list[Action]]:
    """The orders that torch's interleaved schedules work out."""
    from torch.distributed.pipelining import schedules

    name = {"interleaved": "ScheduleInterleaved1F1B", "zero-bubble": "ScheduleInterleavedZeroBubble"}
    made = getattr(schedules, name[schedule])
    run = made.__new__(made)
    run.pp_group_size, run.n_local_stages, run._n_microbatches = positions, chunks, micro_batches
    run.number_of_rounds = max(1, micro_batches // positions)
    run.microbatches_per_round = micro_batches // run.number_of_rounds
    return [
        [
            (action.computation_type.value, action.stage_index, action.microbatch_index)
            for action in run._calculate_single_rank_operations(position)
            if action is not None
        ]
        for position in range(positions)
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_orders_are_those_of_torch(schedule):
    pytest.importorskip("torch.distributed.pipelining")
    compared = 0
    for positions in (1, 2, 3, 4, 5, 8):
        for chunks in (1, 2, 3, 4):
            for micro_batches in (1, 2, 3, 4, 6, 8, 10, 16):
                if refusal(schedule, positions, chunks, micro_batches):
                    continue
                if schedule in ("gpipe", "1f1b"):
                    theirs = executed(schedule, positions, micro_batches)
                else:
                    theirs = calculated(schedule, positions, chunks, micro_batches)
                assert orders(schedule, positions, chunks, micro_batches) == theirs
                compared += 1
    assert compared > 20


@pytest.mark.slow
@given(SHAPES)
@settings(max_examples=60)
def test_each_pass_is_there_once_and_behind_those_it_needs(shape):
    schedule, positions, chunks, micro_batches = shape
    assume(not refusal(*shape))
    made = orders(*shape)
    backward = "IW" if schedule == "zero-bubble" else "B"
    wanted = {
        (what, stage, m)
        for what in "F" + backward
        for stage in range(positions * chunks)
        for m in range(micro_batches)
    }
    assert sorted(action for order in made for action in order) == sorted(wanted)
    for position, order in enumerate(made):
        assert all(stage % positions == position for _, stage, _ in order)
        place = {action: number for number, action in enumerate(order)}
        for (what, stage, m), number in place.items():
            for before in {"B": "F", "I": "F", "W": "I"}.get(what, ""):
                assert place[before, stage, m] < number


def walked(order: list[Action], positions: int, chunks: int) -> list[list[int]]:
    """Micro-batches in flight of each chunk, behind each forward of a process."""
    now, found = [0] * chunks, []
    apart = any(what == "W" for what, _, _ in order)
    for what, stage, _ in order:
        if what == "F":
            now[stage // positions] += 1
            found.append([*now])
        elif what == ("W" if apart else "B"):
            now[stage // positions] -= 1
    return found


@pytest.mark.slow
@given(SHAPES, st.lists(st.integers(0, 9), min_size=4, max_size=4))
@settings(max_examples=200)
def test_most_in_flight_is_what_a_walk_through_the_order_finds(shape, weights):
    schedule, positions, chunks, micro_batches = shape
    assume(not refusal(*shape))
    for at, order in enumerate(orders(*shape)):
        seen = walked(order, positions, chunks)
        told = in_flight(schedule, positions, chunks, micro_batches, at).tolist()
        most = [max(sum(n * w for n, w in zip(row, weights)) for row in rows) for rows in (seen, told)]
        assert most[0] == most[1]


@given(st.integers(1, 8), st.integers(1, 24))
def test_1f1b_holds_no_more_micro_batches_than_stages_behind(positions, micro_batches):
    assume(micro_batches >= positions)
    for at in range(positions):
        assert in_flight("1f1b", positions, 1, micro_batches, at).tolist() == [[positions - at]]
        assert in_flight("gpipe", positions, 1, micro_batches, at).tolist() == [[micro_batches]]


def test_inference_is_the_forwards_alone():
    served = Option(1, 2, 1, 3, "gpipe", 1, trained=False)
    assert served.orders() == [[("F", stage, m) for m in range(3)] for stage in range(2)]


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (("1f1b", 4, 1, 3), "a micro-batch for each of 4"),
        (("gpipe", 2, 2, 4), "one stage to a process"),
        (("interleaved", 4, 2, 9), "a multiple of 2"),
        (("2f2b", 2, 1, 2), "not known"),
    ],
)
def test_numbers_that_a_schedule_does_not_take_are_refused(shape, says):
    assert says in refusal(*shape)
