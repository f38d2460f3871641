"""What is noted of a guarded value tells each change of it, and no value is noted that may change without."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autopar.capture.guarded import noting
from autopar.system import cpython, memory

pytestmark = pytest.mark.skipif(not cpython.versioned(), reason="dicts have no versions in this Python")


class Base(nn.Module):
    size = (1, 2)

    def told(self, by: int = 3) -> int:
        return by


class Held(Base):
    @property
    def asked(self) -> int:
        return 1


class Renamed:
    """Looks up another name."""

    def __init__(self) -> None:
        self.own = 1

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


class Answering(nn.Module):
    def __getattr__(self, name: str) -> Any:
        return 1


def a_closure(held: Any) -> Callable[[], Any]:
    def closed() -> Any:
        return held

    return closed


def refilled(function: Any) -> None:
    """Change what a function has closed over."""
    function.__closure__[0].cell_contents = 5


class World:
    """A module of a class of its own, and the globals that a guard may name."""

    def __init__(self) -> None:
        self.base = type("OwnBase", (Base,), {"told": lambda self, by=3: by, "scale": 1.0})
        self.kind = type("Own", (self.base, Held), {})
        self.module: Any = self.kind()
        self.module.inner, self.module.flag, self.module.items = nn.Linear(2, 2), True, [1]
        self.module.ordered, self.module.other = collections.OrderedDict(a=1), Renamed()
        self.module.answering, self.module.proxy = Answering(), types.MappingProxyType({"a": 1})
        self.outside: Any = types.ModuleType("outside")
        self.outside.function, self.outside.constant = a_closure(2), 7
        self.outside.table = {"a": (1, 2), "b": None}
        self.scope: dict[str, Any] = {"outside": self.outside}


_INNER = "L['function']._modules['inner']"
TOLD: dict[str, tuple[str, list[str], Callable[[World], Any]]] = {
    "an attribute": ("L['function'].flag", ["TRUE_MATCH"], lambda w: setattr(w.module, "flag", False)),
    "a class": ("L['function']", ["TYPE_MATCH"], lambda w: setattr(w.module, "__class__", Held)),
    "a class by its attribute": (
        "L['function'].__class__", ["ID_MATCH"], lambda w: setattr(w.module, "__class__", Held)),
    "keys": ("L['function'].__dict__", ["DICT_CONTAINS"], lambda w: setattr(w.module, "new", 1)),
    "a module": (_INNER, ["TYPE_MATCH"], lambda w: setattr(w.module, "inner", nn.ReLU())),
    "an attribute inside": (
        f"{_INNER}.in_features", ["EQUALS_MATCH"], lambda w: setattr(w.module.inner, "in_features", 5)),
    "an attribute of its class": ("L['function'].size", ["LENGTH_CHECK"], lambda w: setattr(w.kind, "size", ())),
    "an attribute of a base": ("L['function'].scale", ["EQUALS_MATCH"], lambda w: setattr(w.base, "scale", 2.0)),
    "an attribute in front of that of its class": (
        "L['function'].size", ["LENGTH_CHECK"], lambda w: setattr(w.module, "size", ())),
    "a property in front of an attribute": (
        "L['function'].flag", ["TRUE_MATCH"], lambda w: setattr(w.kind, "flag", property(lambda self: False))),
    "the code of a method": (
        "L['function'].told.__code__", ["ID_MATCH"],
        lambda w: setattr(w.base.told, "__code__", (lambda self, by=3: 4).__code__)),
    "the default of a method": (
        "L['function'].told.__defaults__", ["LENGTH_CHECK"], lambda w: setattr(w.base.told, "__defaults__", ())),
    "a method": ("L['function'].told.__code__", ["ID_MATCH"], lambda w: setattr(w.kind, "told", lambda self: 0)),
    "members of a class": (
        "dict(type(L['function']).__mro__[1].__dict__)['told']", ["ID_MATCH"], lambda w: delattr(w.base, "told")),
    "the function of a property": (
        "dict(type(L['function']).__mro__[2].__dict__)['asked'].fget.__code__", ["ID_MATCH"],
        lambda w: setattr(vars(Held)["asked"].fget, "__code__", (lambda self: 1).__code__)),
    "what a function has closed over": (
        "G['outside'].function.__closure__[0].cell_contents", ["EQUALS_MATCH"],
        lambda w: refilled(w.outside.function)),
    "a constant outside": ("G['outside'].constant", ["EQUALS_MATCH"], lambda w: setattr(w.outside, "constant", 8)),
    "a module outside": ("G['outside']", ["ID_MATCH"], lambda w: w.scope.update(outside=None)),
    "an item of a table": ("G['outside'].table['a'][1]", ["EQUALS_MATCH"], lambda w: w.outside.table.update(a=(1, 3))),
    "a key of a table": (
        "list(dict.keys(G['outside'].table))[1]", ["EQUALS_MATCH"], lambda w: w.outside.table.pop("a")),
    "a value by its key": (
        "dict.__getitem__(G['outside'].table, list(dict.keys(G['outside'].table))[1])", ["NONE_MATCH"],
        lambda w: w.outside.table.update(b=1)),
    "an attribute that is missing": ("L['function']", ["NO_HASATTR"], lambda w: setattr(w.module, "missing", 1)),
    "a module that is missing": (
        "L['function']", ["NO_HASATTR"], lambda w: w.module.add_module("missing", nn.ReLU())),
    "an attribute that is missing in a class": (
        "L['function']", ["NO_HASATTR"], lambda w: setattr(w.base, "missing", 1)),
}  # fmt: skip


@pytest.mark.parametrize("change", TOLD, ids=lambda name: name.replace(" ", "-"))
def test_a_change_of_a_guarded_value_is_told(change: str) -> None:
    world = World()
    source, guards, make = TOLD[change]
    steady, noted = noting(world.module, world.scope)
    assert steady(source, guards, ["missing"])
    unchanged = noted.unchanged()
    assert unchanged is not None and unchanged()
    make(world)
    assert not unchanged()


UNTOLD = {
    "an argument": ("L['args'][0]", "TYPE_MATCH"),
    "an item of a list": ("L['function'].items[0]", "EQUALS_MATCH"),
    "the length of a list": ("L['function'].items", "LENGTH_CHECK"),
    "an item of a subclass of dict": ("L['function'].ordered['a']", "EQUALS_MATCH"),
    "an item of a view of a dict": ("L['function'].proxy['a']", "EQUALS_MATCH"),
    "an object that looks up in its own way": ("L['function'].other.own", "EQUALS_MATCH"),
    "an object that answers for all names": ("L['function']._modules['answering']", "NO_HASATTR"),
    "a property": ("L['function'].asked", "EQUALS_MATCH"),
    "a method, which is made by each look-up": ("L['function'].told", "ID_MATCH"),
    "a guard of another kind": ("L['function'].flag", "LAMBDA_GUARD"),
    "what is not there": ("L['function'].nothing", "EQUALS_MATCH"),
    "another expression": ("len(L['function'].items)", "EQUALS_MATCH"),
}


@pytest.mark.parametrize("value", UNTOLD, ids=lambda name: name.replace(" ", "-"))
def test_a_value_that_may_change_unseen_is_left_to_dynamo(value: str) -> None:
    world = World()
    source, guard = UNTOLD[value]
    assert not noting(world.module, world.scope)[0](source, [guard], ["missing"])


def test_an_attribute_whose_absence_has_no_name_is_left_to_dynamo() -> None:
    world = World()
    steady, _ = noting(world.module, world.scope)
    assert not steady("L['function']", ["NO_HASATTR"], [])
    assert not steady("L['function']", ["NO_HASATTR"], ["asked"]), "a property that fails is missing, too"


@pytest.mark.parametrize("source", ["__defaults__", "__closure__[0].cell_contents"])
def test_what_replaces_a_replaced_value_does_not_take_its_place(source: str) -> None:
    held = [1.5]

    def told(by: float = held[0]) -> float:
        return by * scale

    scale = held[0] + 1
    steady, noted = noting(None, {"told": told})
    assert steady(f"G['told'].{source}", ["EQUALS_MATCH"], [])
    unchanged = noted.unchanged()
    assert unchanged is not None and unchanged()
    # The first value is gone, and the next gets its memory.
    for value in range(20):
        told.__defaults__ = (value + 0.5,)
        scale *= 0.5
        assert not unchanged()


def test_a_change_while_values_are_noted_is_seen() -> None:
    inner = {"x": 1}
    scope = {"table": {"a": inner}}
    steady, noted = noting(None, scope)
    assert steady("G['table']['a']['x']", ["EQUALS_MATCH"], [])
    scope["table"]["a"] = {"x": 1}
    assert noted.unchanged() is None


class Disguised:
    """An object that is of another class by its own account."""

    own = 1

    @property
    def __class__(self) -> Any:
        return types.FunctionType


def test_the_word_of_an_object_about_its_class_is_not_taken() -> None:
    steady, _ = noting(None, {"disguised": Disguised()})
    assert not steady("G['disguised'].__code__", ["ID_MATCH"], [])
    assert steady("G['disguised'].own", ["EQUALS_MATCH"], [])


def test_an_error_of_a_look_up_is_not_the_callers() -> None:
    class Raises:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    assert not noting(None, {"raises": Raises()})[0]("G['raises'].own", ["TYPE_MATCH"], [])


def test_a_class_that_is_looked_up_after_a_change_is_told_apart() -> None:
    world = World()
    steady, noted = noting(world.module, world.scope)
    assert steady("L['function'].scale", ["EQUALS_MATCH"], [])
    unchanged = noted.unchanged()
    world.base.scale = 2.0
    assert unchanged is not None and world.module.scale == 2.0 and world.kind.scale == 2.0 and not unchanged()


@pytest.mark.parametrize("many", [3, 3000])
def test_a_change_of_any_of_many_places_is_seen(many: int) -> None:
    found = torch.zeros(many, dtype=torch.int16)
    places = [(found.data_ptr() + 2 * at, 2) for at in range(0, many, 2)]
    same = memory.constant(places[:2], places[2:] or places[:1], owners=found)
    for at in (0, 2, many // 4 * 2, (many - 1) // 2 * 2):
        found[at] = 1
        assert not same()
        found[at] = 0
        found[1::2] += 1
        assert same()
