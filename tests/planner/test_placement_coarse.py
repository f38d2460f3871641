"""Clusters of clusters that are planned first: what they may be, and what comes of them."""

import math

import pytest
from benchmarks import instances
from benchmarks.verify import infeasibilities

from autopar.planner import place
from autopar.planner.bounds import lower_bound
from autopar.planner.formats import read
from autopar.planner.formats.write import described
from autopar.planner.model.instance import Instance
from autopar.planner.model.topological import topological
from autopar.planner.search.anneal import PARAMS
from autopar.planner.search.clusters import contracted
from autopar.planner.search.multilevel import coarse


def grown(seed, shape, tasks=150):
    """A random graph of a shape; four of its tasks share a device."""
    at = next(s for s in range(seed, seed + 100) if instances.small(s)["name"].startswith(shape))
    graph = instances.small(at, tasks=tasks, devices=3, ratio=5.0)
    for task in graph["tasks"]:
        task["seconds"] = {"d0": 1e-3, "d1": 1.5e-3, "d2": 2e-3}
    for t in (3, 7, 30, 90):
        graph["tasks"][t]["colocate"] = "together"
    for t in range(0, tasks, 9):
        del graph["tasks"][t]["seconds"][f"d{t % 3}"]
        graph["tasks"][t].pop("colocate", None)
    return graph


def tree(levels=8):
    """A tree in which two results become one, again and again; they take five times as long to move as to make."""
    count = 2**levels - 1
    names = [f"d{d}" for d in range(5)]
    tasks = [
        {"id": f"t{t}", "seconds": {n: 1e-3 * (1 + t % 3) / (2 + d % 3) for d, n in enumerate(names)}}
        for t in range(count)
    ]
    values = [
        {
            "id": f"v{t}",
            "producer": f"t{t}",
            "consumers": [f"t{(t - 1) // 2}"],
            "bytes": 3_000_000 + 10_000 * (t % 7),
        }
        for t in range(1, count)
    ]
    links = [
        {"src": a, "dst": b, "latency_s": 0.0, "bytes_per_s": 1e9, "wire": None}
        for a in names
        for b in names
        if a != b
    ]
    return {
        "name": "tree",
        "tasks": tasks,
        "values": values,
        "devices": [{"name": n} for n in names],
        "links": links,
    }


@pytest.mark.parametrize("shape", sorted(instances.SHAPES))
@pytest.mark.parametrize("seed", range(0, 300, 60))
def test_clusters_wait_for_each_other_in_no_circle(shape, seed):
    instance = Instance(read(grown(seed, shape)))
    cluster = contracted(instance, 20)
    assert len(set(cluster)) < instance.clusters
    assert all(cluster[c] == c for c in cluster)
    before = {c: set() for c in cluster}
    for r, earlier in enumerate(instance.before):
        before[cluster[r]] |= {cluster[p] for p in earlier} - {cluster[r]}
    assert len(topological(before)) == len(before)
    for c in before:
        own = [r for r in range(instance.clusters) if cluster[r] == c]
        assert len(own) == 1 or all(instance.group[r] < 0 for r in own)
        assert set.intersection(*(set(instance.allowed[r]) for r in own))


def test_a_tree_of_large_results_is_shorter_from_its_clusters():
    graph = tree()
    costed = read(graph)
    instance = Instance(costed)
    bound = lower_bound(instance)
    heft = place(costed, "heft")
    found = coarse(instance, bound, heft.makespan, PARAMS.least, math.inf)
    plan = place(costed, lambda _: found[0])
    assert infeasibilities(graph, described(plan)) == []
    assert bound <= plan.makespan < 0.95 * heft.makespan


def test_none_where_clusters_lose_what_devices_are_good_at():
    graph = instances.small(0, tasks=200, devices=4, ratio=0.5)
    instance = Instance(read(graph))
    bound = lower_bound(instance)
    assert coarse(instance, bound, 1.1 * bound, PARAMS.least, math.inf) == []
