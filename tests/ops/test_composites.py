"""Operators that stay whole in a joint graph: same gradients as eager, one task each way, no device's own kernel; and
those that autopar calls in its own way."""

import re

import pytest
import torch
from joint import agrees
from torch import nn
from torch.nn import functional as F
from turns import by_turns

import autopar
from autopar.errors import CaptureError
from autopar.ops.resolve import target

OWN = re.compile(r"_for_cpu|mkldnn|cudnn|miopen|_flash_|_efficient_|thnn|fused")


class Called(nn.Module):
    """A function of some modules and tensors as a module that returns a tuple."""

    def __init__(self, function, *parts):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *tensors):
        made = self.function(*self.parts, *tensors)
        return tuple(made) if isinstance(made, tuple | list) else (made,)


def rn(*shape, dtype=torch.float64, grad=True):
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


def compare(model, tensors, whole, slack=0.0):
    """The joint graph is whole and gives what eager gives; the targets of its tasks."""
    names = [task.target for task in agrees(model, tensors, limit=slack).graph.tasks]
    assert not [name for name in names if OWN.search(name)]
    if whole:
        assert names.count(f"autopar.{whole}.default") == 1
        assert names.count(f"autopar.{whole}_backward.default") == 1
        assert not [name for name in names if name.startswith(f"aten.{whole}")]
    return names


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["plain", "causal", "bool", "float", "gqa", "scale", "3d", "values"])
def test_attention(variant):
    q, k, v = (rn(2, 4, 6, 8) for _ in range(3))
    tensors, options = [q, k, v], {}
    if variant == "causal":
        options = {"is_causal": True}
    elif variant == "bool":
        tensors.append(torch.rand(2, 1, 6, 6) > 0.3)
    elif variant == "float":
        tensors.append(rn(4, 6, 6))
    elif variant == "gqa":
        tensors[1:] = [rn(2, 2, 6, 8), rn(2, 2, 6, 8)]
        options = {"enable_gqa": True}
    elif variant == "scale":
        options = {"scale": 0.3}
    elif variant == "3d":
        tensors = [rn(4, 6, 8) for _ in range(3)]
    elif variant == "values":
        tensors = [rn(2, 4, 6, 8), rn(2, 4, 5, 8), rn(2, 4, 5, 7)]
    model = Called(lambda *given: F.scaled_dot_product_attention(*given, **options))
    compare(model, tuple(tensors), "scaled_dot_product_attention")


DEEP = {"num_layers": 2, "bidirectional": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        (nn.LSTM, {}, "lstm"),
        (nn.LSTM, DEEP, "lstm"),
        (nn.LSTM, {"proj_size": 3, "batch_first": True}, "lstm"),
        (nn.LSTM, {"dtype": torch.float32}, "lstm"),
        (nn.LSTM, {"bias": False}, "lstm"),
        (nn.GRU, DEEP, "gru"),
        (nn.GRU, {"batch_first": True, "bias": False}, "gru"),
        (nn.GRU, {"dtype": torch.float32}, "gru"),
        (nn.RNN, {"bias": False}, "rnn_tanh"),
        (nn.RNN, {"nonlinearity": "relu", "batch_first": True, **DEEP}, "rnn_relu"),
    ],
    ids=str,
)
def test_recurrent(kind, options, name):
    options = {"dtype": torch.float64} | options
    layer = kind(5, 6, **options)
    compare(Called(lambda layer, x: layer(x)[0], layer), (rn(4, 3, 5, dtype=options["dtype"]),), name)


def counted(model, tensors, counts):
    """`compare`, with how often each operator stands in the graph."""
    names = compare(model, tensors, None)
    for name, count in counts.items():
        assert names.count(f"autopar.{name}.default") == count, name
        assert names.count(f"autopar.{name}_backward.default") == count, name
    return names


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=str)
def test_random_attention_draws_as_eager(options):
    model = Called(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.4, **options))
    names = counted(model, tuple(rn(2, 4, 6, 8, dtype=torch.float32) for _ in range(3)), {})
    assert names.count("aten.native_dropout.default") == 1
    assert not any("scaled_dot_product" in name for name in names)


@pytest.mark.slow
@by_turns(
    "kind, options, dtype",
    [nn.LSTM, nn.GRU, nn.RNN],
    [{}, {"bidirectional": True, "batch_first": True}],
    [torch.float32, torch.float64],
)
def test_random_layers_draw_as_eager(kind, options, dtype):
    layer = kind(5, 6, num_layers=3, dropout=0.4, dtype=dtype, **options)
    name = {nn.LSTM: "lstm", nn.GRU: "gru"}.get(kind, "rnn_tanh")

    def call(layer, x):
        output, states = layer(x)
        return output, *(states if isinstance(states, tuple) else (states,))

    names = counted(Called(call, layer), (rn(4, 3, 5, dtype=dtype),), {name: 3})
    assert names.count("aten.native_dropout.default") == 2


def test_layers_that_do_not_drop_stay_one():
    layer = nn.LSTM(5, 6, num_layers=3, dropout=0.4).double().eval()
    counted(Called(lambda layer, x: layer(x)[0], layer), (rn(4, 3, 5),), {"lstm": 1})


@pytest.mark.slow
def test_states_given_and_wanted():
    layer = nn.LSTM(5, 6, proj_size=3, num_layers=2).double()
    model = Called(lambda layer, x, h, c: (out := layer(x, (h, c)), out[0], *out[1])[1:], layer)
    counted(model, (rn(4, 3, 5), rn(2, 3, 3), rn(2, 3, 6)), {"lstm": 1})
    only = Called(lambda layer, x, h, c: layer(x, (h, c))[1][1], layer)
    counted(only, (rn(4, 3, 5, grad=False), rn(2, 3, 3), rn(2, 3, 6, grad=False)), {"lstm": 1})


@by_turns("kind, bias", [nn.LSTMCell, nn.GRUCell, nn.RNNCell], [True, False])
def test_cells(kind, bias):
    cell = kind(5, 6, bias=bias).double()
    name = {nn.LSTMCell: "lstm_cell", nn.GRUCell: "gru_cell"}.get(kind, "rnn_tanh_cell")
    counted(Called(lambda cell, x: cell(x), cell), (rn(3, 5),), {name: 1})


def test_packed_sequences_are_refused():
    layer = nn.LSTM(5, 6)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 3, 5), torch.tensor([4, 2, 1]))
    with pytest.raises(CaptureError, match="depends"):
        agrees(Called(lambda layer, x, sizes: layer(type(packed)(x, sizes))[0].data, layer), packed[:2])


@by_turns("form, padding, mode", ["rows", "offsets", "last"] * 2, [None, 2], ["sum", "mean", "max"])
def test_bags(mode, padding, form):
    bag = nn.EmbeddingBag(
        9, 4, mode=mode, padding_idx=padding, include_last_offset=form == "last", dtype=torch.float64
    )
    indices = torch.randint(0, 9, (5, 3))
    given = (indices,) if form == "rows" else (indices.reshape(-1), torch.tensor([0, 4, 4, 9]))
    counted(Called(lambda bag, *given: bag(*given), bag), given, {"embedding_bag": 1})


@pytest.mark.parametrize("rows", [True, False])
def test_bags_with_weights(rows):
    bag = nn.EmbeddingBag(9, 4, mode="sum", scale_grad_by_freq=False, dtype=torch.float64)
    indices, weights = torch.randint(0, 9, (5, 3)), torch.rand(5, 3, dtype=torch.float64, requires_grad=True)
    if rows:
        call, given = (lambda bag, i, w: bag(i, per_sample_weights=w)), (indices, weights)
    else:
        call = lambda bag, i, o, w: bag(i, o, per_sample_weights=w)  # noqa: E731
        given = (indices.reshape(-1), torch.tensor([0, 4, 9]), rn(15))
    names = counted(Called(call, bag), given, {"embedding_bag": 1})
    assert rows != any("arange" in name or "reshape" in name for name in names) or not rows


def test_bags_that_are_no_rows():
    """Six bags of four out of a matrix of four rows."""
    bag = nn.EmbeddingBag(9, 4, dtype=torch.float64)
    given = (torch.randint(0, 9, (4, 6)),)
    counted(
        Called(lambda bag, i: bag(i.reshape(-1), torch.arange(0, 24, 4)), bag), given, {"embedding_bag": 1}
    )


def test_sparse_bags_are_refused():
    bag = nn.EmbeddingBag(9, 4, sparse=True)
    with pytest.raises(CaptureError, match="sparse=False"):
        agrees(bag, (torch.randint(0, 9, (5, 3)),))


@pytest.mark.parametrize(
    ("name", "function", "shapes"),
    [
        ("upsample_bilinear2d", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [(2, 3, 4, 5)]),
        ("upsample_bicubic2d", lambda x: F.interpolate(x, size=(7, 3), mode="bicubic"), [(2, 3, 4, 5)]),
        ("upsample_nearest2d", lambda x: F.interpolate(x, scale_factor=1.5), [(2, 3, 4, 5)]),
        ("_upsample_nearest_exact1d", lambda x: F.interpolate(x, 7, mode="nearest-exact"), [(2, 3, 4)]),
        ("upsample_linear1d", lambda x: F.interpolate(x, 7, mode="linear", align_corners=True), [(2, 3, 4)]),
        ("upsample_trilinear3d", lambda x: F.interpolate(x, 5, mode="trilinear"), [(2, 3, 4, 4, 4)]),
        ("rms_norm", lambda x, w: F.rms_norm(x, (4,), w), [(2, 3, 4), (4,)]),
        ("cdist", torch.cdist, [(2, 3, 4), (2, 5, 4)]),
        ("affine_grid_generator", lambda x: F.affine_grid(x, (2, 1, 4, 5), False), [(2, 2, 3)]),
        ("linalg_cholesky", lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(4)), [(2, 4, 4)]),
        ("linalg_inv", lambda x: torch.linalg.matrix_power(x, -2), [(2, 4, 4)]),
        ("linalg_lu_factor", lambda x: torch.linalg.lu_factor(x)[0], [(2, 4, 4)]),
        ("linalg_solve", lambda a, b: torch.linalg.solve(a, b, left=False), [(4, 4), (2, 4)]),
    ],
)
def test_kept(name, function, shapes):
    counted(Called(function), tuple(rn(*shape) for shape in shapes), {name: 1})


def test_a_matrix_without_a_gradient_is_factored_whole():
    def call(x):
        with torch.no_grad():
            factors, pivots = torch.linalg.ldl_factor(x @ x.mT)
        return torch.linalg.ldl_solve(factors, pivots, x.detach()) * x

    assert "autopar.linalg_ldl_factor.default" in compare(Called(call), (rn(4, 4),), None)


@pytest.mark.parametrize("mixed", [False, True])
def test_norms_in_low_precision(mixed):
    low = torch.float32 if mixed else torch.bfloat16
    layer, group = nn.LayerNorm(8, dtype=low), nn.GroupNorm(2, 4, dtype=low)
    model = Called(lambda layer, group, x: group(layer(x)), layer, group)
    counted(model, (rn(2, 4, 8, dtype=torch.bfloat16),), {"layer_norm": 1, "group_norm": 1})


def test_norms_in_full_precision_keep_their_statistics():
    model = Called(lambda layer, x: layer(x), nn.LayerNorm(8))
    names = counted(model, (rn(2, 8, dtype=torch.float32),), {"layer_norm": 0})
    assert "aten.native_layer_norm_backward.default" in names


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "function", "shapes"),
    [
        ((), F.scaled_dot_product_attention, [(2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8)]),
        ((nn.Linear(8, 8),), lambda m, x: F.scaled_dot_product_attention(m(x), x, x), [(2, 4, 6, 8)]),
        ((), lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3), [(2, 4, 6, 8)]),
        ((nn.GRU(4, 6),), lambda m, x: m(x)[0], [(5, 3, 4)]),
        ((nn.RNN(4, 6, 2, dropout=0.3),), lambda m, x: m(x)[0], [(5, 3, 4)]),
        ((nn.GRUCell(4, 6),), lambda m, x: m(x), [(5, 4)]),
        ((nn.Linear(4, 4), nn.LayerNorm(4)), lambda m, n, x: n(m(x)), [(5, 4)]),
        ((nn.Linear(4, 4),), lambda m, x: torch.cdist(m(x), x), [(5, 4)]),
        ((nn.Linear(3, 3),), lambda m, x: F.affine_grid(m(x), (4, 1, 3, 5), True), [(4, 2, 3)]),
        ((nn.Linear(4, 4),), lambda m, x: torch.linalg.solve(torch.eye(4) + m(x) @ x, x), [(4, 4)]),
    ],
)
def test_autocast(parts, function, shapes):
    """Dtypes are eager's, numbers its within what bfloat16 leaves: 2.7 % at worst of 60 drawn cells."""

    def low(*given):
        with torch.autocast("cpu", torch.bfloat16):
            return function(*given)

    compare(Called(low, *parts), tuple(rn(*shape, dtype=torch.float32) for shape in shapes), None, slack=5e-2)


@pytest.mark.slow
def test_an_affine_grid_is_trained_with_an_open_batch():
    class Moved(nn.Module):
        def __init__(self):
            super().__init__()
            self.places = nn.Linear(4, 6)

        def forward(self, x):
            theta = self.places(x[:, 0, 0]).view(-1, 2, 3)
            return F.grid_sample(x, F.affine_grid(theta, x.size(), False), align_corners=False)

    model = Moved()
    fast = autopar.compile(model, ["cpu"])
    for rows in (2, 3, 5):
        x = torch.randn(rows, 1, 3, 4)
        gradients = (
            torch.autograd.grad(each(x).square().sum(), model.places.weight)[0] for each in (fast, model)
        )
        torch.testing.assert_close(*gradients)
    assert "as written" not in fast.explain()
    fast.close()


@pytest.mark.parametrize("name", ["aten.view_as_real.default", "aten.view.dtype"])
def test_elements_that_a_copy_has_conjugated_are_read(name):
    """A trace conjugates twice before it reads the elements; a copy in between has conjugated already."""
    data = torch.randn(3, 4, dtype=torch.complex64)
    call, others = target(name), [torch.float32] * name.endswith("dtype")
    expected, once = call(data, *others), data.conj().clone()
    assert not once.is_conj()
    assert torch.equal(call(once.conj(), *others), expected)
    assert expected.data_ptr() == data.data_ptr()
