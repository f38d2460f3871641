"""Models of the zoo in training: eager's gradients and buffers under any placement, and no kernel of one device."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import autopar
from autopar.capture import Captured
from autopar.capture.joint import joint
from autopar.equal import widen
from autopar.errors import CaptureError
from autopar.lowering.lower import lower
from autopar.options import Options
from autopar.runtime import adversary
from autopar.runtime.interpret import interpret
from autopar.stages import plan_captured

from . import routes
from .entry import Entry
from .models import MODELS

QUICK = ("bert", "gpt2", "resnet18")
CHOSEN = [entry for entry in MODELS if not entry.refuses]
FOREIGN = re.compile(r"_for_cpu|mkldnn|cudnn|miopen|_flash_|_efficient_")
LIMIT = 1e-11
"""Greatest error in float64: max|Δ| ÷ the larger of max|reference| and a thousandth of the largest gradient."""
CUT = 1e-4
"""The same where the batch is cut: a dozen BatchNorms one behind the other, over two rows of one pixel, make that of
the last bit. A summand left out is larger."""


SINGLE = ("mixtral", "qwen2-moe")
"""Models with a kernel that torch has in single precision alone."""
REFUSED = {
    "wav2vec2": "depends on the values",
    "hubert": "depends on the values",
    "switch transformers": r"self\.classifier\.to",
}
"""Models that are trained as written, not placed: they drop layers by a random number, or move a module in forward."""


class Subject:
    """A model in training mode and float64, a call of it, and what eager gives for it."""

    def __init__(self, entry: Entry) -> None:
        self.model, args, kwargs = entry.build()
        if not isinstance(self.model, torch.nn.Module):
            pytest.skip("a function has nothing to train")
        self.model.train()
        self.args, self.kwargs = args, kwargs
        self.loose = 1.0
        if entry.name not in SINGLE:
            self.model.double()
            self.args, self.kwargs = pytree.tree_map(widen, (args, kwargs))
        else:
            self.loose = 1e7
        self.saved = copy.deepcopy(self.model.state_dict())
        self.expected = self.run(self.model)

    def run(self, call: Callable[..., Any]) -> dict[str, torch.Tensor]:
        """Gradients and buffers after one call and a backward from fixed tangents, by name."""
        self.model.load_state_dict(self.saved)
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(7)
        leaves = pytree.tree_leaves(call(*self.args, **self.kwargs))
        roots = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        random = torch.Generator().manual_seed(5)
        tangents = [torch.randn(root.shape, generator=random, dtype=root.dtype) for root in roots]
        torch.autograd.backward(roots, tangents)
        found = {f"{n}.grad": p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
        return found | {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def differs(self, found: dict[str, torch.Tensor], most: float) -> str:
        """What is not as it should be, "" when all is."""
        if found.keys() != self.expected.keys():
            return f"gradients of {sorted(found.keys() ^ self.expected.keys())[:3]}"
        largest = max(
            (float(g.abs().max()) for n, g in self.expected.items() if n.endswith(".grad") and g.numel()),
            default=0.0,
        )
        for name, wanted in self.expected.items():
            if not wanted.numel():
                continue
            delta = float((found[name].double() - wanted.double()).abs().max())
            scale = max(float(wanted.double().abs().max()), 1e-3 * largest)
            if not delta <= min(most * self.loose, 1e-3) * scale:
                return f"{name}: error {delta / scale if scale else delta:.1e}"
        return ""

    def captured(self) -> Captured:
        self.model.load_state_dict(self.saved)
        return joint(self.model, self.args, self.kwargs)

    def given(self, captured: Captured) -> dict[str, torch.Tensor]:
        """State, arguments and the fixed tangents by value name."""
        self.model.load_state_dict(self.saved)
        values = {name: owner[key].detach() for name, (owner, key) in captured.state.items()}
        values.update(zip(captured.graph.inputs, captured.flatten(self.args, self.kwargs)))
        random = torch.Generator().manual_seed(5)
        for name, _ in captured.tangents:
            about = captured.graph.value[name]
            values[name] = torch.randn(about.shape, generator=random, dtype=getattr(torch, about.dtype))
        return values

    def named(
        self, captured: Captured, gradients: list[Any], updates: dict[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Gradients and buffers by name, tied ones under the first."""
        path = captured.graph.value
        buffers = dict(self.model.named_buffers())
        first = {id(p): n for n, p in self.model.named_parameters()}
        found = {name: buffer.clone() for name, buffer in buffers.items()}
        found |= {path[name].path: made for name, made in updates.items()}
        for (name, _), gradient in zip(captured.gradients, gradients):
            if name in captured.state:
                owner, key = captured.state[name]
                found[f"{first[id(owner[key])]}.grad"] = gradient
        return found


def interpreted(subject: Subject, captured: Captured) -> dict[str, torch.Tensor]:
    """The joint graph task by task."""
    values: dict[str, Any] = subject.given(captured)
    torch.manual_seed(7)
    with torch.no_grad():
        for _ in interpret(captured.graph, captured.calls, values, torch.device("cpu")):
            pass
    updates = {target: values[made] for made, target in captured.graph.updates}
    return subject.named(captured, [values[made] for _, made in captured.gradients], updates)


def adversarial(subject: Subject, captured: Captured) -> dict[str, torch.Tensor]:
    """The joint graph round robin on three devices, in the worst order the events permit."""
    given = subject.given(captured)
    inputs = [given[name] for name in captured.graph.inputs]
    options = Options(policy="round_robin", split=None, check="never")
    plan = plan_captured(replace(captured, tangents=()), routes.machine(*routes.NAMES), options, inputs)
    program = lower(plan)
    program.check(plan.costed.graph)
    torch.manual_seed(7)
    outputs, updates = adversary.run(program, plan.costed.graph, captured.calls, given, 3)
    made = {target: value for (_, target), value in zip(program.updates, updates)}
    return subject.named(captured, outputs[len(outputs) - len(captured.gradients) :], made)


def compiled(subject: Subject, devices: tuple[str, ...], **options: Any) -> dict[str, torch.Tensor]:
    """By the face, in the user's own loop."""
    subject.model.load_state_dict(subject.saved)
    fast = autopar.compile(subject.model, routes.machine(*devices), **options)
    try:
        return subject.run(fast)
    finally:
        fast.close()


def judge(entry: Entry) -> None:
    subject = Subject(entry)
    if entry.name in REFUSED:
        with pytest.raises(CaptureError, match=REFUSED[entry.name]):
            subject.captured()
        return
    captured = subject.captured()
    foreign = [task.where for task in captured.graph.tasks if FOREIGN.search(task.target)]
    assert not foreign, foreign
    ways: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
        "task by task": lambda: interpreted(subject, captured),
        "cpu": lambda: compiled(subject, ("cpu",), split=None),
        "round robin": lambda: compiled(subject, routes.NAMES, split=None, policy="round_robin"),
        "adversarial": lambda: adversarial(subject, captured),
        "batch in two": lambda: compiled(subject, routes.NAMES, split=2, policy="round_robin"),
    }
    wrong = {}
    for name, way in ways.items():
        try:
            verdict = subject.differs(way(), CUT if name == "batch in two" else LIMIT)
        except autopar.PlanError as error:
            if name == "batch in two" and "cannot be cut" in str(error):
                continue
            verdict = str(error)
        if verdict:
            wrong[name] = verdict
    assert not wrong, "\n".join(f"{route}: {verdict}" for route, verdict in wrong.items())


@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in CHOSEN if e.name in QUICK])
def test_quick(entry: Entry) -> None:
    judge(entry)


@pytest.mark.zoo
@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in CHOSEN])
def test_all(entry: Entry) -> None:
    judge(entry)
