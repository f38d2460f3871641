"""Models of the zoo in training: eager's gradients and buffers under any placement, and no kernel of one device."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.utils import _pytree as pytree

import autopar
from autopar.errors import AutoparError
from autopar.session.compare import widen
from autopar.session.session import Session

from . import routes
from .compare import opened
from .entry import Entry
from .models import MODELS

pytestmark = pytest.mark.zoo

FOREIGN = re.compile(r"_for_cpu|mkldnn|cudnn|miopen|_flash_|_efficient_")
LIMIT = 1e-11
"""Greatest error in float64: max|Δ| ÷ the larger of max|reference| and a thousandth of the largest gradient."""
CUT = 1e-4
"""The same where the batch is cut: a dozen BatchNorms one behind the other, over two rows of one pixel, make that of
the last bit. A summand left out is larger."""


SINGLE = ("mixtral", "qwen2-moe")
"""Models with a kernel that torch has in single precision alone."""
WRITTEN = {"wav2vec2": "changes hidden_states in place", "hubert": "changes hidden_states in place"}
"""Models of which something is trained as written, not placed, and why."""


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
            self.args, self.kwargs = _wide((args, kwargs))
        else:
            self.loose = 1e7
        self.saved = copy.deepcopy(self.model.state_dict())
        self.expected = self.run(self.model)

    def run(self, call: Callable[..., Any]) -> dict[str, torch.Tensor]:
        """Outputs, gradients and buffers after one call and a backward from fixed tangents, by name."""
        self.model.load_state_dict(self.saved)
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(7)
        numpy.random.seed(7)
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        leaves = pytree.tree_leaves(opened(call(*args, **kwargs)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        roots = [tensor for tensor in tensors if tensor.requires_grad]
        random = torch.Generator().manual_seed(5)
        tangents = [torch.randn(root.shape, generator=random, dtype=root.dtype) for root in roots]
        torch.autograd.backward(roots, tangents)
        found = {f"{n}.grad": p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
        found |= {f"output {index}": tensor.detach().clone() for index, tensor in enumerate(tensors)}
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
            a, b = (tensor.double().nan_to_num() for tensor in (wanted, found[name]))
            delta, scale = float((b - a).abs().max()), max(float(a.abs().max()), 1e-3 * largest)
            if not delta <= min(most * self.loose, 1e-3) * scale:
                return f"{name}: error {delta / scale if scale else delta:.1e}"
        return ""


def _wide(given: Any) -> Any:
    """The arguments with floats in double precision, in caches too."""

    def inside(leaf: Any) -> Any:
        if hasattr(leaf, "__dict__") and not isinstance(leaf, torch.Tensor) and not callable(leaf):
            vars(leaf).update(pytree.tree_map(inside, vars(leaf)))
            return leaf
        return widen(leaf)

    return pytree.tree_map(inside, given)


def foreign(session: Session) -> list[str]:
    """Tasks whose kernel one kind of device alone has."""
    programs = [prepared for served in session.graphs for prepared in served.programs.values()]
    tasks = [task for prepared in programs for task in prepared.captured.graph.tasks]
    return [task.where for task in tasks if FOREIGN.search(task.target)]


def judge(entry: Entry) -> None:
    subject = Subject(entry)
    wrong = {}
    for name, route in routes.routes().items():
        try:
            with route.compiled(subject.model) as fast:
                verdict = subject.differs(subject.run(fast), CUT if name == "batch in two" else LIMIT)
                found = routes.Found.of(fast._placement.session)
                specific = foreign(fast._placement.session)
        except autopar.PlanError as error:
            if name == "batch in two" and "cannot be cut" in str(error):
                continue
            verdict = str(error)
        except AutoparError as error:
            verdict = str(error)
        why = "; ".join(found.reasons)
        pattern = WRITTEN.get(entry.name, "")
        if bool(why) != bool(pattern) or not re.search(pattern, why):
            verdict = verdict or f"as written: {why}"
        if verdict or specific:
            wrong[name] = verdict or f"kernels of one device: {specific}"
    assert not wrong, "\n".join(f"{route}: {verdict}" for route, verdict in wrong.items())


@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in MODELS])
def test_as_eager(entry: Entry) -> None:
    judge(entry)
