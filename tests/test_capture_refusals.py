"""What capture refuses it names, with the line and what to change; what it cannot trace it keeps whole."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autopar.capture import capture
from autopar.capture.signature import take_apart
from autopar.errors import CaptureError, RunError

linear = nn.Linear(4, 4)
loose = torch.ones(4, requires_grad=True)
constant = torch.ones(4)


class Box:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def refusal(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(CaptureError) as caught:
        capture(function, args, kwargs)
    return str(caught.value)


def test_parameters_of_a_global_module_are_state() -> None:
    captured = capture(lambda x: linear(x) + constant, (torch.randn(2, 4),))
    owners = {key: owner for owner, key in captured.state.values()}
    assert owners["weight"] is linear._parameters and owners["bias"] is linear._parameters


def test_modules_in_closures_arguments_and_methods_are_state() -> None:
    inner = nn.Linear(4, 4)

    class Runner:
        def __init__(self) -> None:
            self.net = nn.Linear(4, 4)

        def run(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    def helper(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    runner, given = Runner(), nn.Linear(4, 4)
    x = torch.randn(2, 4)
    for function, args, module in (
        (lambda x: helper(x), (x,), inner),
        (runner.run, (x,), runner.net),
        (lambda m, x: m(x), (given, x), given),
        (lambda x: [layer(x) for layer in (inner, given)][1], (x,), given),
    ):
        captured = capture(function, args)
        assert any(owner[key] is module.weight for owner, key in captured.state.values())


def test_a_tensor_that_requires_grad_is_never_frozen() -> None:
    message = refusal(lambda x: x * loose, torch.randn(2, 4))
    assert "'loose' requires grad" in message and "nn.Parameter" in message


def test_unregistered_containers_are_named_with_the_line_that_registers_them() -> None:
    for message in (
        refusal(lambda box: box.tensor * 2, Box(torch.ones(2))),
        refusal(lambda x: {"out": Box(x * 2)}, torch.ones(2)),
    ):
        assert "Box" in message and "torch.utils._pytree.register_pytree_node(Box" in message


def test_what_it_tells_to_register_works() -> None:
    class Pair:
        def __init__(self, left: torch.Tensor, right: torch.Tensor) -> None:
            self.first, self.second = left, right

    message = refusal(lambda x: Pair(x, x * 2), torch.ones(2))
    exec(message[message.index("torch.utils._pytree.register") :], {"torch": torch, "Pair": Pair})
    captured = capture(lambda x: Pair(x, x * 2), (torch.ones(2),))
    pair = captured.rebuild([torch.ones(2), torch.zeros(2)])
    assert type(pair) is Pair and bool((pair.first == 1).all()) and bool((pair.second == 0).all())


def test_a_model_that_fails_by_itself_says_so() -> None:
    message = refusal(nn.Linear(4, 4), torch.randn(2, 5))
    assert "without autopar too" in message and "(2x5 and 4x4)" in message


def test_state_of_inference_mode() -> None:
    with torch.inference_mode():
        model = nn.Linear(4, 4)
    assert "torch.inference_mode" in refusal(model, torch.randn(2, 4))


def test_unhashable_arguments() -> None:
    with pytest.raises(CaptureError, match="neither a tensor nor hashable"):
        take_apart((bytearray(b"x"),), {}).key  # noqa: B018


def test_the_reason_names_the_line_and_the_way_out(caplog: pytest.LogCaptureFixture) -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x

    captured = capture(branch, (torch.ones(2),))
    assert captured.how == "opaque" and len(captured.graph.tasks) == 1
    (note,) = captured.notes
    assert "test_capture_refusals.py:" in note and "if x.sum() > 0:" in note and "torch.where" in note
    assert note in caplog.text


def test_what_is_of_unknown_size_leaves_no_island() -> None:
    class Positive(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0]

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positive = Positive()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.positive(x).sum()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = Inside()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inside(x) * 2

    assert capture(Inside(), (torch.ones(4),)).how == "opaque"
    captured = capture(Model(), (torch.ones(4),))
    assert captured.how == "export" and [task.home for task in captured.graph.tasks] == [True, False]
    assert captured.graph.tasks[0].module == "inside"


def test_an_island_that_changes_shape_is_refused_when_it_runs() -> None:
    class Positive(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else x[:2]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positive = Positive()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.positive(x) * 2

    captured = capture(Model(), (torch.ones(4),))
    (island,) = captured.calls.values()
    assert [task.home for task in captured.graph.tasks] == [True, False]
    assert torch.equal(island(torch.ones(4))[0], torch.ones(4))
    with pytest.raises(RunError, match=r"positive made \[2\].*\[4\].*fixed shape"):
        island(torch.tensor([1.0, -1, 1, -3]))


def test_python_numbers_are_noted_and_their_generator_left_alone() -> None:
    state = random.getstate()
    captured = capture(lambda x: x * random.random(), (torch.ones(2),))
    assert random.getstate() == state
    assert any("`random`" in note for note in captured.notes)


def test_attributes_are_left_as_they_were() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.log, self.cache = 0, [1], None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.log.append(x.shape[0])
            self.fresh = self.calls
            if self.cache is None:
                self.cache = torch.arange(4)
            return x + self.cache

    model = Counts().train()
    before = set(vars(model))
    capture(model, (torch.ones(4),))
    assert (model.calls, model.log, model.cache, set(vars(model))) == (0, [1], None, before)
    assert model.training


def test_the_key_tells_calls_apart() -> None:
    x, y = torch.ones(2, 3), torch.ones(2, 3)

    def key(*args: Any, **kwargs: Any) -> Any:
        return take_apart(args, kwargs).key

    assert key(x, y) == key(y, x) and hash(key(x, y)) == hash(key(y, x))
    base = torch.ones(4, 3)
    distinct = [
        key(x, y), key(x, x), key(x), key(x, a=y), key((x, y)), key(x, y, None), key(x, y, 1),
        key(x, y, True), key(x, y, 1.0),
        key(x, y, "1"), key(x, y, torch.float32), key(x.double(), y), key(x[:1], y),
        key(torch.ones(3, 2).t(), y),
        key(base[:2], base[2:]), key(x, y, 0.0), key(x, y, -0.0),
    ]  # fmt: skip
    assert len(set(distinct)) == len(distinct)


def test_flatten_follows_the_order_of_inputs() -> None:
    x, y = torch.ones(2), torch.zeros(3)
    captured = capture(lambda a, b, c: (a, b * 2, c["k"] + 1), (x, x), {"c": {"k": y}})
    assert [tensor is other for tensor, other in zip(captured.flatten((x, x), {"c": {"k": y}}), (x, y))] == [
        True
    ] * 2
    assert captured.same == ((0, captured.graph.inputs[0]),)


def test_threads_take_turns() -> None:
    found: list[int] = []

    def work() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        found.append(len(capture(model, (torch.ones(2, 4),)).graph.tasks))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2, 2, 2]
