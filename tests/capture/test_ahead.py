"""`autopar.plan`: a call is captured whole by torch.compile, and nothing of it happens."""

import re

import pytest
import torch
from torch import nn

import autopar

ABSENT = autopar.Machine.declare("cpu-16", "h100-sxm", "h100-sxm")


class Counting(nn.Module):
    """A forward that leaves traces everywhere it can."""

    def __init__(self, then=lambda h: h):
        super().__init__()
        self.layer, self.norm, self.then = nn.Linear(4, 4), nn.BatchNorm1d(4), then
        self.count, self.seen = 0, []

    def forward(self, x, scale=1.0):
        self.count += 1
        self.seen.append(scale)
        self.last = x
        x.add_(1)
        return self.then(self.norm(self.layer(x))) * scale


@pytest.mark.slow
@pytest.mark.parametrize("trains", [False, True])
def test_nothing_of_the_call_happens(trains):
    model, x = Counting(), torch.zeros(8, 4)
    before, drawn = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    with torch.set_grad_enabled(trains):
        plan = autopar.plan(model, ABSENT, example_inputs=(x,), example_kwargs={"scale": 2.0})
    assert {task.phase for task in plan.costed.graph.tasks} == {"forward"} | (
        {"backward"} if trains else set()
    )
    assert not model.count and not model.seen and not hasattr(model, "last") and not x.any()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)


def branching(h):
    return h + 1 if h.sum() > 0 else h


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "line", "why"),
    [
        (branching, r"`return h \+ 1 if h.sum\(\) > 0 else h`", "torch.where or torch.cond.*autopar.compile"),
        (lambda h: h @ torch.ones(3, 3), "torch.ones", "fails on these arguments at .*not run"),
        (lambda h: h * {"a": 1}["b"], r'\{"a": 1\}\["b"\]', "fails on these arguments at .*KeyError.*not run"),
        (lambda h: h.nonzero(), r"h\.nonzero\(\)", "depends on the values in a tensor"),
        (lambda h: torch._dynamo.graph_break() or h, r"graph_break\(\)", "one graph.*autopar.compile"),
    ],
    ids=["branch", "shapes", "error", "sizes", "break"],
)  # fmt: skip
def test_calls_that_are_not_one_graph_are_refused_with_the_line(then, line, why):
    model = Counting(then)
    with pytest.raises(autopar.CaptureError, match=why) as caught:
        autopar.plan(model, ABSENT, example_inputs=(torch.zeros(8, 4),))
    assert not line or ("test_ahead.py" in str(caught.value) and re.search(line, str(caught.value)))
    assert not model.count


def test_a_backward_that_no_plan_can_hold_is_refused():
    model = nn.Embedding(4, 4, sparse=True)
    with pytest.raises(autopar.CaptureError, match="weight is sparse"):
        autopar.plan(model, ABSENT, example_inputs=(torch.tensor([1]),))
    with torch.no_grad():
        assert autopar.plan(model, ABSENT, example_inputs=(torch.tensor([1]),)).makespan > 0


def test_arguments_that_are_missing_are_named():
    with pytest.raises(autopar.CaptureError, match=r"Counting fails on these arguments.* x"):
        autopar.plan(Counting(), ABSENT)


def test_a_call_without_tensors_is_no_graph():
    with pytest.raises(autopar.CaptureError, match="nothing to plan"):
        autopar.plan(lambda x: 3, ABSENT, example_inputs=(torch.ones(2),))


def test_a_compiled_model_is_planned_as_the_plain_one():
    model, x = nn.Linear(4, 4), torch.ones(8, 4)
    fast = autopar.compile(model, ["cpu"])
    plans = [autopar.plan(m, ABSENT, example_inputs=(x,)) for m in (model, fast)]
    assert plans[0].costed.graph == plans[1].costed.graph
