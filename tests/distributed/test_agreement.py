"""One plan, agreed: what differs on a rank is refused on every rank, in a sentence that names it."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from helpers.ranks import ranks
from torch import nn

import autopar
from autopar.distributed.agreement import described
from autopar.training.messages import difference

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


def _change(what: str, patch: pytest.MonkeyPatch) -> None:
    from autopar.training import messages

    if what == "torch":
        patch.setattr(torch, "__version__", "2.9.1")
    elif what == "autopar":
        patch.setattr(messages, "VERSION", "0.0.7")
    elif what == "dtype":
        torch.set_default_dtype(torch.float64)


def _raising(error: Exception):
    raise error


MADE = {
    "full": lambda: _raising(autopar.MemoryCapError("nothing fits", "give more")),
    "own": lambda: _raising(type("MineError", (Exception,), {})("what I say")),
    "value": lambda: _raising(ValueError("no such schedule")),
    "no plan": lambda: dataclasses.replace(plan(), micro_batches=0),
}


def _agreed(rank: int, odd: int, changes: list[str]) -> list[tuple[str, Any]]:
    """Class and text of the error that a rank raises for each change of rank `odd`, or of the plan of rank 0."""
    from autopar.distributed import agreement

    def outcome(change: str) -> tuple[str, Any]:
        model = MODELS.get(change, net)() if rank == odd else net()

        def describe():
            if rank == odd and change == "raises":
                raise OSError("no such file: weights")
            return agreement.described(model)

        def make():
            return MADE.get(change, plan)() if rank == 0 else _raising(AssertionError("only rank 0 plans"))

        with pytest.MonkeyPatch.context() as patch:
            if rank == odd:
                _change(change, patch)
            try:
                return "", agreement.agreed(make, describe, None)
            except Exception as error:
                return type(error).__name__, str(error)
            finally:
                torch.set_default_dtype(torch.float32)

    return [outcome(change) for change in changes]


DIFFERING = {
    "width": r"rank 2 has 0\.weight of 5 × 3 float32, trained, ranks 0 and 1 have 4 × 3 float32",
    "option": r"rank 2 has module 2 torch\.nn\..*Dropout\(p=0\.5.*ranks 0 and 1 have .*p=0\.1",
    "mode": r"rank 2 has .* in evaluation .*ranks 0 and 1 have .* in training",
    "code": r"rank 2 has the model .*Other",
    "frozen": r"rank 2 has 3\.bias 2 float32, ranks 0 and 1 have 2 float32, trained",
    "torch": r"rank 2 has torch 2\.9\.1, ranks 0 and 1 have 2\.",
    "autopar": r"rank 2 has autopar 0\.0\.7, ranks 0 and 1 have \d",
    "dtype": r"rank 2 has the default dtype float64, ranks 0 and 1 have float32",
    "raises": r"no such file: weights",
}


def test_a_rank_that_differs_is_refused_on_every_rank():
    for rank, found in enumerate(ranks(3, _agreed, 2, [*DIFFERING])):
        for (change, says), (error, text) in zip(DIFFERING.items(), found, strict=True):
            assert error == ("OSError" if change == "raises" and rank == 2 else "PlanError")
            assert re.search(says, text), text
            assert "start every rank with the same" in text or change == "raises"


def test_all_ranks_have_the_plan_of_rank_0_or_raise_its_error():
    expected = {
        "full": ("MemoryCapError", "nothing fits; give more"),
        "value": ("ValueError", "no such schedule"), "own": ("PlanError", "MineError: what I say"),
        "no plan": ("PlanError", "cannot be 0 equal micro-batches"),
    }  # fmt: skip
    first, second = ranks(2, _agreed, -1, ["", *expected])
    assert first[0] == second[0] == ("", plan())
    for one, other, (change, (error, says)) in zip(first[1:], second[1:], expected.items(), strict=True):
        assert other[0] == error and says in other[1]
        assert one[0] == ("MineError" if change == "own" else error) and one[1] in other[1]


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


def test_tied_weights_are_part_of_the_description():
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
