"""Fusing: runs partition the tasks, stay acyclic, and lose no parallelism or cheap cut worth having."""

import random

import networkx
import pytest
from graphs import MS, build, chain, costed, fork_join, machine, two_towers
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costs.clustering import SHORTEST_S, fuse
from autopar.errors import PlanError
from autopar.ir.costed import TaskCost
from autopar.ir.graph import JOIN, PART, SUM, Graph, Ref, Task, Value
from autopar.planner.model.instance import Instance

US = 1e-6
ALONE = (JOIN, PART, SUM)


def random_graph(seed: int, tasks: int):
    """Tasks of 0 to 120 µs, some free, pinned, ordered by `after` or parts, with big and small
    values."""
    draw = random.Random(seed)
    on = machine(2, dispatch_s=draw.choice((0.0, 5 * US)))
    values = [
        Value("x", (1,), "float32", 1000, "x", "input", "x"),
        Value("w", (1,), "float32", 10**6, "w", "state", "w"),
    ]
    made, costs = [], []
    for i in range(tasks):
        reads = [f"t{j}" for j in draw.sample(range(i), min(i, draw.choice((0, 1, 1, 1, 2, 4))))] or ["x"]
        after = tuple(f"t{j}" for j in draw.sample(range(i), min(i, draw.choice((0, 0, 0, 1)))))
        free = draw.random() < 0.2
        storage = reads[0] if free else f"t{i}"
        values.append(Value(f"t{i}", (1,), "float32", draw.choice((10, 10**5, 10**8)), storage))
        target = draw.choice(ALONE) if draw.random() < 0.1 else "test.op"
        made.append(
            Task(
                f"t{i}", target, tuple(map(Ref, reads)), outputs=(f"t{i}",), after=after, free=free,
                part=draw.choice(("",) * 4 + ("0/2",)),
            )
        )  # fmt: skip
        seconds = 0.0 if free else draw.choice((1, 5, 20, 120)) * US
        costs.append(TaskCost(f"t{i}", (seconds * 3, seconds, None if draw.random() < 0.2 else seconds), 7))
    outputs = tuple(f"t{i}" for i in range(tasks) if i == tasks - 1 or draw.random() < 0.05)
    graph = Graph("random", tuple(values), tuple(made), ("x",), ("w",), outputs).check()
    return costed(graph, on, costs, shortest_s=SHORTEST_S)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 40))
def test_runs_partition_the_tasks_in_topological_order(seed, tasks):
    c = random_graph(seed, tasks)
    assert sorted(name for cluster in c.clusters for name in cluster.tasks) == sorted(
        task.name for task in c.graph.tasks
    )
    position = {task.name: i for i, task in enumerate(c.graph.tasks)}
    clusters = networkx.DiGraph()
    clusters.add_nodes_from(c.cluster)
    for a, b in c.graph.networkx().edges:
        if c.cluster_of[a] != c.cluster_of[b]:
            clusters.add_edge(c.cluster_of[a], c.cluster_of[b])
    assert networkx.is_directed_acyclic_graph(clusters)
    order = {cluster.name: i for i, cluster in enumerate(c.clusters)}
    before = Instance(c).before
    for a, b in clusters.edges:
        assert order[a] < order[b]
        assert order[a] in before[order[b]]
    for cluster in c.clusters:
        assert [position[name] for name in cluster.tasks] == sorted(position[name] for name in cluster.tasks)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 40))
def test_a_run_is_the_sum_of_tasks_that_belong_together(seed, tasks):
    c = random_graph(seed, tasks)
    g = c.graph
    for cluster in c.clusters:
        held = [g.task[name] for name in cluster.tasks]
        rows = [c.cost[name].seconds for name in cluster.tasks]
        assert len({tuple(s is None for s in row) for row in rows}) == 1
        assert len({task.part for task in held}) == 1
        assert len(held) == 1 or all(task.target not in ALONE for task in held)
        for d, seconds in enumerate(cluster.seconds):
            if seconds is None:
                assert rows[0][d] is None
            else:
                assert seconds == pytest.approx(max(sum(row[d] for row in rows), cluster.dispatch_s))
        fastest = [min(s for s in row if s is not None) for row in rows]
        assert sum(fastest) - max(fastest) <= SHORTEST_S * (1 + 1e-9)
        inside = {name for task in held for name in task.outputs}
        assert set(cluster.reads) == {name for task in held for name in task.inputs} - inside
        leaving = {
            n for n in inside if n in g.outputs or any(c.cluster_of[t] != cluster.name for t in g.readers[n])
        }
        assert set(cluster.makes) == leaving


# a0 → a1 → … of 10 µs each: five make a cluster
def test_a_chain_of_short_tasks_becomes_runs_of_the_shortest_length():
    clusters = chain(50, seconds=10 * US, shortest_s=SHORTEST_S).clusters
    assert 5 <= len(clusters) <= 15
    assert all(len(cluster.tasks) >= 4 for cluster in clusters[:-1])


# x → fork → (w0 … w7) → join, each w long, fork and join short: the w must stay parallel
def test_fusing_leaves_wide_graphs_wide():
    on = machine()
    tasks = {"fork": (["x"], US)} | {f"w{i}": (["fork"], MS) for i in range(8)}
    tasks["join"] = ([f"w{i}" for i in range(8)], US)
    c = build(tasks, on, shortest_s=SHORTEST_S)
    assert len({c.cluster_of[f"w{i}"] for i in range(8)} | {c.cluster_of["fork"], c.cluster_of["join"]}) == 10
    assert len(fork_join(8, seconds=40 * US, shortest_s=SHORTEST_S).clusters) >= 4


# x → fork → 1000 tasks of 1 µs → join: nothing is worth a hand-off of its own
def test_short_siblings_are_fused_with_each_other():
    c = fork_join(1000, seconds=US, shortest_s=SHORTEST_S)
    assert 10 <= len(c.clusters) <= 30
    assert sum(len(cluster.tasks) for cluster in c.clusters) == 1002


# a0 → a1 ─┐
#           sum      sum is short and reads both: neither tower may wait for the other because of it
# b0 → b1 ─┘
def test_a_short_join_is_not_fused_into_a_long_tower():
    on = machine()
    tasks = {"a0": (["xa"], MS), "b0": (["xb"], MS), "sum": (["a0", "b0"], US)}
    assert len(build(tasks, on, shortest_s=SHORTEST_S).clusters) == 3
    short = two_towers(3, seconds=40 * US, shortest_s=SHORTEST_S)
    assert not {"a0", "b0"} <= set(short.cluster[short.cluster_of["a0"]].tasks)


def longest(c):
    """Seconds of the longest way through the clusters, each on its fastest device."""
    end: list[float] = []
    for cluster, before in zip(c.clusters, Instance(c).before):
        start = max((end[p] for p in before), default=0.0)
        end.append(start + min(s for s in cluster.seconds if s is not None))
    return max(end)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 40))
def test_a_fusion_delays_by_less_than_the_shortest_run(seed, tasks):
    fused = random_graph(seed, tasks)
    apart = costed(fused.graph, fused.machine, fused.costs)
    merged = sum(len(cluster.tasks) > 1 for cluster in fused.clusters)
    assert longest(fused) <= longest(apart) + 2 * SHORTEST_S * merged + 1e-9


# x (100 MB) ─ slice (1 MB, free) ─ long       the slice must not pull x after the long task
def test_a_slice_does_not_drag_the_whole_along():
    on = machine()
    values = [Value("x", (1,), "f", 10**8, "x", "input", "x"), Value("s", (1,), "f", 10**6, "x")]
    values += [Value("y", (1,), "f", 10**6, "y"), Value("z", (1,), "f", 10**8, "z")]
    tasks = [
        Task("s", "slice", (Ref("x"),), outputs=("s",), free=True),
        Task("y", "op", (Ref("s"),), outputs=("y",)),
    ]
    graph = Graph("slice", tuple(values), tuple(tasks), ("x",), (), ("y",)).check()
    costs = [TaskCost("s", (0.0,) * 3), TaskCost("y", (MS,) * 3)]
    assert len(fuse(graph, on, costs)) == 2
    # made by a task, the slice goes with it: what leaves that run is small
    makes = Task("z", "op", (Ref("x"),), outputs=("z",))
    cut = Task("s", "slice", (Ref("z"),), outputs=("s",), free=True)
    values[1] = Value("s", (1,), "f", 10**6, "z")
    graph = Graph("slice", tuple(values), (makes, cut, tasks[1]), ("x",), (), ("y",)).check()
    clusters = fuse(graph, on, [TaskCost("z", (MS,) * 3), *costs])
    assert [cluster.tasks for cluster in clusters] == [("z", "s"), ("y",)]
    assert clusters[0].makes == ("s",)


def test_scratch_is_the_peak_of_what_stays_inside():
    c = chain(4, seconds=US, nbytes=1000, workspace={"t1": 50}, shortest_s=SHORTEST_S)
    (cluster,) = c.clusters
    assert cluster.workspace_bytes == 2050  # t0 and t1 at once and the scratch of t1; t3 leaves
    assert cluster.makes == ("t3",)


def test_errors_name_the_task():
    graph, on = chain(2).graph, machine()
    with pytest.raises(PlanError, match=r"'t1'.*has no cost"):
        fuse(graph, on, [TaskCost("t0", (MS,) * 3)])
    with pytest.raises(PlanError, match=r"'t1'.*no device of cpu, emulated:0"):
        fuse(graph, on, [TaskCost("t0", (MS,) * 3), TaskCost("t1", (None,) * 3)])
