"""A graph of small operations of most families, by which the scales of a CPU are found that nothing was measured on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir.device import Device
from ..ir.graph import Argument, Graph, Ref, Task, Value
from ..ir.machine import Machine
from . import scales
from .measure import chip, measure
from .roofline import CALL

BUDGET_S = 0.3
CALL_SCALE = (2e-5, 1.3)
"""Launch and factor of calls where none was recorded: the middle of the models of `tests/benchmarks/timed/zoo.py`."""


def scaled(device: Device) -> scales.Scales:
    """The scales of a CPU: those kept, else those of `operations`, which takes some tenths of a second."""
    label = chip(device)
    found = scales.kept(label)
    if not found:
        measure(operations(), Machine((device,)), {}, budget_s=BUDGET_S)
        found = scales.kept(label)
    if all(name != CALL for name, _, _ in found):
        found += ((CALL, *CALL_SCALE),)
    return found


def operations() -> Graph:
    """Operations that need nothing of each other, two sizes of most families."""
    probes = _Probes()
    for rows in (1, 2, 8, 24, 64, 128, 256):
        probes.product(rows, 512, 512)
        probes.product(rows, max(rows, 32), max(rows, 32))
    _convolutions(probes)
    for batch, length, width in ((1, 16, 64), (4, 32, 128)):
        probes.recurrent("lstm", 4, batch, length, width)
        probes.recurrent("gru", 3, batch, length, width)
        probes.attention(batch, 4, 4 * length)
    for side in (8, 1024):
        data = [(side, 256)]
        for name in ("relu", "gelu", "tanh", "clone"):
            probes.add(f"aten.{name}.default", data)
        probes.add("aten.add.Tensor", data * 2)
        probes.add("aten.layer_norm.default", data, (Ref("0"), (256,)))
        probes.add("aten.softmax.int", data, (Ref("0"), -1))
        probes.add("aten.mean.dim", data, (Ref("0"), (1,)), made=(side,))
        probes.add("aten.cat.default", data * 2, ((Ref("0"), Ref("1")), 1), made=(side, 512))
        probes.add("aten.zeros.default", [], ((side, 256),), made=(side, 256))
        probes.add("aten.transpose.int", data, (Ref("0"), 0, 1), made=(256, side), free=True)
        probes.add("aten.embedding.default", [(4096, 256)], rows=side)
    return probes.graph()


def _convolutions(probes: _Probes) -> None:
    for channels, side in ((32, 14), (64, 56)):
        given = (1, channels, side, side)
        probes.convolution(given, (channels, channels, 3, 3), 1)
        probes.convolution(given, (channels, channels // 4, 3, 3), 4)
        probes.convolution(given, (channels, 1, 3, 3), channels)
        probes.convolution(given, (2 * channels, channels, 1, 1), 1)
        window: tuple[Argument, ...] = (Ref("0"), (3, 3), (2, 2), (1, 1))
        probes.add("aten.max_pool2d.default", [given], window, made=(1, channels, side // 2, side // 2))
        probes.add("aten.avg_pool2d.default", [given], window, made=(1, channels, side // 2, side // 2))
        read = tuple(Ref(str(at)) for at in range(5))
        norm: tuple[Argument, ...] = (*read, False, 0.1, 1e-5, True)
        probes.add("aten.batch_norm.default", [given, *[(channels,)] * 4], norm)


class _Probes:
    """Tasks under way; what each reads is an input of its own."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.tasks: list[Task] = []

    def add(
        self,
        target: str,
        shapes: Sequence[tuple[int, ...]],
        args: tuple[Argument, ...] | None = None,
        *,
        made: tuple[int, ...] = (),
        flops: int = 0,
        free: bool = False,
        rows: int = 0,
        outputs: Sequence[tuple[int, ...]] = (),
    ) -> None:
        """A task; in `args` the Ref "0" is what it reads first. `rows` are indices that it reads last."""
        name = f"probe{len(self.tasks)}"
        read = [self._value(f"{name} in {at}", shape) for at, shape in enumerate(shapes)]
        if rows:
            read.append(self._value(f"{name} rows", (rows,), "int64"))
            made = (rows, shapes[0][1])
        wanted = [*outputs] or [made or shapes[0]]
        results = tuple(
            self._value(f"{name} out {at}", shape, kind="made") for at, shape in enumerate(wanted)
        )
        chosen = tuple(Ref(str(at)) for at in range(len(read))) if args is None else args
        self.tasks.append(
            Task(name, target, tuple(_named(argument, read) for argument in chosen), outputs=results,
                 unpack=len(results) > 1, flops=flops, free=free)
        )  # fmt: skip

    def product(self, rows: int, inner: int, columns: int) -> None:
        """A linear layer."""
        shapes = [(rows, inner), (columns, inner), (columns,)]
        self.add("aten.linear.default", shapes, made=(rows, columns), flops=2 * rows * inner * columns)

    def convolution(self, given: tuple[int, ...], weight: tuple[int, ...], groups: int) -> None:
        """A convolution that leaves height and width."""
        pad = weight[-1] // 2
        made = (given[0], weight[0], *given[2:])
        flops = 2 * math.prod(made) * math.prod(weight[1:])
        args = (Ref("0"), Ref("1"), None, (1, 1), (pad, pad), (1, 1), groups)
        self.add("aten.conv2d.default", [given, weight], args, made=made, flops=flops)

    def attention(self, batch: int, heads: int, length: int) -> None:
        """Queries, keys and values of one length."""
        shape = (batch, heads, length, 32)
        flops = 4 * batch * heads * length * length * 32
        self.add("aten.scaled_dot_product_attention.default", [shape] * 3, flops=flops)

    def recurrent(self, kind: str, gates: int, batch: int, length: int, width: int) -> None:
        """One layer over a batch of sequences."""
        weights = [(gates * width, width)] * 2
        state = [(1, batch, width)] * (2 if kind == "lstm" else 1)
        shapes = [(batch, length, width), *state, *weights]
        refs = [Ref(str(at)) for at in range(len(shapes))]
        hidden: Argument = tuple(refs[1:3]) if kind == "lstm" else refs[1]
        args = (refs[0], hidden, tuple(refs[-2:]), False, 1, 0.0, False, False, True)
        flops = 4 * batch * length * gates * width * width
        self.add(f"aten.{kind}.input", shapes, args, flops=flops, outputs=[shapes[0], *state])

    def graph(self) -> Graph:
        """All of them."""
        inputs = tuple(value.name for value in self.values if value.kind == "input")
        made = tuple(value.name for value in self.values if value.kind == "made")
        return Graph("probes", tuple(self.values), tuple(self.tasks), inputs, (), made)

    def _value(self, name: str, shape: tuple[int, ...], dtype: str = "float32", kind: str = "input") -> str:
        nbytes = math.prod(shape) * (8 if dtype == "int64" else 4)
        self.values.append(Value(name, shape, dtype, nbytes, name, "made" if kind == "made" else "input"))
        return name


def _named(argument: Argument, read: Sequence[str]) -> Argument:
    """An argument whose Refs are numbers of what is read."""
    if isinstance(argument, Ref):
        return Ref(read[int(argument.value)])
    return tuple(_named(item, read) for item in argument) if isinstance(argument, tuple) else argument
