"""A model after a capture: every attribute, and the items of its lists, dicts and sets, are as before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from autopar.capture import capture
from autopar.capture.untouched import Attributes


class Keeper(nn.Module):
    """Notes each call in attributes of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.names = 0, ["a", "b"]
        self.table, self.met = {"x": 1, "y": 2}, {1, 2}
        self.gone: object = "here"
        self.inner = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.note()
        return x + 1

    def note(self) -> None:
        """Change everything."""
        self.count += 1
        self.names.append("c")
        self.table["x"] = 3
        self.table["z"] = 4
        self.met.add(3)
        self.met.discard(1)
        self.fresh = [1]
        self.inner.flag = True
        del self.gone


KEPT = ("count", "names", "table", "met", "gone")


def contents(model: Keeper) -> dict[str, object]:
    return {key: copy.copy(getattr(model, key)) for key in KEPT}


def test_every_kind_of_attribute_is_put_back_and_told():
    model = Keeper()
    before, same = contents(model), {key: getattr(model, key) for key in KEPT}
    attributes = Attributes(model)
    model.note()
    changed = attributes.put_back()
    assert contents(model) == before
    assert all(getattr(model, key) is item for key, item in same.items()), "the very objects"
    assert not hasattr(model, "fresh") and not hasattr(model.inner, "flag")
    assert changed.keys() == {*KEPT, "fresh", "inner.flag"}
    assert changed["met"] == {2, 3} and changed["table"] == {"x": 3, "y": 2, "z": 4}
    assert list(model.table) == ["x", "y"] and attributes.put_back() == {}


@pytest.mark.parametrize("key", ["names", "table", "met"])
def test_a_capture_leaves_what_containers_hold(key):
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.names, self.table, self.met = ["a"], {"a": 1}, {"a"}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            item = getattr(self, key)
            {"names": list.append, "table": lambda t, k: t.update({k: 2}), "met": set.add}[key](item, "b")
            return x * 2

    model = One()
    before = copy.copy(getattr(model, key))
    with torch.no_grad():
        capture(model, (torch.ones(2),))
    assert getattr(model, key) == before
