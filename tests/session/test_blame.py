"""Errors of what the user wrote say whose it is: the model's, the criterion's, a number kept, a cache, a BatchNorm."""

import pytest
import torch
from machines import machine
from torch import nn

import autopar
from autopar.errors import CaptureError, PlanError, RunError


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def stepping(net, criterion, **options):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return autopar.train_step(net, criterion, optimizer, machine(), **options)


def data(rows=8):
    return torch.randn(rows, 6), torch.randint(0, 3, (rows,))


def mismatched(outputs, targets):
    return (outputs @ targets).sum()


def undecided(outputs, targets):
    return outputs.sum() if outputs.sum() > 0 else -outputs.sum()


class Lacking(nn.Module):
    def forward(self, outputs, targets):
        return outputs.nothing(targets)


def narrow(net, x, y):
    return net(x[:, :5]).sum()


def wrong(net, x, y):
    return net(x) @ y


HERE = "test_blame.py:"


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({"criterion": mismatched}, None, ("the criterion mismatched of Sequential", "outputs @ targets", HERE)),
        ({"criterion": Lacking()}, None, ("the criterion Lacking of Sequential", "outputs.nothing(targets)", HERE)),
        ({"criterion": undecided}, None,
         ("the criterion undecided of Sequential", "return outputs.sum() if outputs.sum() > 0", HERE)),
        ({"criterion": nn.CrossEntropyLoss()}, lambda x, y: (x, y.float()),
         ("the criterion CrossEntropyLoss of Sequential itself raises on these",)),
        ({"criterion": nn.CrossEntropyLoss()}, lambda x, y: (x[:, :5], y), ("Sequential itself raises",)),
        ({"criterion": None, "step_fn": narrow}, None,
         ("the step_fn narrow of Sequential itself raises", "net(x[:, :5])", HERE)),
        ({"criterion": None, "step_fn": wrong}, None,
         ("the step_fn wrong of Sequential itself raises", "net(x) @ y", HERE)),
    ],
    ids=["criterion", "criterion module", "criterion that branches", "criterion of torch", "model", "step_fn, model",
         "step_fn"],
)  # fmt: skip
def test_an_error_says_whose_it_is(options, change, words):
    step, given = stepping(model(), **options), data()
    with pytest.raises(CaptureError) as caught:
        step(*(change(*given) if change else given))
    text = str(caught.value)
    assert text.startswith(words[0]) and all(word in text for word in words)


@pytest.mark.slow
def test_a_criterion_that_fails_in_a_later_run_is_named():
    step, (x, y) = stepping(model(), nn.CrossEntropyLoss()), data()
    step(x, y)
    step(x, y)
    with pytest.raises(RunError, match=r" in criterion"):
        step(x, y + 7)


class Notes(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.layer, self.number = nn.Linear(6, 3), number

    def forward(self, x):
        h = self.layer(x)
        self.last = h.sum().item() if self.number else h
        return h


def test_a_number_that_depends_on_values_is_refused_with_its_line():
    with pytest.raises(CaptureError) as caught:
        stepping(Notes(True), nn.CrossEntropyLoss())(*data())
    text = str(caught.value)
    assert text.startswith("Notes") and "depends on the values in a tensor" in text
    assert "self.last = h.sum().item()" in text
    assert "test_blame.py:" in text


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.layer(x))


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "parts"), [(3, 2), (3, 3)])
def test_one_value_per_channel_in_a_part_is_refused_as_torch_does(rows, parts):
    step = stepping(Normed(), nn.CrossEntropyLoss(), split=parts, batch_norm="per_part")
    expected = r" in norm at .*Expected more than 1 value per channel when training.*batch_norm=\"full\""
    with pytest.raises(PlanError, match=expected):
        step(*data(rows))


@pytest.mark.slow
def test_auto_passes_over_parts_that_torch_refuses():
    step = stepping(Normed(), nn.CrossEntropyLoss(), batch_norm="per_part")
    assert step(*data(3)).isfinite()
    notes = [candidate.note for candidate in step.plan.candidates]
    assert any("Expected more than 1 value" in note for note in notes)


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(10, 4))

    def forward(self, ids):
        return self.rows[ids]


@pytest.mark.slow
@pytest.mark.parametrize("grad", [False, True])
def test_no_generated_code_is_printed_when_a_call_fails(grad, capfd):
    """What a user sees is the error of the operator, not that of a graph he has not written."""
    net = nn.Sequential(Table(), nn.Linear(4, 4))
    fast = autopar.compile(net, ["cpu"])
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            with pytest.raises(CaptureError, match=r"itself raises .*IndexError: index 12 is") as caught:
                fast(torch.tensor([1, 12]))
            assert isinstance(caught.value.__cause__, IndexError)
    with pytest.raises(CaptureError):
        stepping(net, nn.CrossEntropyLoss())(torch.tensor([1, 12]), torch.tensor([0, 1]))
    assert "generated" not in capfd.readouterr().err
