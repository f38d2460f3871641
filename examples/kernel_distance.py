"""The accumulated distance between every pair of kernels of a convolution, written as the double loop it is.

    python examples/kernel_distance.py [--kernels 64] [--channels 64] [--cap 0.8]

`ac_distance(layer)` takes the layer as an argument and is differentiable: its gradient reaches `layer.weight`. Every
device has a cap of `--cap` times what one device alone needs as it is planned without a cap, so that two must do it (of
few kernels one can all the same, where it takes its tasks one by one). Printed: the
gradient against eager's, what capture takes beside torch's own export and joint graph in this process, planning, the
critical path with its chain of additions, and a vectorised form for comparison.
"""

import argparse
import contextlib
import copy
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.fx.traceback import preserve_node_meta

import autopar


def ac_distance(layer: nn.Conv2d) -> torch.Tensor:
    """The sum of the Euclidean distances between all ordered pairs of kernels."""
    kernels = layer.weight
    total = kernels.new_zeros(())
    for i in range(kernels.shape[0]):
        for j in range(kernels.shape[0]):
            total = total + torch.linalg.vector_norm(kernels[i] - kernels[j])
    return total


def vectorised(layer: nn.Conv2d) -> torch.Tensor:
    """The same in one operation."""
    kernels = layer.weight.flatten(1)
    return torch.cdist(kernels, kernels, compute_mode="donot_use_mm_for_euclid_dist").sum()


class Distance(nn.Module):
    """The loop as torch's export wants it."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> torch.Tensor:
        return ac_distance(self.layer)


def gradient(function: Callable[..., torch.Tensor], layer: nn.Conv2d) -> torch.Tensor:
    """The gradient of a function of a layer in its weight."""
    layer.zero_grad()
    function(layer).backward()
    assert layer.weight.grad is not None
    return layer.weight.grad.clone()


def torchs_own(layer: nn.Conv2d) -> tuple[float, int]:
    """CPU seconds of torch's export and joint graph of the loop, and the nodes of that graph."""
    start = time.process_time()
    exported = torch.export.export(Distance(layer), (), strict=False).module()
    with contextlib.ExitStack() as stack, preserve_node_meta():
        made = aot_export_joint_with_descriptors(stack, exported, ())
        nodes = len(made.graph_module.graph.nodes)
    return time.process_time() - start, nodes


class Stages(logging.Handler):
    """CPU seconds of each stage of planning, from autopar's own log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.seconds: dict[str, float] = {}
        self.last = time.process_time()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "%s: %s" and isinstance(record.args, tuple):
            now = time.process_time()
            stage = str(record.args[0])
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
            self.last = now


@contextlib.contextmanager
def staged():
    """What the stages inside take, in CPU seconds."""
    log, handler = logging.getLogger("autopar"), Stages()
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    handler.last = time.process_time()
    try:
        yield handler.seconds
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def apart(found: torch.Tensor, reference: torch.Tensor) -> float:
    """max|Δ| ÷ max|reference|."""
    return ((found - reference).abs().max() / reference.abs().max()).item()


def chain(plan: autopar.Plan) -> tuple[int, float]:
    """The tasks on the longest path of a plan's graph, and its seconds were nothing waited for a device."""
    graph, cost = plan.costed.graph, plan.costed.cost
    tasks: dict[str, int] = {}
    lasts: dict[str, float] = {}
    for task in graph.tasks:
        before = [graph.producer[name] for name in task.inputs if name in graph.producer] + list(task.after)
        tasks[task.name] = 1 + max((tasks[name] for name in before), default=0)
        own = min(seconds for seconds in cost[task.name].seconds if seconds is not None)
        lasts[task.name] = own + max((lasts[name] for name in before), default=0.0)
    return max(tasks.values()), max(lasts.values())


def measure(kernels: int = 64, channels: int = 64, cap: float = 0.8) -> dict[str, Any]:
    """Every figure that is printed; seconds, bytes, ratios."""
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, kernels, 3)
    reference = gradient(ac_distance, layer)
    found: dict[str, Any] = {"pairs": kernels * kernels}
    found["torch s"], found["nodes"] = torchs_own(layer)

    two = ["emulated:0", "emulated:1"]
    alone = autopar.compile(ac_distance, two[:1])
    with staged() as stages:
        free = gradient(alone, layer)
    found["capture s"], found["plan alone s"] = stages["capture"], stages["plan"]
    found["tasks"] = len(alone.plan.costed.graph.tasks)
    found["one device bytes"] = need = peak(alone)
    found["free"] = apart(free, reference)
    found["chain"] = chain(alone.plan)
    alone.close()

    found["cap"] = limit = int(cap * need)
    caps = dict.fromkeys(two, limit)
    both = autopar.compile(ac_distance, two, memory=caps)
    with staged() as stages:
        capped = gradient(both, layer)
    found["plan s"], found["lower s"] = stages["plan"], stages["lower"] + stages["check"]
    found["capped"] = apart(capped, reference)
    found["one device fits"] = any(seconds is not None for _, seconds in both.plan.singles)
    found["devices"] = sorted({placed.device for placed in both.plan.placed})
    with both.record() as timeline:
        gradient(both, layer)
    found["peaks"] = {memory.device: memory.peak for memory in timeline.last.memory}
    found["predicted"] = {memory.device: memory.peak for memory in both.plan.memory}
    both.close()

    found["loop s"] = least(lambda: gradient(ac_distance, layer))
    found["vectorised s"] = least(lambda: gradient(vectorised, layer))
    found["vectorised"] = apart(gradient(vectorised, layer), reference)
    exact = gradient(ac_distance, copy.deepcopy(layer).double())
    found["eager"] = apart(reference, exact)
    return found


def peak(compiled) -> int:
    """The most bytes that a recorded step or its plan needs on the first device."""
    return max(memory.peak for memory in compiled.plan.memory)


def least(function: Callable[[], Any], times: int = 3) -> float:
    """Least wall seconds of a few calls."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--kernels", default=16, type=int, help="default 16; 64 takes minutes")
    options.add_argument("--channels", default=64, type=int)
    options.add_argument("--cap", default=0.8, type=float, help="of what one device would need (default 0.8)")
    chosen = options.parse_args()
    try:
        found = measure(chosen.kernels, chosen.channels, chosen.cap)
    except autopar.MemoryCapError as error:
        raise SystemExit(
            f"two devices do not fit under --cap {chosen.cap} either; give more: {error}"
        ) from None
    print("EMULATED, real clock; seconds of capture and planning are CPU seconds of this process")
    print(f"{chosen.kernels} kernels, {found['pairs']} pairs, {found['tasks']} tasks forward and backward")
    print(f"gradient against eager, max|Δ| ÷ max|reference|: one device {found['free']:.1e}, two under the cap "
          f"{found['capped']:.1e} (eager against float64: {found['eager']:.1e})")  # fmt: skip
    alone = "fits, task by task" if found["one device fits"] else "does not fit"
    print(f"memory: one device needs {found['one device bytes']:,} bytes, the cap is {found['cap']:,} on each; one "
          f"device: {alone}; two: on {', '.join(found['devices'])}, peaks "
          f"predicted {found['predicted']}, measured {found['peaks']}")  # fmt: skip
    print(f"capture {found['capture s']:.1f} s, torch's export and joint graph {found['torch s']:.1f} s "
          f"({found['nodes']} nodes): ÷ {found['capture s'] / found['torch s']:.2f}")  # fmt: skip
    print(f"planning {found['plan alone s']:.1f} s on one device, {found['plan s']:.1f} s on two under the cap, whose "
          f"two programs then take {found['lower s']:.1f} s to write and to check")  # fmt: skip
    tasks, seconds = found["chain"]
    print(f"critical path {tasks} tasks, {seconds * 1e3:.1f} ms")
    print(f"eager: the loop {found['loop s'] * 1e3:.1f} ms, vectorised (cdist) {found['vectorised s'] * 1e3:.2f} ms, "
          f"its gradient {found['vectorised']:.1e} from the loop's")  # fmt: skip


if __name__ == "__main__":
    main()
