"""One plan, agreed: what differs on a rank is refused on every rank, in a sentence that names it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.ranks import ranks
from torch import nn

from autopar.distributed.agreement import described
from autopar.training.messages import difference, named

pytestmark = pytest.mark.slow


def plan():
    from autopar.ir.distribution import Distribution, Stage
    from autopar.ir.hosts import Hosts

    hosts = Hosts.declare("2 x (cpu) over ethernet-10")
    stages = (Stage(0, 1, 1e-3, 2e-3, 4096, 8192, 1 << 20), Stage(1, 3, 1e-3, 2e-3, 0, 8192, 1 << 20))
    names = (tuple(hosts.host)[:2],)
    return Distribution(
        "net", ("a", "b", "c"), hosts, stages, names, 4, "1f1b", 16, 0.02, 0.01, (1 << 22, 1 << 22)
    )


def net(width: int = 4, p: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(p), nn.Linear(width, 2))


def outcome(function, *args) -> tuple[str, str]:
    """The name and the text of what a function raises; "" and its digest where it does not."""
    try:
        return "", function(*args).digest
    except Exception as error:
        return type(error).__name__, str(error)


def _freeze(model: nn.Module) -> nn.Module:
    model[3].bias.requires_grad_(False)
    return model


class Other(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + 1


class Addressed(nn.Linear):
    def extra_repr(self):
        return f"init={object()!r}"


def test_addresses_of_objects_are_no_difference():
    kept = Addressed(2, 2)
    assert (
        described(kept) == described(Addressed(2, 2))
        and "init=<object object>" in described(kept)["the model"]
    )


MODELS = {
    "width": lambda: net(width=5), "option": lambda: net(p=0.5), "mode": lambda: net().eval(),
    "code": lambda: Other(*net()), "frozen": lambda: _freeze(net()),
}  # fmt: skip


def _change(what: str) -> None:
    from autopar.distributed import agreement
    from autopar.training import messages

    if what == "torch":
        torch.__version__ = "2.9.1"
    elif what == "autopar":
        messages.VERSION = "0.0.7"
    elif what == "dtype":
        torch.set_default_dtype(torch.float64)
    elif what == "plan":
        real = agreement.decode
        agreement.decode = lambda *args: dataclasses.replace(real(*args), step_s=1.0)


def _agreed(rank: int, odd: int, change: str) -> tuple[str, str]:
    from autopar.distributed import agreement

    model = MODELS.get(change, net)() if rank == odd else net()
    if rank == odd:
        _change(change)

    def describe():
        if rank == odd and change == "raises":
            raise OSError("no such file: weights")
        return agreement.described(model)

    def make():
        if rank != 0:
            raise AssertionError("only rank 0 plans")
        if change == "full":
            from autopar import MemoryCapError

            raise MemoryCapError("nothing fits", "give more")
        if change == "own":
            raise type("MineError", (Exception,), {})("what I say")
        if change == "value":
            raise ValueError("no such schedule")
        if change == "no plan":
            return dataclasses.replace(plan(), micro_batches=0)
        return plan()

    return outcome(agreement.agreed, make, describe, None)


def test_all_ranks_have_the_plan_of_rank_0():
    assert ranks(2, _agreed, -1, "") == [("", plan().digest)] * 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("width", r"rank 2 has 0\.weight of 5 × 3 float32, trained, ranks 0 and 1 have 4 × 3 float32"),
        ("option", r"rank 2 has module 2 torch\.nn\..*Dropout\(p=0\.5.*ranks 0 and 1 have .*p=0\.1"),
        ("mode", r"rank 2 has .* in evaluation .*ranks 0 and 1 have .* in training"),
        ("code", r"rank 2 has the model .*Other"),
        ("frozen", r"rank 2 has 3\.bias 2 float32, ranks 0 and 1 have 2 float32, trained"),
        ("torch", r"rank 2 has torch 2\.9\.1, ranks 0 and 1 have 2\."),
        ("autopar", r"rank 2 has autopar 0\.0\.7, ranks 0 and 1 have \d"),
        ("dtype", r"rank 2 has the default dtype float64, ranks 0 and 1 have float32"),
        ("plan", r"rank 2 has a plan with the digest \w+, ranks 0 and 1 have \w+"),
        ("raises", r"no such file: weights"),
    ],
)
def test_a_rank_that_differs_is_refused_on_every_rank(change, says):
    import re

    found = ranks(3, _agreed, 2, change)
    for rank, (error, text) in enumerate(found):
        assert error == ("OSError" if change == "raises" and rank == 2 else "PlanError")
        assert re.search(says, text), text
        assert "start every rank with the same" in text or change == "raises"


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ("full", "MemoryCapError", "nothing fits; give more"),
        ("value", "ValueError", "no such schedule"),
        ("own", "PlanError", "MineError: what I say"),
        ("no plan", "PlanError", "cannot be 0 equal micro-batches"),
    ],
)
def test_what_rank_0_cannot_plan_every_rank_raises(change, error, says):
    first, second = ranks(2, _agreed, -1, change)
    assert second[0] == error and says in second[1]
    assert first[0] == ("MineError" if change == "own" else error) and first[1] in second[1]


def test_one_process_agrees_with_itself():
    from autopar.distributed.agreement import agreed

    assert agreed(plan, net()).digest == plan().digest


def test_differences_are_said_shortly():
    equal = {"torch": "2.13.0", "a": "4 × 4 float32", "b": "4 float32"}
    facts = [
        equal,
        {**equal, "a": "4 × 8 float32", "b": "8 float32"},
        equal,
        {"torch": "2.13.0", "b": "4 float32"},
    ]
    said = difference(facts)
    assert said.startswith("rank 1 has a of 4 × 8 float32, rank 3 has none, ranks 0 and 2 have 4 × 4 float32")
    assert "1 more differ, b" in said


def test_ties_are_told():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    apart = described(model)
    model[1].weight = model[0].weight
    assert described(model) != apart and "tied to 0.weight" in described(model)["1.weight"]
    assert described(net()) == described(net())


def test_code_is_told_by_what_it_does_and_not_by_where_it_is():
    def described_forward(text: str) -> dict[str, str]:
        found: dict = {}
        exec(text, found)
        return described(type("Net", (nn.Module,), {"__module__": "net", "forward": found["forward"]})())

    plain = described_forward("def forward(self, x): return x + 1 if x in {'a', 'b', 'c'} else None")
    assert (
        described_forward("\n\ndef forward(self, x): return x + 1 if x in {'a', 'b', 'c'} else None") == plain
    )
    assert described_forward("def forward(self, x): return x + 2 if x in {'a', 'b', 'c'} else None") != plain
    assert described_forward("def forward(self, x): return x + 1 if x in {'a', 'b', 'd'} else None") != plain


def test_ranks_in_words():
    assert named([3]) == "rank 3"
    assert named([2, 0, 1]) == "ranks 0 to 2"
    assert named([0, 1, 4, 6, 7, 8]) == "ranks 0, 1, 4 and 6 to 8"
