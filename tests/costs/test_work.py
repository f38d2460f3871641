"""What tasks have to do: recurrent layers by their steps, lookups by their rows, families by shapes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.costs.roofline import cost, family, work
from autopar.costs.scales import operations
from autopar.ir.device import Device
from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.ir.machine import Machine

RATE, BYTES = 1e11, 1e10


def value(name, shape, dtype="float32", kind="input"):
    count = 1
    for side in shape:
        count *= side
    return Value(name, tuple(shape), dtype, count * (8 if "int" in dtype else 4), name, kind)


def one(target, shapes, made, args=None, flops=0, dtypes=()):
    read = [value(f"v{at}", shape, *dtypes[at : at + 1]) for at, shape in enumerate(shapes)]
    refs = tuple(Ref(each.name) for each in read)
    task = Task("t", target, refs if args is None else args(refs), outputs=("y",), flops=flops)
    names = tuple(each.name for each in read)
    return Graph("g", (*read, value("y", made, kind="made")), (task,), names, (), ("y",)).check()


def recurrent(length, batch=1, width=256, layers=1, batch_first=True, kind="lstm"):
    gates = 4 if kind == "lstm" else 3
    state = [(layers, batch, width)] * 2
    weights = [(gates * width, width)] * (2 * layers)
    given = (batch, length, width) if batch_first else (length, batch, width)
    return one(
        f"aten.{kind}.input", [given, *state, *weights], given,
        lambda refs: (refs[0], refs[1:3], refs[3:], False, layers, 0.0, False, False, batch_first),
        flops=4 * batch * length * gates * width * width * layers,
    )  # fmt: skip


def todo(graph):
    return work(graph, graph.tasks[0])


def seconds(graph):
    return todo(graph).seconds(RATE, BYTES)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_recurrent_layer_is_as_many_steps_as_its_sequence_is_long(batch_first):
    short, long = (recurrent(n, batch_first=batch_first) for n in (16, 64))
    assert (todo(short).kernels, todo(long).kernels) == (16, 64)
    assert seconds(long) == pytest.approx(4 * seconds(short), rel=0.2)
    # One row does not use what its weights cost to read: the FLOPs alone would say a fraction.
    assert seconds(long) > 3 * long.tasks[0].flops / RATE


def test_layers_of_a_recurrent_layer_wait_for_each_other():
    assert todo(recurrent(8, layers=3)).kernels == 3 * todo(recurrent(8)).kernels
    assert todo(recurrent(8, layers=3)).weights == todo(recurrent(8)).weights


def test_weights_that_no_cache_holds_come_from_memory_at_every_step():
    small, large = todo(recurrent(8, width=128)), todo(recurrent(8, width=1024))
    per_byte = [each.seconds(1e30, BYTES) / (each.kernels * each.weights) for each in (small, large)]
    assert per_byte[1] > 2 * per_byte[0]


@given(st.integers(1, 200), st.integers(10, 100_000))
def test_a_bag_waits_for_each_row_whatever_the_size_of_its_table(count, rows):
    def bag(rows):
        return one(
            "autopar.embedding_bag.default",
            [(rows, 32), (count, 4)],
            (count, 32),
            dtypes=["float32", "int64"],
        )

    assert todo(bag(rows)).waits == 4 * count
    assert seconds(bag(rows + 1000)) <= seconds(bag(rows)) * 1.5 or rows < 4 * count
    assert seconds(bag(rows)) > 4 * count * 1e-8


@pytest.mark.parametrize(
    "graph,name",
    [
        (one("aten.linear.default", [(4, 8, 512), (256, 512)], (4, 8, 256), flops=1), "product 5"),
        (one("aten.addmm.default", [(9,), (7, 512), (512, 9)], (7, 9), flops=1), "product 2"),
        (one("aten.conv2d.default", [(1, 8, 9, 9), (8, 8, 3, 3)], (1, 8, 7, 7), flops=1), "convolution"),
        (
            one("aten.conv2d.default", [(1, 8, 9, 9), (8, 1, 3, 3)], (1, 8, 7, 7), flops=1),
            "convolution, depthwise",
        ),
        (
            one("aten.conv2d.default", [(1, 8, 9, 9), (8, 8, 1, 1)], (1, 8, 9, 9), flops=1),
            "convolution, pointwise",
        ),
        (
            one("aten.conv2d.default", [(1, 8, 9, 9), (8, 2, 3, 3)], (1, 8, 7, 7), flops=1),
            "convolution, grouped",
        ),
        (recurrent(4), "lstm"),
        (one("aten.relu.default", [(4,)], (4,)), "elementwise"),
        (one("mine.op.default", [(4,)], (4,), flops=5), "op"),
    ],
)
def test_families_go_by_shapes(graph, name):
    assert family(graph, graph.tasks[0]) == name


def test_there_are_probes_of_the_families_that_models_are_made_of():
    graph = operations().check()
    found = {family(graph, task) for task in graph.tasks}
    assert {"elementwise", "convolution", "lstm", "gru", "attention", "rows", "view", "max_pool"} <= found
    assert sum(name.startswith("product ") for name in found) >= 5


DEVICE = Device("cpu", "cpu", flops=(("float32", RATE),), bytes_per_s=BYTES)


def price(graph, *scales):
    machine = Machine((replace(DEVICE, scales=scales),))
    return cost(graph, machine, homes={}).costs[0].seconds[0]


def test_a_scale_is_a_launch_for_each_kernel_and_a_factor():
    graph = recurrent(16)
    assert price(graph, ("lstm", 1e-5, 2.0)) == pytest.approx(16e-5 + 2 * seconds(graph))


def test_a_family_that_was_never_timed_goes_by_its_neighbours():
    linear = one("aten.linear.default", [(64, 512), (512, 512)], (64, 512), flops=2 * 64 * 512 * 512)
    near, far = ("product 5", 1e-5, 3.0), ("product 0", 9.0, 9.0)
    assert price(linear, near, far) == pytest.approx(1e-5 + 3 * seconds(linear))
    relu = one("aten.tan.default", [(4096,)], (4096,))
    assert price(relu, ("elementwise", 2e-6, 0.5)) == pytest.approx(2e-6 + 0.5 * seconds(relu))
    pool = one("aten.max_pool2d.default", [(4096,)], (4096,))
    assert price(pool, ("elementwise", 2e-6, 0.5)) == pytest.approx(2e-6 + seconds(pool))
