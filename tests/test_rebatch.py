"""One proof serves every batch size, with the graph and answers of a capture; or else there is a capture."""

import copy

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import autopar
from autopar import stages
from autopar.capture import capture
from autopar.capture.dynamic import difference, prove
from autopar.capture.refusals import Untraceable
from autopar.capture.signature import take_apart

TWO = ["cpu", "emulated:0", "emulated:1"]


@pytest.fixture(autouse=True)
def no_grad():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def captures(monkeypatch):
    """The row counts that were captured, in order."""
    rows = []

    def counted(model, args, kwargs):
        rows.append(len(args[0]))
        return capture(model, args, kwargs)

    monkeypatch.setattr(stages, "capture", counted)
    return rows


def equal(found, expected):
    """The same structure, near tensors, equal constants."""
    mine, theirs = pytree.tree_flatten(found), pytree.tree_flatten(expected)
    assert mine[1] == theirs[1]
    for one, other in zip(mine[0], theirs[0]):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert type(one) is type(other) and one == other


class Encoder(nn.Module):
    """Class token, encoder, the batch merged with the positions and taken apart again."""

    def __init__(self, layers=1):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.embed = nn.Linear(6, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        rows, length, _ = x.shape
        x = torch.cat([self.token.expand(rows, -1, -1), self.embed(x)], 1)
        x = self.body(x).reshape(rows * (length + 1), 16)
        return self.head(x).view(rows, length + 1, 5)[:, 0]


class Bag(nn.Module):
    """Embeddings and two inputs, one without the batch."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, weight):
        return {"out": self.head((self.words(tokens) * weight[:, None]).mean(1)), "kind": "bag"}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LSTM(6, 8)

    def forward(self, x):
        return self.body(x)[0][-1]


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def conv(rows=None):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


def vectors(rows):
    return (torch.randn(rows, 6),)


def images(rows):
    return (torch.randn(rows, 3, 8, 8),)


def sequences(rows):
    return (torch.randn(rows, 5, 6),)


SAME = {
    "mlp": (lambda: mlp().eval(), vectors),
    "conv": (lambda: conv().eval(), images),
    "conv in training": (lambda: conv().train(), images),
    "encoder": (lambda: Encoder().eval(), sequences),
    "embeddings": (lambda: Bag(), lambda rows: (torch.randint(0, 20, (rows, 6)), torch.rand(6))),
    "second axis": (lambda: Recurrent(), lambda rows: (torch.randn(4, rows, 6),)),
    "mean of the batch": (lambda: lambda x: x - x.mean(0), vectors),
    "divided by the rows": (lambda: lambda x: x.sum(0) / x.shape[0] + torch.ones(x.shape[0], 6), vectors),
    "pairs of rows": (lambda: lambda x: x @ x.T, vectors),
    "changed in place": (lambda: lambda x: x.add_(1), vectors),
    "two inputs, whole slices": (
        lambda: lambda x, y: torch.cat([x[:, :] * y, y[:, 0:1]], 1),
        lambda rows: (torch.randn(rows, 6), torch.randn(rows, 6)),
    ),
    "random": (lambda: lambda x: nn.functional.dropout(x, 0.5), vectors),
}
OTHER = {
    "branch": (lambda x: x * 2 if x.shape[0] > 4 else x + 1),
    "parity": (lambda x: x * 2 if x.shape[0] % 2 else x + 1),
    "rows returned": (lambda x: (x + 1, x.shape[0])),
    "shape returned": (lambda x: (x + 1, x.shape)),
    "rows in a string": (lambda x: {"y": x + 1, "name": f"{x.shape[0]} rows"}),
    "loop": (lambda x: torch.stack([row * index for index, row in enumerate(x)])),
    "across the batch": (lambda x: x.reshape(-1, 4) if x.shape[0] % 2 == 0 else x),
    "root of the rows": (lambda x: x * x.shape[0] ** -0.5),
    "first rows": (lambda x: x[:3] * 2),
}


def family(model, inputs, before, rows):
    args = inputs(rows)
    batch = difference(take_apart(inputs(before), {}).key, take_apart(args, {}).key)
    return prove(model, args, {}, batch, capture(model, inputs(before)))


@pytest.mark.parametrize("name", SAME)
def test_the_graph_of_another_size_is_the_one_captured_at_that_size(name):
    make, inputs = SAME[name]
    model = make()
    found = family(model, inputs, 6, 4)
    for rows in (2, 6, 9):
        assert found.at(rows).graph == capture(model, inputs(rows)).graph
    with pytest.raises(Untraceable):
        found.at(1)


@pytest.mark.parametrize("name", OTHER)
def test_what_depends_on_the_size_is_not_proved(name):
    with pytest.raises(Untraceable):
        family(OTHER[name], vectors, 6, 8)


@pytest.mark.parametrize("name", OTHER)
def test_what_is_not_proved_is_captured_and_equals_eager(name, captures):
    fast = autopar.compile(OTHER[name], TWO)
    for rows in (6, 3, 8, 1):
        (x,) = vectors(rows)
        equal(fast(x), OTHER[name](x))
    assert captures == [6, 3, 8, 1]


@pytest.mark.parametrize(
    ("name", "devices", "split"),
    [
        ("mlp", ["cpu"], "auto"),
        ("conv", TWO, 2),
        ("encoder", TWO, {"emulated:0": 0.3, "emulated:1": 0.7}),
        ("embeddings", ["cpu"], None),
    ],
)
def test_two_captures_and_one_proof_serve_all_batches(name, devices, split, captures):
    make, inputs = SAME[name]
    model = make()
    fast = autopar.compile(model, devices, split=split, check="always")
    for rows in (8, 8, 5, 2, 7, 12, 3):
        args = inputs(rows)
        equal(fast(*args), model(*args))
    assert captures == [8, 5]


def test_a_batch_of_one_is_captured_on_its_own(captures):
    model = Encoder().eval()
    fast = autopar.compile(model, ["cpu"])
    for rows in (1, 4, 1, 7, 2):
        (x,) = sequences(rows)
        torch.testing.assert_close(fast(x), model(x))
    assert captures == [1, 4, 7]


def test_training_statistics_are_those_of_each_batch(captures):
    model, twin = conv().train(), conv().train()
    twin.load_state_dict(model.state_dict())
    fast = autopar.compile(model, TWO)
    for rows in (4, 6, 3, 4):
        args = images(rows)
        torch.testing.assert_close(fast(*args), twin(*args))
    assert captures == [4, 6]
    for mine, theirs in zip(model.buffers(), twin.buffers()):
        torch.testing.assert_close(mine, theirs)


def test_new_weights_modes_and_shapes_are_seen_after_a_proof(captures):
    model = conv().eval()
    fast = autopar.compile(model, ["cpu"])
    for rows in (4, 6, 8):
        fast(*images(rows))
    model[0].weight.mul_(2)
    args = images(5)
    torch.testing.assert_close(fast(*args), model(*args))
    model.train()
    twin = conv().train()
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(fast(*args), twin(*args))
    model.eval()
    wide = (torch.randn(5, 3, 8, 10),)
    torch.testing.assert_close(fast(*wide), model(*wide))
    strided = (torch.randn(3, 8, 8, 7).permute(3, 0, 1, 2),)
    torch.testing.assert_close(fast(*strided), model(*strided))
    assert captures[:3] == [4, 6, 5] and captures[-1] == 7


def test_each_mode_is_proved_by_its_own_captures(captures):
    model = conv()
    fast = autopar.compile(model, ["cpu"])
    for rows, training in ((4, False), (5, True), (6, False), (7, True), (8, False), (3, True), (9, False)):
        model.train(training)
        twin, args = copy.deepcopy(model), images(rows)
        torch.testing.assert_close(fast(*args), twin(*args))
        for mine, theirs in zip(model.buffers(), twin.buffers()):
            torch.testing.assert_close(mine, theirs)
    assert captures == [4, 5, 6, 7]


def test_a_proof_that_proved_wrong_gives_way_to_captures(captures):
    scale = [2.0]

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls.add_(1)
            return x * scale[0]

    model = Scaled()
    fast = autopar.compile(model, ["cpu"])
    for rows in (4, 6, 8):
        fast(*vectors(rows))
    assert captures == [4, 6]
    scale[0] = 3.0
    for rows in (5, 7):
        (x,) = vectors(rows)
        torch.testing.assert_close(fast(x), x * 3)
    assert captures == [4, 6, 5, 7]
    assert model.calls == 5


def test_an_attribute_that_changes_is_seen(captures):
    class Scaled(nn.Module):
        scale = 1

        def forward(self, x):
            return x * self.scale

    model = Scaled()
    fast = autopar.compile(model, ["cpu"])
    (x,) = vectors(4)
    for scale in (1, 2.0, 3, 2.0):
        model.scale = scale
        torch.testing.assert_close(fast(x), x * scale)
    assert captures == [4, 4, 4]


def test_only_a_contiguous_batch_of_two_or_more_is_a_difference():
    def key(*tensors):
        return take_apart(tensors, {}).key

    a, b = torch.zeros(4, 3), torch.zeros(4)
    found = difference(key(a, b), key(torch.zeros(7, 3), torch.zeros(7)))
    assert found is not None and (found.axes, found.before, found.rows) == ((0, 0), 4, 7)
    back = difference(key(torch.zeros(5, 3), torch.zeros(5)), key(a, b))
    assert back is not None and back.rest == found.rest
    for other in (
        (a, b),
        (torch.zeros(7, 3), torch.zeros(6)),
        (torch.zeros(7, 2), torch.zeros(7)),
        (torch.zeros(1, 3), torch.zeros(1)),
        (torch.zeros(7, 3).double(), torch.zeros(7)),
        (torch.zeros(3, 7).T, torch.zeros(7)),
        (torch.zeros(7, 3), torch.zeros(14)[::2]),
    ):
        assert difference(key(a, b), key(*other)) is None
