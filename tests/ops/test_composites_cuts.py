"""The parts of what stays whole in a joint graph, joined or added up, are the call, forward and backward."""

import pytest
import torch
from cut_cases import b, case, i, r
from cut_parts import check, identify, outputs_of

from autopar.capture.operators import flops
from autopar.capture.split_rules import cuts
from autopar.ir.graph import SUMMED
from autopar.ops import composites  # noqa: F401  (defines the operators)

ours, aten = torch.ops.autopar, torch.ops.aten


def weights(*shapes):
    return [r(*shape) for shape in shapes]


SDPA = ours.scaled_dot_product_attention.default
LAYER = weights((24, 4), (24, 6), (24,), (24,))
GRU = weights((18, 4), (18, 6), (18,), (18,))
FORWARD = [
    case(SDPA, *(r(6, 4, 3, 8) for _ in range(3)), None, 0.0, False, None, False, False, axes=(0, 1, 2)),
    case(SDPA, *(r(6, 4, 3, 8) for _ in range(3)), None, 0.0, True, None, False, False, axes=(0, 1)),
    case(SDPA, *(r(6, 4, 3, 8) for _ in range(3)), r(4, 3, 3), 0.0, False, None, False, False, axes=(0, 1, 2)),
    case(SDPA, *(r(6, 4, 3, 8) for _ in range(3)), b(6, 1, 1, 3) | True, 0.0, False, 0.2, False, False, axes=(0, 1)),
    case(SDPA, r(6, 4, 3, 8), r(6, 2, 5, 8), r(6, 2, 5, 8), None, 0.0, False, None, True, False, axes=(0, 1)),
    case(ours.lstm.default, r(5, 6, 4), [r(1, 6, 6)] * 2, LAYER, *(True, 1, 0.0, True, False, False), axes=(1,)),
    case(ours.gru.default, r(6, 5, 4), r(1, 6, 6), GRU, *(True, 1, 0.0, True, False, True), axes=(0,)),
    case(ours.lstm_cell.default, r(6, 4), [r(6, 6), r(6, 6)], *LAYER, axes=(0,)),
    case(ours.gru_cell.default, r(6, 4), r(6, 6), *GRU[:2], None, None, axes=(0,)),
    case(ours.embedding_bag.default, r(9, 4), i(9, 6, 3), None, None, False, 1, False, None, axes=(0, 1)),
    case(ours.embedding_bag.default, r(9, 4), i(9, 6, 3), None, r(6, 3), False, 0, False, 2, axes=(0, 1)),
    case(ours.embedding_bag.default, r(9, 4), i(9, 6), i(1, 1), None, False, 2, False, None, axes=(1,)),
    case(ours.upsample_bilinear2d.default, r(6, 3, 4, 4), [7, 5], False, None, axes=(0, 1)),
    case(ours.upsample_nearest1d.default, r(6, 3, 4), None, [2.0], axes=(0, 1)),
    case(ours.rms_norm.default, r(6, 3, 4), [4], r(4), None, axes=(0, 1)),
    case(ours.layer_norm.default, r(6, 3, 4), [4], r(4), r(4), 1e-5, True, axes=(0, 1)),
    case(ours.group_norm.default, r(6, 4, 3), 2, r(4), None, 1e-5, True, axes=(0,)),
    case(ours.cdist.default, r(6, 3, 4), r(6, 5, 4), 2.0, None, axes=(0, 1, 2)),
    case(ours.affine_grid_generator.default, r(6, 2, 3), [6, 3, 4, 5], False, axes=(0,)),
]  # fmt: skip


def turned(forward, keep=lambda place: True):
    """The backward of a case for every floating tensor that `keep` takes, its first gradient in as many ways."""
    op, args, _, axes = forward
    given = [t for a in args for t in (a if isinstance(a, list) else [a]) if isinstance(t, torch.Tensor)]
    needs = [tensor.is_floating_point() and keep(place) for place, tensor in enumerate(given)]
    outputs = outputs_of(op(*args))
    backward = getattr(ours, f"{op._opname}_backward").default
    taped = "outputs" in (argument.name for argument in backward._schema.arguments)
    made = [
        [r(*output.shape) for output in (outputs[:-1] if taped else outputs)],
        *([outputs] if taped else []),
    ]
    sure = op is not ours.cdist.default and keep(0)
    return case(backward, *made, *args, needs, axes=axes if sure else ())


BACKWARD = [turned(forward) for forward in FORWARD if forward[0] is not ours.embedding_bag.default] + [
    turned(FORWARD[3], lambda place: place != 1),
    turned(FORWARD[5], lambda place: place > 0),
]


@pytest.mark.parametrize("given", [*FORWARD, *BACKWARD], ids=identify)
def test_parts_are_the_whole(given):
    check(given)


@pytest.mark.parametrize("given", [f for f in FORWARD if f[0] is ours.embedding_bag.default], ids=identify)
def test_bags_add_up(given):
    backward = turned(given)
    check((*backward[:3], set()))
    op, args, kwargs, _ = backward
    found = cuts(op, args, kwargs, op(*args))
    assert (SUMMED in {cut.outputs[0] for cut in found}) == (given[1][2] is None)


def test_frequency_needs_the_whole_batch():
    op, args, kwargs, _ = turned(FORWARD[9])
    scaled = (*args[:5], True, *args[6:])
    assert not cuts(op, scaled, kwargs, op(*scaled))


def test_some_gradients_only():
    """Outputs nobody differentiates through have no gradient to cut."""
    op, args, kwargs, _ = turned(FORWARD[5])
    args = ([args[0][0], None, None], *args[1:])
    check((op, args, kwargs, {1}))


@pytest.mark.parametrize("given", FORWARD[:9], ids=identify)
def test_work_is_counted(given):
    op, args, kwargs, _ = given
    packet = getattr(aten, op._opname)
    overload = packet.input if op._opname in ("lstm", "gru") else packet.default
    ahead = flops(op, args, kwargs, op(*args))
    back = turned(given)
    assert ahead == flops(overload, args, {}, op(*args)) > 0
    # A gradient for each factor of each product; who has no tape of the forward computes it once more.
    taped = "outputs" in (argument.name for argument in back[0]._schema.arguments)
    assert flops(back[0], back[1], {}, back[0](*back[1])) == (2 if taped else 3) * ahead
