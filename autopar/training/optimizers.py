"""The optimizer's step in a joint graph (`updated`), the reason why that is impossible (`obstacle`), and the
side effects of a step (`committed`)."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from ..capture import Captured
from ..capture.torch_private import step_hooks
from ..ir.graph import Ref, Task, Value
from .formulas import FORMULAS, clip, entries, formula, norm

NORM = "autopar.norm"
"""Target of the norm of one gradient."""
CLIP = "autopar.clip"
"""Target of the total norm and the clip coefficient."""


class _Entries(Mapping[str, torch.Tensor]):
    """An optimizer's state of one parameter, looked up on each access, since `load_state_dict` replaces it."""

    def __init__(self, optimizer: Optimizer, parameter: torch.Tensor) -> None:
        self.optimizer, self.parameter = optimizer, parameter

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._state()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state())

    def __len__(self) -> int:
        return len(self._state())

    def _state(self) -> Mapping[str, torch.Tensor]:
        # Indexing the defaultdict would create an entry.
        return self.optimizer.state.get(self.parameter, {})


_known: weakref.WeakValueDictionary[tuple[int, int], _Entries] = weakref.WeakValueDictionary()
"""One `_Entries` for each optimizer and parameter, by `id`: programs recognise the same state by it."""


def trained_parameters(captured: Captured) -> dict[str, torch.Tensor]:
    """Return the live parameters with a gradient in a joint graph, by path, in the order of `captured.gradients`."""
    parameters = {}
    for name, _ in captured.gradients:
        if name in captured.state:
            owner, key = captured.state[name]
            parameters[captured.graph.value[name].path] = owner[key]
    return parameters


def updated(captured: Captured, optimizer: Optimizer, *, clip_norm: float | None = None) -> Captured:
    """Append one step of `optimizer` to the joint graph, one task for each parameter with a gradient.

    Outputs are those of the forward; `Captured.gradients` still names the gradients of parameters. Each task `update
    <path>`, of module `<path>`, reads the parameter, its gradient and its optimizer state (state values of path
    `optimizer.state.<path>.<entry>`) and makes their new values (`Graph.updates`); all of that state is
    `Graph.carried`. The task follows its gradient or, with `clip_norm`, the task `clip`. That makes
    `total_norm`, the norm over all gradients, and `clip_coefficient`, which multiplies each gradient. Each
    call reads hyperparameters from the live param groups; then the caller advances steps by `committed`.

    Requires that there is no `obstacle`, and that the optimizer holds each parameter with a gradient.
    """
    return _Step(captured, optimizer, clip_norm).captured()


def obstacle(optimizer: Optimizer, parameters: Mapping[str, torch.Tensor]) -> str:
    """Return the reason, as a phrase, why the step of `optimizer` cannot be tasks of a graph; "" if it can.

    `parameters`: those with a gradient, by path. The first step cannot be in a graph, since torch creates the state in
    it. Linear in parameters; cheap enough for every call.
    """
    return (
        _of_optimizer(optimizer)
        or next(filter(None, map(_of_group, range(len(optimizer.param_groups)), optimizer.param_groups)), "")
        or _of_parameters(optimizer, parameters)
    )


def _of_optimizer(optimizer: Optimizer) -> str:
    kind = type(optimizer)
    if kind not in FORMULAS:
        return f"{kind.__name__} is not torch's own {', '.join(known.__name__ for known in FORMULAS)}"
    hooks = [hook for hook in step_hooks(optimizer) if not _ours(hook)]
    if hooks:
        name = getattr(hooks[0], "__qualname__", type(hooks[0]).__qualname__)
        return f"the hook {name} is called at each step of the optimizer"
    step = vars(optimizer).get("step")
    if step is not None and not (
        getattr(step, "_wrapped_by_lr_sched", False) and getattr(step, "__wrapped__", None) is kind.step
    ):
        return f"the step method of this {kind.__name__} has been replaced"
    if (
        getattr(optimizer, "grad_scale", None) is not None
        or getattr(optimizer, "found_inf", None) is not None
    ):
        return "a GradScaler has set the optimizer's grad_scale"
    return ""


def _ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


def _of_group(number: int, group: dict[str, Any]) -> str:
    for flag in ("capturable", "differentiable"):
        if group.get(flag):
            return f"param group {number} is {flag}"
    for name, value in group.items():
        if name != "params":
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, torch.Tensor) and item.requires_grad:
                    return f"{name} of param group {number} requires grad"
    if group["foreach"] and isinstance(group["lr"], torch.Tensor) and "betas" in group:
        return f"torch refuses foreach with the lr of param group {number}, which is a tensor"
    return ""


def _of_parameters(optimizer: Optimizer, parameters: Mapping[str, torch.Tensor]) -> str:
    paths = {id(tensor): path for path, tensor in parameters.items()}
    groups: dict[int, dict[str, Any]] = {}
    for number, group in enumerate(optimizer.param_groups):
        for position, tensor in enumerate(group["params"]):
            if id(tensor) in groups:
                name = paths.get(id(tensor), f"parameter {position} of param group {number}")
                return f"{name} is in the optimizer's param groups twice"
            groups[id(tensor)] = group
            if tensor.grad is not None and id(tensor) not in paths:
                return f"parameter {position} of param group {number} has a gradient that this model does not give"
    state = optimizer.state
    for path, tensor in parameters.items():
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            return f"{path} is not a plain tensor but a {type(tensor).__name__} of layout {tensor.layout}"
        if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
            return f"{path} has a hook, which wants its gradient"
        if not tensor.is_floating_point():
            return f"{path} is {str(tensor.dtype).removeprefix('torch.')}, not floating point"
        if tensor.grad is not None and tensor.grad.layout is not torch.strided:
            return f"{path} has a sparse gradient"
        entries_of, group = state.get(tensor, {}), groups[id(tensor)]
        names = entries(group)
        if (
            group["fused"]
            and "momentum_buffer" in names
            and tensor.device.type == "cpu"
            and tensor.itemsize == 2
        ):
            # The kernel leaves part of a vector undefined: two steps from one state give different results.
            return f"torch's fused SGD with momentum is not reproducible in {tensor.dtype} on a CPU ({path})"
        for entry in (*names, "step") if "betas" in group else names:
            if not isinstance(entries_of.get(entry), torch.Tensor):
                return f"the optimizer has no {entry} of {path} yet"
    return ""


@torch.no_grad()
def committed(optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> None:
    """Apply the side effects of `optimizer.step()` after a program has updated `parameters`: step counts and the
    signal to learning-rate schedulers."""
    states = (optimizer.state.get(parameter, {}) for parameter in parameters)
    counts = [state["step"] for state in states if "step" in state]
    if counts:
        torch._foreach_add_(counts, 1)
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        vars(optimizer)["_opt_called"] = True


class _Step:
    """Builder of the tasks and values of one step."""

    def __init__(self, captured: Captured, optimizer: Optimizer, clip_norm: float | None) -> None:
        self.base, self.optimizer = captured, optimizer
        self.graph = captured.graph
        self.kind = f"autopar.{type(optimizer).__name__.lower()}"
        self.work = FORMULAS[type(optimizer)]
        self.groups = {
            id(tensor): number
            for number, group in enumerate(optimizer.param_groups)
            for tensor in group["params"]
        }
        self.values: dict[str, Value] = {}
        self.state: dict[str, tuple[Any, str]] = {}
        self.updates: list[tuple[str, str]] = []
        self.parameters: dict[str, torch.Tensor] = {}
        pairs = [(name, gradient) for name, gradient in captured.gradients if name in captured.state]
        self.tasks: dict[str | None, list[Task]] = {}
        """Tasks to insert after each task; None: at the start."""
        coefficient, last = None, None
        if clip_norm is not None and pairs:
            coefficient, last = self.clipping(pairs, float(clip_norm))
        for name, gradient in pairs:
            after = last if coefficient else self.graph.producer.get(gradient)
            self.tasks.setdefault(after, []).append(self.update(name, gradient, coefficient))

    def captured(self) -> Captured:
        """Return the complete graph."""
        graph, base = self.graph, self.base
        carried = [target for _, target in self.updates]
        stepped_graph = replace(
            graph,
            values=(*graph.values, *self.values.values()),
            tasks=tuple(self.ordered()),
            state=(*graph.state, *self.state),
            outputs=graph.outputs[: len(graph.outputs) - len(base.gradients)],
            updates=(*graph.updates, *self.updates),
            changing=tuple(name for name in graph.changing if name not in set(carried)),
            carried=(*graph.carried, *carried),
        )
        calls: dict[str, Callable[..., Any]] = {
            **base.calls,
            self.kind: formula(self.optimizer, self.parameters),
            f"{self.kind}_": formula(self.optimizer, self.parameters, in_place=True),
            NORM: norm,
            CLIP: clip,
        }
        return replace(base, graph=stepped_graph.check(), state={**base.state, **self.state}, calls=calls)

    def ordered(self) -> Iterator[Task]:
        """Yield the graph's tasks, each followed by those inserted after it."""
        yield from self.tasks.get(None, ())
        for task in self.graph.tasks:
            yield task
            yield from self.tasks.get(task.name, ())

    def update(self, name: str, gradient: str, coefficient: str | None) -> Task:
        """Return the task that updates one parameter."""
        path, parameter = self.graph.value[name].path, self.parameter(name)
        number = self.groups[id(parameter)]
        self.parameters[path] = parameter
        key = id(self.optimizer), id(parameter)
        entries_of = _known.setdefault(key, _Entries(self.optimizer, parameter))
        read = [(name, parameter)]
        for entry in entries(self.optimizer.param_groups[number]):
            state = self.value(
                f"{name}_{entry}", entries_of[entry], "state", f"optimizer.state.{path}.{entry}"
            )
            self.state[state] = entries_of, entry
            read.append((state, entries_of[entry]))
        results = tuple(self.value(f"{target}_next", like) for target, like in read)
        self.updates += zip(results, (target for target, _ in read))
        factor = None if coefficient is None else Ref(coefficient)
        return Task(
            f"update {path}",
            self.kind,
            ((path, number, Ref(name), Ref(gradient), factor, *(Ref(state) for state, _ in read[1:])),),
            outputs=results,
            unpack=True,
            flops=self.work * parameter.numel(),
            module=path,
            phase="update",
        )

    def clipping(self, pairs: Iterable[tuple[str, str]], most: float) -> tuple[str, str | None]:
        """Add the norms and the coefficient; return the coefficient's value, and the task before updates."""
        norms = []
        for name, gradient in pairs:
            path, parameter = self.graph.value[name].path, self.parameter(name)
            norms.append(self.value(f"{name}_norm", parameter.new_empty((), device="meta")))
            task = Task(
                f"norm {path}",
                NORM,
                # Autograd gives the gradient these strides.
                (Ref(gradient), torch.empty_like(parameter, device="meta").stride()),
                outputs=(norms[-1],),
                flops=2 * parameter.numel(),
                module=path,
                phase="update",
            )
            self.tasks.setdefault(self.graph.producer.get(gradient), []).append(task)
        dtypes = (self.parameter(name).dtype for name, _ in pairs)
        like = torch.empty((), dtype=functools.reduce(torch.promote_types, dtypes), device="meta")
        results = self.value("total_norm", like), self.value("clip_coefficient", like)
        task = Task(
            "clip", CLIP, (tuple(map(Ref, norms)), most), outputs=results, unpack=True, flops=2 * len(norms),
            phase="update",
        )  # fmt: skip
        last = self.graph.tasks[-1].name if self.graph.tasks else None
        self.tasks.setdefault(last, []).append(task)
        return results[1], last

    def parameter(self, name: str) -> torch.Tensor:
        """Return the live tensor of a state value."""
        owner, key = self.base.state[name]
        return owner[key]

    def value(
        self, name: str, like: torch.Tensor, kind: Literal["state", "made"] = "made", path: str = ""
    ) -> str:
        """Add a value of the form of a tensor, called `name` if that is free; return its name."""
        while name in self.graph.value or name in self.values:
            name += "_"
        dtype = str(like.dtype).removeprefix("torch.")
        shape, nbytes = tuple(like.shape), like.numel() * like.element_size()
        sizes = (*shape, like.numel())
        self.values[name] = Value(name, shape, dtype, nbytes, name, kind, path, open=sizes)
        return name
