"""Models of which not all is on the GPU: one larger than the memory it may use, weights copied behind compute, and a
training step with its update on the CPU."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from autopar.api import compile, train_step
from autopar.costs.detect import detect
from autopar.errors import AutoparError
from autopar.ir.costed import CostedGraph
from autopar.ir.device import Device, Link
from autopar.ir.machine import Machine
from autopar.planner import Policy
from autopar.system.text import seconds, size
from autopar.training.step import TrainStep

from .racing import Call, added, held, race

STEPS = 3
"""Steps of training whose losses are compared."""
RATE = 1e-3
"""Learning rate of Adam."""
SPARE = 16
"""One part in so many of a cap is not planned for."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of models and batches: blocks, their width and rows; rows with which products take about as long as the
    copies of the weights; blocks to train, and rows with which a backward takes about as long as the update on the
    CPU."""

    blocks: int = 16
    width: int = 2048
    rows: int = 512
    copied_rows: int = 1536
    trained_blocks: int = 6
    trained_rows: int = 8192


def sizes(gpu: str) -> Sizes:
    """Return the sizes for a large GPU, or tiny ones with which a row can be tried on another accelerator."""
    return Sizes() if torch.device(gpu).type == "cuda" else Sizes(10, 64, 16, 16, 2, 16)


def machine(gpu: str) -> Machine:
    """Return the CPU and a GPU as measured. Another accelerator is declared so that weights are worth a copy, and the
    state of an optimizer is not."""
    if torch.device(gpu).type == "cuda":
        return detect(["cpu", gpu])
    shared = {"bytes_per_s": 1e10, "memory_bytes": 1 << 30}
    host = Device("cpu", "cpu", flops=(("float32", 1e10),), launch_s=2e-5, **shared)
    other = Device(gpu, torch.device(gpu).type, flops=(("float32", 1e12),), launch_s=1e-5, **shared)
    links = (Link("cpu", gpu, 1e-5, 2e9, f"cpu to {gpu}"), Link(gpu, "cpu", 1e-5, 2e9, f"{gpu} to cpu"))
    return Machine((host, other), links)


class Block(nn.Module):
    """The feed-forward half of a transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the layers' output to `x`."""
        return x + self.layers(self.norm(x))


def blocks(gpu: str, width: int, count: int) -> nn.Sequential:
    """Return feed-forward blocks on the CPU. Their weights are drawn on the GPU, which takes less time."""
    torch.manual_seed(0)
    with torch.device(gpu):
        model = nn.Sequential(*(Block(width) for _ in range(count)))
    return model.cpu()


def weights(model: nn.Module) -> int:
    """Return the bytes of all parameters."""
    return sum(parameter.nbytes for parameter in model.parameters())


@torch.no_grad()
def larger(gpu: str, rounds: int = 0, times: int = 2) -> dict[str, Any]:
    """Race a model `times` as large as the memory that it may use on the GPU against accelerate's two ways."""
    chosen, devices = sizes(gpu), machine(gpu)
    model, x = blocks(gpu, chosen.width, chosen.blocks).eval(), torch.randn(chosen.rows, chosen.width)
    cap, expected = weights(model) // times, model(x)
    before = held(gpu)
    activations = added(_moved(copy.deepcopy(model).to(gpu), x, gpu), gpu)
    # The library of products keeps a workspace for each stream from the first product on.
    workspace = held(gpu) - before
    # torch counts whole blocks, which are up to 1 MB larger than the tensors in them.
    planned = cap - workspace - cap // SPARE
    print(f"weights {size(weights(model))}, cap {size(cap)}, of it for activations {size(activations)}")
    with ExitStack() as stack:

        def placed(home: str) -> Call:
            fast = compile(model, devices, memory={gpu: planned}, home=home)
            stack.callback(fast.close)
            fast(x)
            print(f"autopar, home={home!r}: predicted {seconds(fast.plan.makespan)}")
            return lambda: fast(x)

        def moved(build: Callable[[nn.Module], nn.Module]) -> Call:
            return _moved(build(copy.deepcopy(model)), x, gpu)

        free = f"eager, {gpu}, no cap"
        makers: dict[str, Callable[[], Call]] = {
            "eager, cpu": lambda: lambda: model(x),
            free: lambda: moved(lambda own: own.to(gpu)),
            "accelerate cpu_offload": lambda: moved(lambda own: _offloaded(own, gpu)),
            "accelerate cpu_offload, pinned": lambda: moved(lambda own: _offloaded(own, gpu, pinned=True)),
            "accelerate dispatch_model": lambda: moved(lambda own: _dispatched(own, gpu, cap - activations)),
            "autopar": lambda: placed("auto"),
            'autopar, home="cpu"': lambda: placed("cpu"),
        }
        data = race(makers, [expected], gpu, rounds or 5, base="eager, cpu", cap=cap, free=[free])
    return {**data, "cap_bytes": cap}


def _moved(model: nn.Module, x: torch.Tensor, gpu: str) -> Call:
    """Return the call of a model on a GPU, from the CPU and back."""
    return lambda: model(x.to(gpu)).cpu()


def _offloaded(model: nn.Module, gpu: str, pinned: bool = False) -> nn.Module:
    """Return a model whose weights accelerate copies to the GPU, layer by layer, in each call."""
    state = {name: tensor.pin_memory() if pinned else tensor for name, tensor in model.state_dict().items()}
    offloaded: nn.Module = _accelerate().cpu_offload(model, torch.device(gpu), state_dict=state)
    return offloaded


def _dispatched(model: nn.Module, gpu: str, budget: int) -> nn.Module:
    """Return a model of which accelerate keeps blocks on the GPU, as many as `budget` bytes hold beside the one that it
    copies at a time. Raises AutoparError if they hold none."""
    limits = {0: budget, "cpu": 2 * weights(model)}
    places = _accelerate().infer_auto_device_map(model, limits, no_split_module_classes=[Block.__name__])
    if 0 not in places.values():
        raise AutoparError(f"accelerate keeps no block on the GPU in {size(budget)}")
    devices = {name: gpu if place == 0 else place for name, place in places.items()}
    dispatched: nn.Module = _accelerate().dispatch_model(model, devices, main_device=gpu)
    return dispatched


def _accelerate() -> Any:
    """Return the module. Raises AutoparError if it is not installed."""
    if not find_spec("accelerate"):
        raise AutoparError("accelerate is not installed; pip install 'autopar[frameworks]'")
    return importlib.import_module("accelerate")


@torch.no_grad()
def copies(gpu: str, rounds: int = 0) -> dict[str, Any]:
    """Race streamed weights against compute alone, copies alone, and one after the other."""
    chosen = sizes(gpu)
    model = blocks(gpu, chosen.width, chosen.blocks).eval()
    x = torch.randn(chosen.copied_rows, chosen.width).pin_memory()
    twin = copy.deepcopy(model).to(gpu)
    pinned = [[parameter.pin_memory() for parameter in block.parameters()] for block in model]
    expected = twin(x.to(gpu))

    def copied() -> torch.Tensor:
        for block in pinned:
            for parameter in block:
                parameter.to(gpu, non_blocking=True)
        return expected

    def in_turn() -> torch.Tensor:
        made = x.to(gpu, non_blocking=True)
        for block, sources in zip(twin, pinned):
            for parameter, source in zip(block.parameters(), sources):
                parameter.copy_(source, non_blocking=True)
            made = block(made)
        return made

    with ExitStack() as stack:

        def streamed() -> Call:
            there = {"policy": f"single {gpu}", "home": "cpu", "outputs": "as_placed"}
            fast = compile(model, machine(gpu), split=None, **there)
            stack.callback(fast.close)
            return lambda: fast(x)

        makers: dict[str, Callable[[], Call]] = {
            "compute alone": lambda: lambda: twin(x.to(gpu, non_blocking=True)),
            "copies alone": lambda: copied,
            "in turn, one stream": lambda: in_turn,
            "autopar, streamed": streamed,
        }
        data = race(makers, [expected], gpu, rounds or 9, base="compute alone")
    both = [data[name].get("median_s", 0.0) for name in ("compute alone", "copies alone")]
    overlapped = data["autopar, streamed"].get("median_s", 0.0)
    if overlapped and all(both):
        data["ratio"] = overlapped / max(both)
        data["hidden"] = (sum(both) - overlapped) / min(both)
        print(f"÷ the longer of the two {data['ratio']:.3f}, hidden of the shorter {data['hidden']:.3f}")
    return data


def update(gpu: str, rounds: int = 0) -> dict[str, Any]:
    """Race training steps of a model whose weights and state of Adam are on the CPU: the update after the backward, and
    autopar's, planned or all on the CPU. A loop with all of it on the GPU takes part."""
    chosen = sizes(gpu)
    model = blocks(gpu, chosen.width, chosen.trained_blocks)
    x = torch.randn(chosen.trained_rows, chosen.width)

    def adam(net: nn.Module) -> torch.optim.Adam:
        return torch.optim.Adam(net.parameters(), lr=RATE, fused=True)

    def loop() -> Call:
        net = copy.deepcopy(model).to(gpu)
        optimizer = adam(net)

        def step() -> torch.Tensor:
            loss = mean_square(net(x.to(gpu)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    def afterwards() -> Call:
        net, twin = copy.deepcopy(model), copy.deepcopy(model).to(gpu)
        for parameter in net.parameters():
            parameter.data = parameter.data.pin_memory()
            parameter.grad = torch.zeros_like(parameter, pin_memory=True)
        optimizer = adam(net)
        pairs = list(zip(net.parameters(), twin.parameters()))

        def step() -> torch.Tensor:
            loss = mean_square(twin(x.to(gpu)))
            loss.backward()
            for own, there in pairs:
                own.grad.copy_(there.grad, non_blocking=True)
            torch.accelerator.synchronize(gpu)
            optimizer.step()
            with torch.no_grad():
                for own, there in pairs:
                    there.copy_(own, non_blocking=True)
                    there.grad = None
            return loss.detach()

        return step

    def updates_on_cpu(costed: CostedGraph) -> dict[str, str]:
        updates = {
            run.name for run in costed.clusters if any(task.startswith("update") for task in run.tasks)
        }
        return {run.name: "cpu" if run.name in updates else gpu for run in costed.clusters}

    steps: dict[str, TrainStep] = {}
    with ExitStack() as stack:

        def placed(name: str, policy: Policy) -> Call:
            net = copy.deepcopy(model)
            devices = machine(gpu)
            step = train_step(net, mean_square, adam(net), devices, home="cpu", policy=policy, split=None)
            stack.callback(step.close)
            steps[name] = step
            return lambda: step(x)

        policies: dict[str, Policy] = {
            "autopar.train_step": "auto",
            "autopar.train_step, updates on the CPU": updates_on_cpu,
        }
        makers: dict[str, Callable[[], Call]] = {
            f"loop, Adam on {gpu}": loop,
            "loop, then Adam on the CPU": afterwards,
            **{name: partial(placed, name, policy) for name, policy in policies.items()},
        }
        eager = loop()
        losses = [eager() for _ in range(STEPS)]
        data = race(makers, losses, gpu, rounds or 5, base="loop, then Adam on the CPU")
        for name, step in steps.items():
            if "failed" in data[name]:
                continue
            # Updates are planned once the state of the optimizer exists.
            tasks = [task for task in step.plan.placed if task.cluster.startswith("update")]
            data[name]["updates_on"] = sorted({task.device for task in tasks})
            print(f"{name} has its updates on {', '.join(data[name]['updates_on'])}")
    return data


def mean_square(made: torch.Tensor) -> torch.Tensor:
    """Return the mean of the squares."""
    return made.square().mean()
