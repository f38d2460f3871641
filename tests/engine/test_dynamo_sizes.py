"""One capture for all sizes: the graph at a size is the one captured at that size, and answers are eager's."""

import copy

import pytest
import torch
from torch import nn
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree

import autopar

pytestmark = [pytest.mark.slow, pytest.mark.thin(3)]

TWO = ["cpu", "emulated:0", "emulated:1"]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


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
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
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


class Branches(nn.Module):
    """Four branches, wide enough to be runs of their own."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6)) for _ in range(4)
        )

    def forward(self, x):
        return torch.stack([branch(x) for branch in self.branches]).sum(0)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LSTM(6, 8)

    def forward(self, x):
        return self.body(x)[0][-1]


class OneOfEach(nn.Module):
    """A layer of each operator that torch takes apart into steps."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GRU(6, 4), nn.LSTM(4, 4)

    def forward(self, x):
        return self.second(self.first(x)[0])[0]


class Recurrences(nn.Module):
    """Recurrent layers of each kind over the second axis."""

    def __init__(self):
        super().__init__()
        self.first = nn.GRU(6, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.second = nn.LSTM(16, 8, num_layers=2, batch_first=True)
        self.third = nn.RNN(8, 4, batch_first=True)

    def forward(self, x):
        return self.third(self.second(self.first(x)[0])[0])[0].mean(1)


def conv():
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(16, 2))


def vectors(rows):
    return (torch.randn(rows, 6),)


def images(rows):
    return (torch.randn(rows, 3, 8, 8),)


def sequences(rows):
    return (torch.randn(rows, 5, 6),)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), vectors),
    "conv": (lambda: conv().eval(), images),
    "conv in training": (lambda: conv().train(), images),
    "encoder": (lambda: Encoder().train(), sequences),
    "embeddings": (Bag, lambda rows: (torch.randint(0, 20, (rows, 6)), torch.rand(6))),
    "second axis": (Recurrent, lambda rows: (torch.randn(4, rows, 6),)),
    "lengths": (Recurrences, lambda rows: (torch.randn(4, rows, 6),)),
    "two axes": (Encoder, lambda rows: (torch.randn(rows, rows + 3, 6),)),
    "mean of the batch": (lambda: lambda x: x - x.mean(0), vectors),
    "divided by the rows": (lambda: lambda x: x.sum(0) / x.shape[0] + torch.ones(x.shape[0], 6), vectors),
    "root of the rows": (lambda: lambda x: x * x.shape[0] ** -0.5, vectors),
    "pairs of rows": (lambda: lambda x: x @ x.T, vectors),
    "rows returned": (lambda: lambda x: (x + 1, x.shape[0]), vectors),
    "shape returned": (lambda: lambda x: (x + 1, x.shape), vectors),
    "two inputs, whole slices": (
        lambda: lambda x, y: torch.cat([x[:, :] * y, y[:, 0:1]], 1),
        lambda rows: (torch.randn(rows, 6), torch.randn(rows, 6)),
    ),
    "every second": (lambda: lambda x: x[:, ::2] * 2, lambda rows: (torch.randn(rows, 6, 4)[..., ::2],)),
}
FIXED = {
    "branch": (lambda x: x * 2 if x.shape[0] > 4 else x + 1),
    "parity": (lambda x: x * 2 if x.shape[0] % 2 else x + 1),
    "rows in a string": (lambda x: {"y": x + 1, "name": f"{x.shape[0]} rows"}),
    "loop": (lambda x: torch.stack([row * index for index, row in enumerate(x)])),
    "across the batch": (lambda x: x.reshape(-1, 4) if x.shape[0] % 2 == 0 else x),
    "first rows": (lambda x: x[:3] * 2),
}


BATCHES = [
    *((name, ["cpu"], "auto") for name in ("mlp", "conv in training", "lengths")),
    *((name, TWO, 2) for name in ("conv in training", "encoder")),
    ("conv in training", TWO, {"emulated:0": 0.3, "emulated:1": 0.7}),
]
OFTEN = {(0, False), (2, True), (3, True), (4, True)}
"""Of these and of calls with gradients, what runs by default: each model once, one of them in inference."""


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("name", "devices", "split", "grad"),
    [
        pytest.param(
            *BATCHES[number], grad, marks=() if (number, grad) in OFTEN else pytest.mark.release,
            id=f"{BATCHES[number][0]}-{number}-{'training' if grad else 'inference'}",
        )
        for number in range(len(BATCHES))
        for grad in (False, True)
    ],
)  # fmt: skip
def test_two_captures_serve_all_batches(name, devices, split, grad):
    make, inputs = MODELS[name]
    model = make()
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, devices, split=split, check="always")
    with torch.set_grad_enabled(grad):
        for rows in (8, 8, 5, 2):
            args = inputs(rows)
            found, expected = fast(*args), twin(*args)
            equal(found, expected)
            if grad:
                found.sum().backward()
                expected.sum().backward()
                for one, other in zip(model.parameters(), twin.parameters()):
                    torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4)
    assert len(fast._placement.backend.served) <= 2
    fast.close()


@pytest.mark.parametrize("name", [*MODELS, *FIXED])
@torch.no_grad()
def test_every_size_is_eagers(name):
    make, inputs = MODELS[name] if name in MODELS else (lambda: FIXED[name], vectors)
    model = make()
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, TWO, policy="round_robin", split=None)
    for rows in (6, 3, 1, 4) if "training" not in name else (6, 3, 4):
        args = inputs(rows)
        equal(fast(*args), twin(*args))
    fast.close()


@torch.no_grad()
def test_a_new_size_is_placed_as_the_first_was():
    fast = autopar.compile(
        Branches().eval(), TWO, dynamic=True, split=None, pins={"branches.1": "emulated:0"}
    )
    first = {}
    for rows in (40, 9, 2):
        fast(torch.randn(rows, 64))
        device = {placed.cluster: placed.device for placed in fast.plan.placed}
        first = first or {task: device[run.name] for run in fast.plan.costed.clusters for task in run.tasks}
        # Costs decide which tasks form a run; each is where the first of its tasks was.
        assert all(device[run.name] == first[run.tasks[0]] for run in fast.plan.costed.clusters)
    assert len(set(first.values())) > 1
    fast.close()


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_shares_of_the_batch_are_those_asked_for_at_every_size(grad):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    fast = autopar.compile(model, TWO, dynamic=True, split={"emulated:0": 0.3, "emulated:1": 0.7})
    with torch.set_grad_enabled(grad):
        for rows, parts in ((10, "3 + 7"), (20, "6 + 14"), (30, "9 + 21")):
            torch.testing.assert_close(fast(*(x := vectors(rows))), model(*x))
            assert parts in fast.plan.costed.graph.split
    fast.close()


def test_torchs_own_loops_over_steps_are_back_after_a_capture():
    operators = (torch.ops.aten.lstm.input, torch.ops.aten.gru.input)

    def known():
        return [(dict(each.py_kernels), decomposition_table.get(each)) for each in operators]

    before = known()
    model, x = OneOfEach(), torch.randn(5, 2, 6)
    fast = autopar.compile(model, ["cpu"])
    fast(x)
    assert known() == before
    assert len(torch.export.export(model, (x,)).run_decompositions().graph.nodes) > 60
    fast.close()


@torch.no_grad()
def test_weights_and_modes_are_seen_at_every_size():
    model = conv().eval()
    fast = autopar.compile(model, ["cpu"], check="never")
    for rows in (8, 5, 7):
        with torch.no_grad():
            model[0].weight.add_(0.1)
        torch.testing.assert_close(fast(*(x := images(rows))), model(*x))
    model.train()
    twin = copy.deepcopy(model)
    for rows in (8, 5, 7):
        torch.testing.assert_close(fast(*(x := images(rows))), twin(*x))
    for one, other in zip(model.buffers(), twin.buffers()):
        torch.testing.assert_close(one, other)
    fast.close()


def test_graphs_with_equal_notes_are_counted():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.last(x)

    fast = autopar.compile(Broken(), ["cpu"])
    with torch.no_grad():
        for rows in (3, 4, 5, 6):
            fast(torch.randn(rows, 4))
    assert fast.explain().count("more sets of sizes") == 1
    assert "in 2 graphs: calls of 2 more sets of sizes" in fast.explain()
