"""What torch says in its own words of a call that no graph can hold, in those of a user: the line, what to change."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn

import autopar
from autopar import system
from autopar.capture.refusals import unannounced


class Changed(nn.Module):
    """A tensor that its backward needs is changed in place; the loss need not read it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.linear(x)
        square = hidden.pow(2)
        hidden.add_(1)
        return hidden.sum(), square.sum()


class Printing(nn.Module):
    """An operator with an effect, which AOTAutograd keeps in order."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        torch._higher_order_ops.print("hidden")
        return hidden.sum()


def test_a_backward_that_fails_is_no_warning_and_its_line_is_in_the_reason() -> None:
    model, x = Changed(), torch.randn(3, 4)
    fast = autopar.compile(model, ["cpu"])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fast(x)[0].backward()
    # Dynamo warns of some releases of Python.
    assert not [each for each in said if "Guards may run slower" not in str(each.message)]
    reason = (
        r"needs is changed in place \(`square = hidden\.pow\(2\)` at .*test_refusals\.py:\d+: .*\); change a"
    )
    assert re.search(reason, " ".join(fast.explain().split()))


def test_other_warnings_of_a_capture_that_fails_are_shown() -> None:
    with warnings.catch_warnings(record=True) as said, pytest.raises(ValueError), unannounced():
        warnings.simplefilter("always")
        warnings.warn("another", DeprecationWarning, stacklevel=1)
        raise ValueError
    assert [(str(each.message), each.category) for each in said] == [("another", DeprecationWarning)]


class Assigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear.weight.data = self.linear.weight.data.clamp(-1, 1)
        return self.linear(x).sum()


def test_an_assignment_of_data_within_forward_is_named_with_its_line() -> None:
    model, x = Assigned(), torch.randn(3, 4)
    step = autopar.train_step(
        model, None, torch.optim.SGD(model.parameters()), ["cpu"], step_fn=lambda model, x: model(x)
    )
    line = r"assigns \.data at .*test_refusals\.py:\d+: `self\.linear\.weight\.data = .*`.*assign it before the call"
    with pytest.raises(autopar.CaptureError, match=line):
        step(x)


class Twice(Assigned):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x).expand(3, 4)
        torch._dynamo.graph_break()
        return super().forward(x)


def test_a_reason_that_several_graphs_have_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    fast = autopar.compile(Twice(), ["cpu"])
    fast(torch.randn(3, 4))
    assert caplog.text.count("assigns .data") == 1
    assert fast.explain().count("assigns .data") == 1


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear = self.linear.to(torch.float32)
        return self.linear(x)


@pytest.mark.skipif(
    system.release(torch.__version__) >= (2, 14),
    reason="torch traces another kind of assignment, and it runs as written",
)
def test_an_assignment_of_data_that_changes_nothing_is_placed() -> None:
    model, x = Cast(), torch.randn(3, 4)
    fast = autopar.compile(model, ["cpu"])
    assert torch.equal(fast(x), model(x))
    assert "as written" not in fast.explain()


def test_effects_are_named_with_their_line() -> None:
    fast, x = autopar.compile(Printing(), ["cpu"]), torch.randn(3, 4)
    fast(x)
    reason = r'print at .*test_refusals\.py:\d+: `torch\._higher_order_ops\.print\("hidden"\)` has effects'
    assert re.search(reason, " ".join(fast.explain().split()))
