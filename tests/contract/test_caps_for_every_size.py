"""Memory caps in calls of many sizes, by the bytes that torch allocates in each call."""

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile

import autopar

pytestmark = pytest.mark.slow

WIDTH = 8


class Attention(nn.Module):
    """Scores of rows × length²."""

    def __init__(self):
        super().__init__()
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        query = self.query(x)
        return self.out((query @ x.transpose(-1, -2)).softmax(-1) @ x)


class Triples(nn.Module):
    """A value of rows × length³."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, 4)

    def forward(self, x):
        x = self.out(x)
        pairs = x @ x.transpose(-1, -2)
        return (pairs.unsqueeze(-1) * pairs.unsqueeze(1)).relu().sum((2, 3))


class Rest(nn.Module):
    """A value that is the larger the shorter its input is."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        rows, length, _ = x.shape
        rest = x.new_ones(rows, 80 - length, 80 - length)
        return self.out(x) * rest.exp().sum((1, 2)).view(rows, 1, 1)


class Stretched(nn.Module):
    """A length computed from a float."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return nn.functional.interpolate(self.out(x).transpose(1, 2), scale_factor=3.5).relu()


MODELS = [Attention, Triples, Rest, Stretched]


def made(model):
    torch.manual_seed(0)
    return model().requires_grad_(False)


def inputs(rows, length):
    return torch.randn(rows, length, WIDTH)


def allocated(call):
    """The most bytes that a call has in use at once, what it reads not counted, and its result."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        found = call()
    now = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most, found


def held(model, x):
    """The bytes of a model and its input."""
    return x.nbytes + sum(tensor.nbytes for tensor in model.state_dict().values())


def cap_for(model, rows, length, share):
    """A share of the cap with which a call of these sizes just fits."""
    plan = autopar.plan(model, example_inputs=(inputs(rows, length),), devices=["cpu"], split=None)
    return int(share * plan.peaks["cpu"])


SIZES = st.tuples(st.integers(2, 12), st.integers(2, 72))


# The first serves the second if the square of the largest ratio of one size bounds all growth, or if nothing grows.
@example(sizes=[(2, 32), (4, 64)], at=1, share=0.7)
@example(sizes=[(4, 60), (4, 20)], at=1, share=0.7)
@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
@given(
    sizes=st.lists(SIZES, min_size=3, max_size=5),
    at=st.integers(0, 4),
    share=st.sampled_from([0.5, 1, 1, 1.2, 3]),
)
@pytest.mark.parametrize("kind", MODELS)
def test_calls_keep_the_cap_and_the_prediction(kind, sizes, at, share):
    model = made(kind)
    cap = cap_for(model, *sizes[at % len(sizes)], share)
    torch._dynamo.reset()
    fast = autopar.compile(
        model, ["cpu"], memory={"cpu": cap}, split=None, check="never", measure=False, dynamic=True
    )
    served = {}
    for each in sizes:
        x = inputs(*each)
        try:
            fast(x)
        except autopar.MemoryCapError:
            continue
        # A call that captures or plans has more in use.
        most, found = allocated(lambda x=x: fast(x))
        served[each] = most + held(model, x)
        assert served[each] <= cap, f"{each} takes {served[each]} bytes, the cap is {cap}"
        torch.testing.assert_close(found, model(x))
    for each, nbytes in served.items():
        with fast.record() as recorded:
            fast(inputs(*each))
        assert nbytes <= fast.plan.peaks["cpu"] <= cap
        assert recorded.last.memory[0].peak <= fast.plan.peaks["cpu"]


def test_forward_and_backward_keep_the_cap():
    torch.manual_seed(0)
    model, sizes = Attention(), [(2, 32), (3, 32), (4, 64)]
    cap = cap_for(model, *sizes[-1], 0.7)
    fast = autopar.compile(
        model, ["cpu"], memory={"cpu": cap}, split=None, check="never", measure=False, dynamic=True
    )

    def trained(x, tangent):
        model.zero_grad()
        fast(x).backward(tangent)

    for each in sizes[:2]:
        x, tangent = inputs(*each), inputs(*each)
        trained(x, tangent)
        model.zero_grad()
        most, _ = allocated(lambda x=x, tangent=tangent: trained(x, tangent))
        assert most + held(model, x) + tangent.nbytes <= cap
    with pytest.raises(autopar.MemoryCapError):
        trained(inputs(*sizes[-1]), inputs(*sizes[-1]))
    # The refusal leaves the other sizes as they were.
    trained(x, tangent)


def test_a_step_of_another_size_keeps_the_cap():
    torch.manual_seed(0)
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step_under(memory):
        return autopar.train_step(
            model, nn.functional.mse_loss, optimizer, ["cpu"], memory=memory, split=None, measure=False
        )

    step = step_under(None)
    step.prepare(inputs(4, 64), inputs(4, 64))
    step = step_under({"cpu": int(0.7 * step.plan.peaks["cpu"])})
    for each in [(3, 20), (2, 32), (4, 32)]:
        step(inputs(*each), inputs(*each))
    with pytest.raises(autopar.MemoryCapError):
        step(inputs(4, 64), inputs(4, 64))
